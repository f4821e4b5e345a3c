#include "sharding/placement.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace dtorch {

int64_t Placement::packed() const {
  return static_cast<int64_t>(kind) | static_cast<int64_t>(is_partial() ? reduce_op : ReduceOp{}) << 8 |
         static_cast<int64_t>(is_shard() ? dim : 0) << 16;
}

Placement Placement::unpacked(int64_t value) {
  const int64_t kind = value & 0xff, op = value >> 8 & 0xff, dim = value >> 16;
  Placement placement{static_cast<Kind>(kind), static_cast<int16_t>(dim), static_cast<ReduceOp>(op)};
  const bool valid = value >= 0 && kind <= 2 && op <= 4 &&
                     dim <= std::numeric_limits<int16_t>::max() && placement.packed() == value;
  TORCH_CHECK_VALUE(valid, "expected a packed placement (Replicate, Shard or Partial), got ", value);
  return placement;
}

std::string to_string(const Placements& placements) {
  static const char* const kOps[] = {"sum", "avg", "product", "min", "max"};
  std::string text = "[";
  for (const auto& placement : placements) {
    if (text.size() > 1) text += ", ";
    if (placement.is_replicate()) text += "Replicate()";
    if (placement.is_shard()) text += "Shard(" + std::to_string(placement.dim) + ")";
    if (placement.is_partial())
      text += "Partial(" + std::string(kOps[static_cast<int>(placement.reduce_op)]) + ")";
  }
  return text + "]";
}

void check_placements(int64_t num_dims, std::span<const int64_t> mesh_shape,
                      const Placements& placements) {
  TORCH_CHECK_VALUE(placements.size() == mesh_shape.size(), "expected one placement for each of ",
                    mesh_shape.size(), " mesh axes, got ", to_string(placements));
  for (const auto& placement : placements)
    TORCH_CHECK_VALUE(!placement.is_shard() || (placement.dim >= 0 && placement.dim < num_dims),
                      "can't lay a tensor of ", num_dims, " dims as ", to_string(placements),
                      ": Shard takes a dim from 0 to ", num_dims - 1);
}

Piece piece_of(int64_t size, int64_t count, int64_t index) {
  const int64_t step = (size + count - 1) / count;
  const int64_t start = std::min(step * index, size);
  return {start, std::min(start + step, size) - start};
}

std::vector<int64_t> local_sizes(std::span<const int64_t> global_sizes,
                                 std::span<const int64_t> mesh_shape,
                                 const Placements& placements,
                                 std::span<const int64_t> coordinate) {
  std::vector<int64_t> sizes(global_sizes.begin(), global_sizes.end());
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_shard()) continue;
    auto& size = sizes[placements[axis].dim];
    size = piece_of(size, mesh_shape[axis], coordinate[axis]).size;
  }
  return sizes;
}

std::vector<int64_t> local_offsets(std::span<const int64_t> global_sizes,
                                   std::span<const int64_t> mesh_shape,
                                   const Placements& placements,
                                   std::span<const int64_t> coordinate) {
  std::vector<int64_t> sizes(global_sizes.begin(), global_sizes.end());
  std::vector<int64_t> offsets(global_sizes.size(), 0);
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_shard()) continue;
    const auto dim = placements[axis].dim;
    const auto piece = piece_of(sizes[dim], mesh_shape[axis], coordinate[axis]);
    offsets[dim] += piece.start;
    sizes[dim] = piece.size;
  }
  for (size_t dim = 0; dim < sizes.size(); ++dim)
    if (sizes[dim] == 0) offsets[dim] = global_sizes[dim];
  return offsets;
}

std::vector<int64_t> local_strides(std::span<const int64_t> global_strides,
                                   std::span<const int64_t> sizes) {
  std::vector<size_t> dims(sizes.size());
  std::iota(dims.begin(), dims.end(), 0);
  // Equal strides occur where a size is 1; the later dim is then the inner one, as in a
  // contiguous tensor.
  std::stable_sort(dims.begin(), dims.end(),
                   [&](size_t a, size_t b) { return global_strides[a] > global_strides[b]; });
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (auto at = dims.rbegin(); at != dims.rend(); ++at) {
    strides[*at] = stride;
    stride *= std::max<int64_t>(sizes[*at], 1);
  }
  return strides;
}

