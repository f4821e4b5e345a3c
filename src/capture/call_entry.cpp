#include "capture/call_entry.h"

#include "capture/call_family.h"
#include "capture/compiled_metas.h"
#include "capture/python_hooks.h"
#include "capture/resize_warnings.h"
#include "capture/workers_device.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/as_strided.h>
#include <c10/util/flat_hash_map.h>

namespace dtorch {
namespace {

// A larger stand-in on the CPU is one element, seen everywhere.
constexpr int64_t kMostRealElements = 1 << 20;
constexpr size_t kMaxEntries = 200'000;

ska::flat_hash_map<uint64_t, std::unique_ptr<CallEntry>>& entries() {
  static auto* map = new ska::flat_hash_map<uint64_t, std::unique_ptr<CallEntry>>;
  return *map;
}

// What the stand-ins hold. Zeros are good indices; ones are good divisors and weights.
enum class Fill { kZeros, kOnes };

// A stand-in for a distributed tensor, with the same metadata and no useful memory.
at::Tensor stand_in(const at::Tensor& tensor, c10::Device device, const OperatorInfo& info,
                    bool written, Fill fill) {
  const double value = fill == Fill::kOnes ? 1 : 0;
  auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(device);
  at::Tensor result;
  if (device.is_meta()) {
    // as_strided may reach beyond its input, into a base of unknown size.
    result = info.absolute_offset
        ? at::empty({int64_t{1} << 48}, options).as_strided(tensor.sizes(), tensor.strides())
        : at::empty_strided(tensor.sizes(), tensor.strides(), options);
  } else if (written) {
    result = at::empty_strided(tensor.sizes(), tensor.strides(), options).fill_(value);
  } else if (info.views) {
    // Which views exist depends on the strides; their kernels touch no memory.
    result = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  } else if (tensor.numel() <= kMostRealElements) {
    result = at::empty_strided(tensor.sizes(), tensor.strides(), options).fill_(value);
  } else {
    result = at::empty({1}, options).fill_(value).as_strided(
        tensor.sizes(), c10::SmallVector<int64_t, 6>(tensor.dim(), 0));
  }
  if (tensor.is_conj()) result._set_conj(true);
  if (tensor.is_neg()) result._set_neg(true);
  return result;
}

Stack stand_ins(const OperatorInfo& info, const c10::IValue* arguments, c10::Device device,
                Fill fill = Fill::kZeros) {
  Stack stack;
  stack.reserve(info.arguments.size());
  const auto replace = [&](const at::Tensor& tensor, bool written) {
    return on_workers(tensor) ? stand_in(tensor, device, info, written, fill) : tensor;
  };
  for (size_t a = 0; a < info.arguments.size(); ++a) {
    const auto& value = arguments[a];
    const bool written = info.arguments[a].written;
    if (value.isTensor()) {
      stack.emplace_back(replace(value.toTensor(), written));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replace(tensor, written));
      stack.emplace_back(std::move(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(replace(*tensor, written)) : tensor);
      }
      stack.emplace_back(std::move(list));
    } else if (value.isDevice()) {
      stack.emplace_back(device);
    } else if (info.arguments[a].kind == ArgumentKind::kGenerator) {
      // Never the user's own: a check must not draw from it.
      stack.emplace_back();
      if (device.is_cpu()) stack.back() = at::detail::createCPUGenerator();
    } else {
      stack.emplace_back(value);
    }
  }
  return stack;
}

// Which of the written arguments their stand-ins have outgrown.
void find_resized(const OperatorInfo& info, const c10::IValue* arguments, const Stack& stand_ins,
                  Resized* resized) {
  const auto compare = [&](const at::Tensor& tensor, const at::Tensor& stand_in) {
    if (on_workers(tensor) && tensor.sizes() != stand_in.sizes()) {
      resized->emplace_back(tensor, stand_in.sizes().vec());
    }
  };
  for (size_t a = 0; a < info.arguments.size(); ++a) {
    if (!info.arguments[a].written) continue;
    if (arguments[a].isTensor()) {
      compare(arguments[a].toTensor(), stand_ins[a].toTensor());
    } else if (arguments[a].isTensorList()) {
      const auto tensors = arguments[a].toTensorVector(), others = stand_ins[a].toTensorVector();
      for (size_t i = 0; i < tensors.size(); ++i) compare(tensors[i], others[i]);
    }
  }
}

// The meta kernels give some statistics another dtype than the CPU's kernels, and CUDA's.
void set_statistics_dtypes(const OperatorInfo& info, const Stack& arguments, Stack* results) {
  if (info.name == "aten::_scaled_dot_product_flash_attention_for_cpu") {
    // torch 2.11's says float32 for all.
    if (arguments[0].toTensor().scalar_type() == at::kDouble) {
      (*results)[1] = (*results)[1].toTensor().to(at::kDouble);
    }
    return;
  }
  if (workers_device != c10::DeviceType::CPU) return;
  // A norm's are float32 where the weights are float32, and of the input's dtype otherwise.
  if (info.name != "aten::native_layer_norm" && info.name != "aten::native_group_norm") return;
  const size_t weight = info.name == "aten::native_layer_norm" ? 2 : 1;
  if (!info.overload.empty()) return;
  const auto input = arguments[0].toTensor().scalar_type();
  if (input != at::kBFloat16 && input != at::kHalf) return;
  bool mixed = false;
  for (size_t a : {weight, weight + 1}) {
    mixed = mixed || (arguments[a].isTensor() && arguments[a].toTensor().defined() &&
                      arguments[a].toTensor().scalar_type() == at::kFloat);
  }
  for (size_t r : {1, 2}) (*results)[r] = (*results)[r].toTensor().to(mixed ? at::kFloat : input);
}

TensorMeta meta_of(const at::Tensor& tensor) {
  TensorMeta meta;
  meta.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  meta.strides.assign(tensor.strides().begin(), tensor.strides().end());
  meta.offset = tensor.storage_offset();
  meta.dtype = tensor.scalar_type();
  meta.conjugate = tensor.is_conj();
  meta.negative = tensor.is_neg();
  return meta;
}

// Kernels that refuse values and not only metadata: the zeros of a stand-in tell nothing.
bool judges_values(std::string_view name) {
  for (std::string_view part : {"linalg", "lu_", "cholesky", "ormqr", "solve",
                                "_assert", "ctc_loss", "segment_reduce", "embedding_bag"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return !name.starts_with("aten::");
}

// Whether a user's meta function says that it can't tell, in the words of torch.library (2.13).
bool declines(const std::exception& error) {
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) return true;
  const std::string_view text = error.what();
  return text.find("no fake impl registered") != std::string_view::npos ||
         text.find("output Tensor with data-dependent shape") != std::string_view::npos;
}

// Whether a run on the client costs next to nothing.
bool is_small(const OperatorInfo& info, const c10::IValue* arguments, const CallEntry& entry,
              int64_t few) {
  for (size_t a = 0; a < info.arguments.size(); ++a) {
    const auto& value = arguments[a];
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().numel() > few) return false;
    if (!value.isTensorList()) continue;
    for (const auto& element : value.toListRef()) {
      if (element.toTensor().numel() > few) return false;
    }
  }
  for (const auto& output : entry.outputs) {
    for (const auto& meta : output.tensors) {
      if (c10::multiply_integers(meta.sizes) > few) return false;
    }
  }
  return true;
}

// Meta kernels take some arguments that no other kernel does.
void check_if_small(const OperatorInfo& info, const c10::IValue* arguments, const CallEntry& entry,
                    int64_t few) {
  const bool masked = info.takes_host_indices && has_mask(info, arguments);
  // An operator whose generator is not an argument would draw from the CPU's.
  if (!info.views && !masked && !info.adds_generator && !judges_values(info.name) &&
      is_small(info, arguments, entry, few)) {
    check_on_host(info, arguments);
  }
}

// Operators whose meta kernels refuse all sizes that the CPU's refuse.
bool meta_checks_sizes(const OperatorInfo& info) {
  constexpr std::string_view kChecked[] = {
      "aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::cat", "aten::embedding",
      "aten::native_layer_norm", "aten::_softmax", "aten::_log_softmax", "aten::sum", "aten::mean",
      "aten::arange", "aten::clone", "aten::_to_copy", "aten::argmax", "aten::index_select"};
  return info.handle.hasTag(at::Tag::pointwise) || std::ranges::find(kChecked, info.name) != std::end(kChecked);
}

}  // namespace

