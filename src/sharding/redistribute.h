// Moving a tensor from one placement to another: a plan, and its execution by collectives on
// the groups of the mesh's axes.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "sharding/device_results.h"
#include "sharding/placement.h"

namespace dtorch {

// An array of workers; row-major coordinates give worker numbers.
struct Mesh {
  uint32_t id = 0;
  std::vector<int64_t> shape;
  std::vector<int32_t> workers;
};

// One worker's place in a mesh.
struct MeshMember {
  std::vector<int64_t> coordinate;
  // One an axis: the workers that differ from this one in that coordinate only, ranked by it.
  std::vector<c10::intrusive_ptr<c10d::Backend>> groups;
};

struct RedistributeStep {
  int64_t axis;
  Placement from;
  Placement to;

  bool operator==(const RedistributeStep&) const = default;
  // False for a step that each worker takes alone.
  bool communicates() const { return !from.is_replicate(); }
};

// The steps from one layout to another, one axis at a time; the same on every worker. At every
// step the axis is the innermost one that cuts the dims it takes or leaves.
std::vector<RedistributeStep> plan_redistribute(const Placements& from, const Placements& to);

// A tensor whose collective may be under way. Whoever has it waits for `work` (null: there is
// nothing to wait for), then calls `finish` once.
struct PendingTensor {
  c10::intrusive_ptr<c10d::Work> work;
  std::function<at::Tensor()> finish;
  DeviceResults device_results;  // of all its collectives, those of steps before too

  // Raises what the collective raised.
  at::Tensor get() {
    if (work) work->wait();
    return finish();
  }
};

// One that is there already.
inline PendingTensor ready(at::Tensor result, DeviceResults device_results = {}) {
  return {nullptr, [result = std::move(result)] { return result; }, std::move(device_results)};
}

// This worker's part of the tensor under `to`, given its part under `from`. All workers of the
// mesh call it together, in one order. The result is contiguous and never an alias of `local`,
// except that `local` itself comes back where `from` equals `to`. The last of its collectives goes
// on when it returns; `local` may be written to meanwhile. Raises ValueError where `local` does not
// have the sizes that `from` gives it.
PendingTensor start_redistribute(const at::Tensor& local, std::span<const int64_t> global_sizes,
                                 const Mesh& mesh, const MeshMember& member, const Placements& from,
                                 const Placements& to);

// Whether redistributions from one to the other can go together: each is one reduction.
bool can_bucket(const Placements& from, const Placements& to);

// The same of several tensors of one dtype, in one collective, whose result on a device the first of them
// has. Where can_bucket says so.
std::vector<PendingTensor> start_bucket(const std::vector<at::Tensor>& locals, const Mesh& mesh,
                                        const MeshMember& member, const Placements& from,
                                        const Placements& to);

}  // namespace dtorch
