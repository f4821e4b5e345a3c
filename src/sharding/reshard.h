// Moving a tensor between two ways of cutting it, without any worker holding more meanwhile.
#pragma once

#include "sharding/redistribute.h"

namespace dtorch {

// Whether a plan of single steps would have some worker hold more than before and after it,
// while nothing is reduced on the axes that change: what `reshard` is for.
bool should_reshard(std::span<const int64_t> global_sizes, const Mesh& mesh,
                    const Placements& from, const Placements& to);

// As `start_redistribute`, by at most one all-to-all along each axis, each waited for. The result is a
// copy.
PendingTensor reshard(const at::Tensor& local, std::span<const int64_t> global_sizes,
                      const Mesh& mesh, const MeshMember& member, const Placements& from,
                      const Placements& to);

}  // namespace dtorch