bool has_mask(const OperatorInfo& info, const c10::IValue* arguments) {
  for (size_t a = 0; a < info.arguments.size(); ++a) {
    if (info.arguments[a].kind != ArgumentKind::kOptionalTensorList || !arguments[a].isList()) continue;
    for (const auto& element : arguments[a].toListRef()) {
      if (!element.isTensor() || !element.toTensor().defined()) continue;
      const auto dtype = element.toTensor().scalar_type();
      if (dtype == at::kBool || dtype == at::kByte) return true;
    }
  }
  return false;
}

void check_on_host(const OperatorInfo& info, const c10::IValue* arguments) {
  constexpr int64_t kMostElements = 1 << 24;
  for (size_t a = 0; a < info.arguments.size(); ++a) {
    if (info.arguments[a].written && arguments[a].isTensor() &&
        arguments[a].toTensor().defined() && arguments[a].toTensor().numel() > kMostElements) {
      return;
    }
  }
  c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
  SilentResizing silent;
  const bool weighs = info.name == "aten::multinomial";
  Stack stack = stand_ins(info, arguments, c10::kCPU, weighs ? Fill::kOnes : Fill::kZeros);
  try {
    info.handle.callBoxed(stack);
  } catch (const std::exception& error) {
    // Integers by the stand-in's zero: the divisor's values are not known here.
    if (std::string_view(error.what()).find("ZeroDivisionError") == std::string_view::npos) throw;
    stack = stand_ins(info, arguments, c10::kCPU, Fill::kOnes);
    info.handle.callBoxed(stack);
  }
}

