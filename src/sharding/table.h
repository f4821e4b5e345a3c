// The meshes and shardings of this process, by the numbers under which records name them.
//
// Rank 0 fills its own when it defines one, a worker when the record comes; worker threads
// share their process's. Entries never change.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "sharding/placement.h"
#include "sharding/redistribute.h"

namespace dtorch {

struct Sharding {
  std::shared_ptr<const Mesh> mesh;
  Placements placements;
};

class ShardingTable {
 public:
  static ShardingTable& get();

  // Defining a number again is allowed with the same content (worker threads share a table).
  void define_mesh(uint32_t number, std::vector<int64_t> shape, std::vector<int32_t> workers);
  void define_sharding(uint32_t number, uint32_t mesh, const std::vector<int64_t>& packed);

  // For a runtime that starts again: its numbers start again too.
  void clear();

  // Null for a number that was never defined.
  std::shared_ptr<const Mesh> mesh(uint32_t number) const;
  std::shared_ptr<const Sharding> sharding(uint32_t number) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<uint32_t, std::shared_ptr<const Mesh>> meshes_;
  std::unordered_map<uint32_t, std::shared_ptr<const Sharding>> shardings_;
};

// The worker's coordinate in the mesh, row-major; empty if it is not part of it.
std::vector<int64_t> coordinate_of(const Mesh& mesh, int32_t worker);

}  // namespace dtorch
