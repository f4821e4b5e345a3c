// How a global tensor lies on a mesh of workers.
//
// The meaning is PyTorch's: a dim is cut as torch.chunk cuts it (pieces of equal size, then a
// shorter one, then empty ones), and several axes that shard one dim cut it in the order of
// the axes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dtorch {

enum class ReduceOp : uint8_t { kSum = 0, kAvg = 1, kProduct = 2, kMin = 3, kMax = 4 };

// What one axis of the mesh does to a tensor.
struct Placement {
  enum class Kind : uint8_t { Replicate = 0, Shard = 1, Partial = 2 };

  Kind kind = Kind::Replicate;
  int16_t dim = 0;                       // Shard only
  ReduceOp reduce_op = ReduceOp::kSum;   // Partial only

  static Placement replicate() { return {}; }
  static Placement shard(int64_t dim) { return {Kind::Shard, static_cast<int16_t>(dim)}; }
  static Placement partial(ReduceOp op) { return {Kind::Partial, 0, op}; }

  bool is_replicate() const { return kind == Kind::Replicate; }
  bool is_shard() const { return kind == Kind::Shard; }
  bool is_shard(int64_t of) const { return kind == Kind::Shard && dim == of; }
  bool is_partial() const { return kind == Kind::Partial; }

  bool operator==(const Placement& other) const {
    return kind == other.kind && (!is_shard() || dim == other.dim) &&
           (!is_partial() || reduce_op == other.reduce_op);
  }

  // One integer, for records: kind, then the operator 8 bits up, then the dim 16 bits up.
  int64_t packed() const;
  // Raises ValueError for an integer that no placement packs to.
  static Placement unpacked(int64_t value);
};

using Placements = std::vector<Placement>;  // one an axis

std::string to_string(const Placements& placements);

// Raises ValueError unless there is one placement an axis and every sharded dim exists.
void check_placements(int64_t num_dims, std::span<const int64_t> mesh_shape,
                      const Placements& placements);

// The piece of a range that torch.chunk gives to `index` of `count`.
struct Piece {
  int64_t start;
  int64_t size;
};
Piece piece_of(int64_t size, int64_t count, int64_t index);

std::vector<int64_t> local_sizes(std::span<const int64_t> global_sizes,
                                 std::span<const int64_t> mesh_shape,
                                 const Placements& placements,
                                 std::span<const int64_t> coordinate);

// Where the local piece begins in the global tensor, one number a dim. An empty piece begins
// at the dim's end.
std::vector<int64_t> local_offsets(std::span<const int64_t> global_sizes,
                                   std::span<const int64_t> mesh_shape,
                                   const Placements& placements,
                                   std::span<const int64_t> coordinate);

// Strides of a dense local piece whose dims lie in memory in the order of the global strides.
std::vector<int64_t> local_strides(std::span<const int64_t> global_strides,
                                   std::span<const int64_t> sizes);

// True if every coordinate has the same local sizes.
bool is_even(std::span<const int64_t> global_sizes, std::span<const int64_t> mesh_shape,
             const Placements& placements);

// The local tensor of `coordinate`: contiguous, never an alias of `full`. A Partial axis is
// filled so that reducing it gives `full` again.
at::Tensor local_slice(const at::Tensor& full, std::span<const int64_t> mesh_shape,
                       const Placements& placements, std::span<const int64_t> coordinate);

// The full tensor from the local ones, which are listed by row-major coordinate. Only the
// shards for which `is_needed` may be read; the others may be undefined. May alias a shard.
at::Tensor assemble(const std::vector<at::Tensor>& shards,
                    std::span<const int64_t> global_sizes,
                    std::span<const int64_t> mesh_shape, const Placements& placements);

// False for the copies that a Replicate axis makes: all but those of its coordinate 0.
bool is_needed(const Placements& placements, std::span<const int64_t> coordinate);

// What a worker that is not at coordinate 0 of a Partial axis holds when the whole value is
// at coordinate 0; for reductions that may keep the value everywhere, the value itself.
at::Tensor partial_share(const at::Tensor& value, ReduceOp op, int64_t axis_index);

}  // namespace dtorch
