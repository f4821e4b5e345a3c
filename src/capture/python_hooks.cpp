#include "capture/python_hooks.h"

#include "capture/capture.h"
#include "capture/sharded_decompositions.h"

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/pybind.h>

namespace dtorch {
namespace {

// Owns a reference; raises the Python error on null. Needs the GIL.
py::object checked(PyObject* result) {
  if (result == nullptr) {
    python_error error;
    error.persist();
    throw error;
  }
  return py::reinterpret_steal<py::object>(result);
}

py::object hook(PyObject* callable) {
  TORCH_CHECK(callable != nullptr, "dtorch_mpi was not imported");
  return py::reinterpret_borrow<py::object>(callable);
}

template <class... Arguments>
py::object call(PyObject* callable, const Arguments&... arguments) {
  return checked(PyObject_CallFunctionObjArgs(hook(callable).ptr(), arguments.ptr()..., nullptr));
}

py::object to_python(const at::Tensor& tensor) {
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
}

// Distributed tensors go as (meta tensor, sharding number), in lists too.
py::list to_python(const OperatorInfo& info, const c10::IValue* arguments) {
  const auto convert = [](const at::Tensor& tensor) -> py::object {
    if (!on_workers(tensor)) return tensor.defined() ? to_python(tensor) : py::none();
    auto meta = at::empty_strided(tensor.sizes(), tensor.strides(),
                                  tensor.options().device(c10::kMeta).requires_grad(false));
    return py::make_tuple(to_python(meta), slot_of(tensor).sharding);
  };
  py::list values;
  for (size_t a = 0; a < info.arguments.size(); ++a) {
    const auto& value = arguments[a];
    if (value.isTensor()) {
      values.append(convert(value.toTensor()));
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      py::list list;
      for (const auto& element : value.toListRef()) {
        list.append(element.isTensor() ? convert(element.toTensor()) : py::none());
      }
      values.append(list);
    } else if (value.isGenerator()) {
      values.append(py::none());
    } else {
      values.append(torch::jit::toPyObject(value));
    }
  }
  return values;
}

}  // namespace

PythonHooks& python_hooks() {
  static PythonHooks hooks;
  return hooks;
}

at::Tensor read_value(const at::Tensor& tensor) {
  py::gil_scoped_acquire gil;
  auto value = call(python_hooks().read, to_python(tensor));
  return THPVariable_Unpack(value.ptr());
}

at::Tensor arrived_storage(const at::Storage& storage, c10::ScalarType dtype) {
  py::gil_scoped_acquire gil;
  const auto wrapped = checked(THPStorage_Wrap(storage));
  const auto kind = py::reinterpret_borrow<py::object>(
      reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
  auto whole = call(python_hooks().arrived, wrapped, kind);
  return THPVariable_Unpack(whole.ptr());
}

std::vector<TensorMeta> describe_slots(const std::vector<uint32_t>& slots) {
  py::gil_scoped_acquire gil;
  auto described = call(python_hooks().describe, py::cast(slots));
  std::vector<TensorMeta> metas;
  for (const auto& item : described) {
    if (item.is_none()) {
      metas.emplace_back();
      continue;
    }
    auto [dtype, sizes, strides, offset] =
        item.cast<std::tuple<int, std::vector<int64_t>, std::vector<int64_t>, int64_t>>();
    TensorMeta meta;
    meta.dtype = static_cast<c10::ScalarType>(dtype);
    meta.sizes.assign(sizes.begin(), sizes.end());
    meta.strides.assign(strides.begin(), strides.end());
    meta.offset = offset;
    metas.push_back(std::move(meta));
  }
  return metas;
}

bool is_dtype_argument(const c10::Argument& argument) {
  auto type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::ScalarTypeType;
}

// A decomposition that is written in Python: the operator's arguments to its results.
void decompose_in_python(const c10::FunctionSchema& schema, PyObject* function, Stack* stack) {
  py::gil_scoped_acquire gil;
  const auto& arguments = schema.arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  py::list positional;
  py::dict named;
  for (size_t a = 0; a < arguments.size(); ++a) {
    const bool is_dtype = values[a].isInt() && is_dtype_argument(arguments[a]);
    auto value = is_dtype ? py::cast(static_cast<at::ScalarType>(values[a].toInt()))
                          : torch::jit::toPyObject(values[a]);
    if (arguments[a].kwarg_only()) {
      named[arguments[a].name().c_str()] = std::move(value);
    } else {
      positional.append(std::move(value));
    }
  }
  auto made = checked(PyObject_Call(function, py::tuple(positional).ptr(), named.ptr()));
  torch::jit::drop(*stack, arguments.size());
  const auto& returns = schema.returns();
  for (size_t r = 0; r < returns.size(); ++r) {
    const py::object result = returns.size() == 1 ? made : py::object(made[py::int_(r)]);
    stack->push_back(torch::jit::toIValue(result, returns[r].type()));
  }
}

void run_by_elements(const OperatorInfo& info, Stack* stack) {
  py::gil_scoped_acquire gil;
  const std::string& overload = info.overload.empty() ? std::string("default") : info.overload;
  const auto function = call(python_hooks().elements, py::str(info.name), py::str(overload));
  decompose_in_python(info.handle.schema(), function.ptr(), stack);
}

void work_out_sharding(const OperatorInfo& info, const c10::IValue* arguments, bool measured,
                       CallEntry* entry) {
  py::gil_scoped_acquire gil;
  const py::list values = to_python(info, arguments);
  py::list outputs;
  for (const auto& output : entry->outputs) {
    if (output.kind == OutputKind::kUndefined) outputs.append(py::none());
    for (const auto& meta : output.tensors) {
      outputs.append(to_python(at::empty_strided(
          meta.sizes, meta.strides, at::TensorOptions().dtype(meta.dtype).device(c10::kMeta))));
    }
  }
  const std::string& overload = info.overload.empty() ? std::string("default") : info.overload;
  auto answer = call(python_hooks().shard, py::str(info.name), py::str(overload), values,
                     outputs, py::bool_(measured));
  if (py::isinstance<py::str>(answer)) {
    entry->decomposition = sharded_decomposition(answer.cast<std::string>());
    return;
  }
  if (PyCallable_Check(answer.ptr())) {
    // Never freed: it is a function of a module.
    entry->decomposition = [&schema = info.handle.schema(),
                            function = answer.release().ptr()](Stack* stack) {
      decompose_in_python(schema, function, stack);
    };
    return;
  }
  using Pairs = std::vector<std::pair<int, int>>;
  auto [moves, shardings, local_sizes, local_strides, global_sizes] =
      answer.cast<std::tuple<std::vector<std::tuple<int, uint32_t, uint32_t, bool>>,
                             std::vector<uint32_t>, Pairs, Pairs,
                             std::vector<std::vector<int64_t>>>>();
  for (const auto& [input, from, to, restore] : moves) {
    entry->moves.push_back(
        {static_cast<uint16_t>(input), from, to, restore, only_reduces(from, to)});
  }
  for (const auto& [argument, output] : local_sizes) {
    entry->local_sizes.emplace_back(argument, output);
  }
  for (const auto& [argument, output] : local_strides) {
    entry->local_strides.emplace_back(argument, output);
  }
  size_t next = 0;
  for (auto& output : entry->outputs) {
    if (output.kind == OutputKind::kUndefined) ++next;
    for (auto& meta : output.tensors) {
      if (!global_sizes.empty()) {
        meta.sizes.assign(global_sizes.at(next).begin(), global_sizes.at(next).end());
      }
      meta.sharding = shardings.at(next++);
    }
  }
}

std::optional<FamilyFormula> work_out_formula(const OperatorInfo& info, const c10::IValue* arguments,
                                              const CallKey& key, const CallFamily& family,
                                              const FamilyQuestion& question) {
  c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
  py::gil_scoped_acquire gil;
  py::list values = to_python(info, arguments), is_size;
  for (const auto& argument : info.arguments) is_size.append(argument.is_size);
  // A part that lies elsewhere has the same sizes: here it lies first, and its end is its extent.
  const auto [first, last] = key.left_out;
  if (last != 0) values[first] = 0;
  if (last == first + 2) values[first + 1] = family.values[0];
  const std::string& overload = info.overload.empty() ? std::string("default") : info.overload;
  auto answer = call(python_hooks().sizes, py::str(info.name), py::str(overload), values, is_size,
                     py::make_tuple(first, last), py::cast(family.values),
                     py::cast(question.before), py::cast(question.varies));
  if (answer.is_none()) return std::nullopt;
  using Code = std::vector<int64_t>;
  using Codes = std::vector<Code>;
  auto [conditions, outputs] =
      answer.cast<std::pair<Codes, std::vector<std::tuple<Codes, Codes, Code>>>>();
  const auto compile = [&](Codes& codes) {
    std::vector<SizeProgram> programs;
    for (auto& code : codes) programs.emplace_back(std::move(code), family.values.size());
    return programs;
  };
  FamilyFormula formula{compile(conditions), {}};
  for (auto& [sizes, strides, offset] : outputs) {
    formula.outputs.push_back(
        {compile(sizes), compile(strides), SizeProgram(std::move(offset), family.values.size())});
  }
  return formula;
}

void rethrow_interrupt() {
  try {
    throw;
  } catch (python_error& error) {
    py::gil_scoped_acquire gil;
    if (error.type != nullptr && PyErr_GivenExceptionMatches(error.type, PyExc_KeyboardInterrupt)) {
      throw;
    }
  } catch (...) {
    return;
  }
}

void start_runtime(bool for_old_tensors) {
  py::gil_scoped_acquire gil;
  call(python_hooks().start, py::bool_(for_old_tensors));
}

void check_workers() {
  py::gil_scoped_acquire gil;
  call(python_hooks().drain);
}

}  // namespace dtorch