bool is_even(std::span<const int64_t> global_sizes, std::span<const int64_t> mesh_shape,
             const Placements& placements) {
  std::vector<int64_t> sizes(global_sizes.begin(), global_sizes.end());
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_shard()) continue;
    auto& size = sizes[placements[axis].dim];
    if (size % mesh_shape[axis] != 0) return false;
    size /= mesh_shape[axis];
  }
  return true;
}

at::Tensor partial_share(const at::Tensor& value, ReduceOp op, int64_t axis_index) {
  if (axis_index == 0) return value;
  if (op == ReduceOp::kSum) return at::zeros_like(value);
  if (op == ReduceOp::kProduct) return at::ones_like(value);
  return value;
}

at::Tensor local_slice(const at::Tensor& full, std::span<const int64_t> mesh_shape,
                       const Placements& placements, std::span<const int64_t> coordinate) {
  check_placements(full.dim(), mesh_shape, placements);
  at::Tensor local = full;
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    const auto& placement = placements[axis];
    if (placement.is_shard()) {
      const auto piece = piece_of(local.size(placement.dim), mesh_shape[axis], coordinate[axis]);
      local = local.narrow(placement.dim, piece.start, piece.size);
    } else if (placement.is_partial()) {
      local = partial_share(local, placement.reduce_op, coordinate[axis]);
    }
  }
  return local.clone(at::MemoryFormat::Contiguous);
}

bool is_needed(const Placements& placements, std::span<const int64_t> coordinate) {
  for (size_t axis = 0; axis < placements.size(); ++axis)
    if (placements[axis].is_replicate() && coordinate[axis] != 0) return false;
  return true;
}

namespace {

at::Tensor reduce(const std::vector<at::Tensor>& shares, ReduceOp op) {
  at::Tensor total = shares[0];
  for (size_t i = 1; i < shares.size(); ++i) {
    if (op == ReduceOp::kProduct) total = total.mul(shares[i]);
    else if (op == ReduceOp::kMin) total = at::minimum(total, shares[i]);
    else if (op == ReduceOp::kMax) total = at::maximum(total, shares[i]);
    else total = total.add(shares[i]);
  }
  if (op != ReduceOp::kAvg) return total;
  const auto count = static_cast<int64_t>(shares.size());
  return at::isIntegralType(total.scalar_type(), true) ? total.div(count, "trunc") : total.div(count);
}

}  // namespace

at::Tensor assemble(const std::vector<at::Tensor>& shards, std::span<const int64_t> global_sizes,
                    std::span<const int64_t> mesh_shape, const Placements& placements) {
  const auto count = std::accumulate(mesh_shape.begin(), mesh_shape.end(), int64_t{1},
                                     std::multiplies<int64_t>());
  TORCH_CHECK_VALUE(static_cast<int64_t>(shards.size()) == count, "expected ", count,
                    " shards, one a worker of the mesh, got ", shards.size());
  check_placements(global_sizes.size(), mesh_shape, placements);
  std::vector<at::Tensor> level = shards;
  // The last axis cuts last, so it is put together first.
  for (size_t axis = placements.size(); axis-- > 0;) {
    const auto length = static_cast<size_t>(mesh_shape[axis]);
    const auto& placement = placements[axis];
    std::vector<at::Tensor> above;
    for (size_t start = 0; start < level.size(); start += length) {
      std::vector<at::Tensor> group(level.begin() + start, level.begin() + start + length);
      const bool whole = std::all_of(group.begin(), group.end(),
                                     [](const auto& shard) { return shard.defined(); });
      if (placement.is_replicate()) above.push_back(group[0]);
      else if (!whole) above.emplace_back();
      else if (placement.is_shard()) above.push_back(at::cat(group, placement.dim));
      else above.push_back(reduce(group, placement.reduce_op));
    }
    level = std::move(above);
  }
  TORCH_CHECK_VALUE(level[0].defined(), "a shard that ", to_string(placements), " needs is missing");
  TORCH_CHECK_VALUE(std::equal(global_sizes.begin(), global_sizes.end(), level[0].sizes().begin(),
                               level[0].sizes().end()),
                    "the shards make a tensor of sizes ", level[0].sizes(), ", expected ",
                    at::IntArrayRef(global_sizes.data(), global_sizes.size()));
  return level[0];
}

}  // namespace dtorch