void check_bounds(const OperatorInfo& info, const c10::IValue* arguments) {
  c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
  // PyTorch's kernels check before they find that there is nothing to fill.
  Stack stack;
  stack.emplace_back(at::empty({0}, at::TensorOptions().dtype(arguments[0].toTensor().scalar_type())));
  for (size_t a = 1; a < info.arguments.size(); ++a) {
    stack.push_back(info.arguments[a].kind == ArgumentKind::kGenerator ? c10::IValue() : arguments[a]);
  }
  info.handle.callBoxed(stack);
}

void check_new_sizes(const OperatorInfo& info, const c10::IValue* arguments, const CallEntry& entry) {
  if (!meta_checks_sizes(info)) check_if_small(info, arguments, entry, 1 << 12);
}

CallEntry* find_entry(const CallKey& key, uint64_t hash) {
  auto found = entries().find(hash);
  if (found == entries().end()) return nullptr;
  CallEntry* entry = found->second.get();
  while (entry != nullptr && !(key == *entry)) entry = entry->next.get();
  return entry;
}

CallEntry* keep_entry(uint64_t hash, std::unique_ptr<CallEntry> entry) {
  auto& map = entries();
  if (map.size() >= kMaxEntries) {
    // Another thread may be using an entry of the full map: it lives until the next one is full.
    static ska::flat_hash_map<uint64_t, std::unique_ptr<CallEntry>> previous;
    previous = std::move(map);
    map.clear();
  }
  static uint32_t last_number = 0;
  entry->number = ++last_number;
  auto& place = map[hash];
  entry->next = std::move(place);
  place = std::move(entry);
  return place.get();
}

size_t num_entries() { return entries().size(); }

void forget_entries() {
  entries().clear();
  forget_families();
}

bool infer_outputs(const OperatorInfo& info, const c10::IValue* arguments, CallEntry* entry,
                   Resized* resized) {
  c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
  SilentResizing silent;
  Stack stack = stand_ins(info, arguments, c10::kMeta);
  const Stack called_with = info.writes ? stack : Stack();
  // A composite kernel would be run in place of a user's missing meta function, which is not for
  // the client to do.
  if (info.is_users && !info.handle.hasKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
  try {
    if (info.takes_host_indices && has_mask(info, arguments)) {
      // Only index_put's come here. Where they write depends on the data; the shape does not.
      auto self = stack[0];
      stack.assign(1, std::move(self));
    } else if (const auto* kernel = compiled_meta(info.handle.operator_name())) {
      kernel->callBoxed(info.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    } else {
      info.handle.callBoxed(stack);
    }
  } catch (const std::exception& error) {
    rethrow_interrupt();
    if (info.is_users) {
      if (declines(error)) return false;
      throw;
    }
    // Either the user's arguments are wrong, or the meta kernel is: the CPU's kernel knows,
    // and its error is the one that PyTorch's users expect.
    check_on_host(info, arguments);
    return false;
  }
  if (info.writes) find_resized(info, arguments, called_with, resized);
  set_statistics_dtypes(info, stand_ins(info, arguments, c10::kMeta), &stack);
  entry->outputs.resize(info.returns.size());
  for (size_t r = 0; r < info.returns.size(); ++r) {
    auto& output = entry->outputs[r];
    const auto& value = stack[r];
    if (value.isTensorList()) {
      output.kind = OutputKind::kList;
      for (const at::Tensor& tensor : value.toTensorVector()) output.tensors.push_back(meta_of(tensor));
    } else if (value.isTensor()) {
      if (!value.toTensor().defined()) continue;
      output.kind = info.returns[r].written_argument >= 0 ? OutputKind::kWritten : OutputKind::kTensor;
      output.tensors.push_back(meta_of(value.toTensor()));
    } else {
      output.kind = OutputKind::kConstant;
      output.constant = value;
    }
  }
  check_if_small(info, arguments, *entry, 1 << 14);
  return true;
}

}  // namespace dtorch
