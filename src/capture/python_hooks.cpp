#include "capture/python_hooks.h"

#include "capture/sharded_decompositions.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/DynamicTypes.h>

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

void work_out_sharding(const OperatorInfo& info, const c10::IValue* arguments, bool measured,
                       CallEntry* entry) {
  py::gil_scoped_acquire gil;
  // Distributed tensors go as (meta tensor, sharding number), in lists too.
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
  py::list outputs;
  for (const auto& output : entry->outputs) {
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
  using Pairs = std::vector<std::pair<int, int>>;
  auto [moves, shardings, local_sizes, local_strides] =
      answer.cast<std::tuple<std::vector<std::tuple<int, uint32_t, uint32_t, bool>>,
                             std::vector<uint32_t>, Pairs, Pairs>>();
  for (const auto& [input, from, to, restore] : moves) {
    entry->moves.push_back({static_cast<uint16_t>(input), from, to, restore});
  }
  for (const auto& [argument, output] : local_sizes) {
    entry->local_sizes.emplace_back(argument, output);
  }
  for (const auto& [argument, output] : local_strides) {
    entry->local_strides.emplace_back(argument, output);
  }
  size_t next = 0;
  for (auto& output : entry->outputs) {
    for (auto& meta : output.tensors) meta.sharding = shardings.at(next++);
  }
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

void start_runtime() {
  py::gil_scoped_acquire gil;
  call(python_hooks().start);
}

void check_workers() {
  py::gil_scoped_acquire gil;
  call(python_hooks().drain);
}

}  // namespace dtorch
