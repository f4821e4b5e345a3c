#include "capture/aliases.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "capture/capture.h"
#include "tensor/slot.h"

namespace dtorch {
namespace {

// The elements that a dense tensor's memory has, gaps between its rows included.
int64_t extent_of(const Geometry& geometry) {
  int64_t last = 0;
  for (size_t d = 0; d < geometry.sizes.size(); ++d) {
    if (geometry.sizes[d] == 0) return 0;
    last += (geometry.sizes[d] - 1) * geometry.strides[d];
  }
  return last + 1;
}

// The part of `memory` that a view of its base is, `base` being laid out there.
at::Tensor viewed(const at::Tensor& memory, const Geometry& base, const Geometry& view) {
  auto source = memory;
  int64_t begin = base.offset;
  if (view.dtype != base.dtype) {
    source = at::as_strided(memory, {extent_of(base)}, {1}, 0).view(view.dtype);
    begin = begin * static_cast<int64_t>(c10::elementSize(base.dtype)) /
            static_cast<int64_t>(c10::elementSize(view.dtype));
  }
  auto result = at::as_strided(source, view.sizes, view.strides, view.offset - begin);
  if (view.conjugate) result = at::_conj(result);
  if (view.negative) result = at::_neg_view(result);
  return result;
}

// Lays a base and its views out in one memory, whole on every worker of the mesh.
void lay_out_whole(Slot& base, const Geometry& geometry) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const uint32_t whole = whole_sharding(base.sharding);
  auto value = make_tensor(base, geometry);
  if (base.sharding != whole) value = redistribute(value, base.sharding, whole);
  auto memory = value.new_empty_strided(geometry.sizes, geometry.strides);
  memory.copy_(value);
  if (base.aliasing) {
    for (auto& [view, found] : views_of(base)) {
      auto made = viewed(memory, geometry, found);
      replace_view(base, view, slot_of(made));
    }
  }
  base.exchange(slot_of(memory));
}

// must_be_whole: even where no view is apart.
void join(const at::Tensor& tensor, bool must_be_whole) {
  if (!on_workers(tensor)) return;
  auto& slot = slot_of(tensor);
  if (slot.sharding == 0) return;
  auto& base = slot.base();
  const bool is_cut = must_be_whole && !sharding_is_whole(base.sharding);
  if (!is_cut && !slot.has_views_apart()) return;
  lay_out_whole(base, base.aliasing ? base.aliasing->geometry : Geometry(tensor));
}

}  // namespace

void join_views(const OperatorInfo& info, const c10::IValue* arguments) {
  if (info.absolute_offset) join(arguments[0].toTensor(), true);
  if (!info.writes) return;
  for (size_t a = 0; a < info.arguments.size(); ++a) {
    if (!info.arguments[a].written) continue;
    if (arguments[a].isTensor()) {
      join(arguments[a].toTensor(), false);
    } else if (arguments[a].isTensorList()) {
      for (const c10::IValue& element : arguments[a].toListRef()) join(element.toTensor(), false);
    }
  }
}

std::vector<Laid> lay_out_results(const OperatorInfo& info, const c10::IValue* arguments) {
  const auto& schema = info.handle.schema().arguments();
  std::vector<Laid> laid;
  for (size_t a = 0; a < info.arguments.size(); ++a) {
    if (!schema[a].is_out() || !arguments[a].isTensor() || !on_workers(arguments[a].toTensor())) continue;
    const at::Tensor& tensor = arguments[a].toTensor();
    const uint32_t before = slot_of(tensor).sharding;
    if (sharding_is_whole(before)) continue;
    laid.push_back({tensor, before});
    join(tensor, true);
  }
  return laid;
}

void lay_back(const std::vector<Laid>& laid) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const auto& [tensor, sharding] : laid) {
    auto& slot = slot_of(tensor);
    // On no mesh is whole on all workers, and so on any mesh of them.
    if (slot.sharding == 0 && sharding != 0) slot.sharding = whole_sharding(sharding);
    if (slot.sharding == sharding || !slot.is_alone() || !sharding_fits(sharding, tensor.dim())) continue;
    auto made = redistribute(tensor, slot.sharding, sharding);
    slot.exchange(slot_of(made));
  }
}

}  // namespace dtorch
