#include "capture/call_entry.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/as_strided.h>
#include <c10/util/flat_hash_map.h>

namespace dtorch {
namespace {

// What the client may run itself, on zeros, to see whether PyTorch takes the arguments.
constexpr int64_t kFewElements = 1 << 14;

constexpr size_t kMaxEntries = 200'000;

ska::flat_hash_map<uint64_t, std::unique_ptr<CallEntry>>& entries() {
  static auto* map = new ska::flat_hash_map<uint64_t, std::unique_ptr<CallEntry>>;
  return *map;
}

// A stand-in for a distributed tensor, with the same metadata and no useful memory.
at::Tensor stand_in(const at::Tensor& tensor, c10::Device device, const OperatorInfo& info,
                    bool written) {
  auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(device);
  at::Tensor result;
  if (device.is_meta()) {
    // as_strided may reach beyond its input, into a base of unknown size.
    result = info.absolute_offset
        ? at::empty({int64_t{1} << 48}, options).as_strided(tensor.sizes(), tensor.strides())
        : at::empty_strided(tensor.sizes(), tensor.strides(), options);
  } else if (written || tensor.numel() <= kFewElements) {
    result = at::empty_strided(tensor.sizes(), tensor.strides(), options).zero_();
  } else if (info.views) {
    // Which views exist depends on the strides; their kernels touch no memory.
    result = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  } else {
    result = at::empty({1}, options).zero_().as_strided(
        tensor.sizes(), c10::SmallVector<int64_t, 6>(tensor.dim(), 0));
  }
  if (tensor.is_conj()) result._set_conj(true);
  if (tensor.is_neg()) result._set_neg(true);
  return result;
}

Stack stand_ins(const OperatorInfo& info, const c10::IValue* arguments, c10::Device device) {
  Stack stack;
  stack.reserve(info.arguments.size());
  const auto replace = [&](const at::Tensor& tensor, bool written) {
    return on_workers(tensor) ? stand_in(tensor, device, info, written) : tensor;
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
  for (std::string_view part : {"linalg", "lu_", "cholesky", "multinomial", "ormqr", "solve",
                                "_assert", "ctc_loss", "segment_reduce", "embedding_bag", "index_put"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return !name.starts_with("aten::");
}

// The CPU's kernels keep the statistics of a reduced-precision input in its own dtype, unless a
// parameter is float32; the meta kernels say float32 always.
void mend_norm_statistics(const OperatorInfo& info, const c10::IValue* arguments, CallEntry* entry) {
  if (info.name != "aten::native_layer_norm" && info.name != "aten::native_group_norm") return;
  const auto dtype = arguments[0].toTensor().scalar_type();
  if (dtype != at::kBFloat16 && dtype != at::kHalf) return;
  bool mixed = false;
  for (size_t a = 1; a < info.arguments.size(); ++a) {
    if (!arguments[a].isTensor() || !arguments[a].toTensor().defined()) continue;
    mixed = mixed || arguments[a].toTensor().scalar_type() != dtype;
  }
  for (size_t r = 1; r < 3; ++r) {
    for (auto& meta : entry->outputs[r].tensors) meta.dtype = mixed ? at::kFloat : dtype;
  }
}

// Whether a run on the client costs next to nothing.
bool is_small(const CallEntry& entry, const Stack& stand_ins) {
  for (const auto& value : stand_ins) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().numel() > kFewElements) {
      return false;
    }
    if (!value.isTensorList()) continue;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.numel() > kFewElements) return false;
    }
  }
  for (const auto& output : entry.outputs) {
    for (const auto& meta : output.tensors) {
      if (c10::multiply_integers(meta.sizes) > kFewElements) return false;
    }
  }
  return true;
}

}  // namespace

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
  Stack stack = stand_ins(info, arguments, c10::kCPU);
  info.handle.callBoxed(stack);
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
  auto& place = map[hash];
  entry->next = std::move(place);
  place = std::move(entry);
  return place.get();
}

size_t num_entries() { return entries().size(); }

void forget_entries() { entries().clear(); }

bool infer_outputs(const OperatorInfo& info, const c10::IValue* arguments, CallEntry* entry) {
  c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
  Stack stack = stand_ins(info, arguments, c10::kMeta);
  try {
    info.handle.callBoxed(stack);
  } catch (const std::exception&) {
    // Either the user's arguments are wrong, or the meta kernel is: the CPU's kernel knows,
    // and its error is the one that PyTorch's users expect.
    check_on_host(info, arguments);
    return false;
  }
  const Stack given = stand_ins(info, arguments, c10::kMeta);
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
  mend_norm_statistics(info, arguments, entry);
  // Meta kernels take some arguments that no other kernel does.
  if (!info.views && !judges_values(info.name) && is_small(*entry, given)) {
    check_on_host(info, arguments);
  }
  return true;
}

}  // namespace dtorch
