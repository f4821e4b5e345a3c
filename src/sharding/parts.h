// A worker's part of a tensor that rank 0 sends.
#pragma once

#include "capture/transfers.h"
#include "sharding/table.h"

namespace dtorch {

// Undefined where the worker is not part of the tensor's mesh. A copy: every worker owns its
// part, and may write to it.
inline at::Tensor own_part(const Transfer& transfer, int worker) {
  if (transfer.sharding == 0) return transfer.tensor.clone(at::MemoryFormat::Preserve);
  const auto sharding = ShardingTable::get().sharding(transfer.sharding);
  TORCH_INTERNAL_ASSERT(sharding != nullptr);
  const auto coordinate = coordinate_of(*sharding->mesh, worker);
  if (coordinate.empty()) return {};
  return local_slice(transfer.tensor, sharding->mesh->shape, sharding->placements, coordinate);
}

}  // namespace dtorch
