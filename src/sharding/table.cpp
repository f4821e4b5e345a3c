#include "sharding/table.h"

#include <algorithm>

namespace dtorch {

ShardingTable& ShardingTable::get() {
  static auto* table = new ShardingTable;
  return *table;
}

void ShardingTable::define_mesh(uint32_t number, std::vector<int64_t> shape,
                                std::vector<int32_t> workers) {
  int64_t size = 1;
  for (int64_t extent : shape) {
    TORCH_CHECK_VALUE(extent > 0 && extent <= (1 << 24), "a mesh axis of ", extent, " workers");
    size *= extent;
    TORCH_CHECK_VALUE(size <= (1 << 24), "a mesh of more than 2^24 workers");
  }
  TORCH_CHECK_VALUE(size == static_cast<int64_t>(workers.size()), "a mesh of shape ", shape, " and ",
                    workers.size(), " workers");
  auto mesh = std::make_shared<Mesh>();
  mesh->id = number;
  mesh->shape = std::move(shape);
  mesh->workers = std::move(workers);
  std::lock_guard<std::mutex> guard(mutex_);
  // All worker threads of a process define the same. After a shutdown numbers begin anew.
  auto& known = meshes_[number];
  if (!known || known->shape != mesh->shape || known->workers != mesh->workers) known = std::move(mesh);
}

void ShardingTable::define_sharding(uint32_t number, uint32_t mesh_number,
                                    const std::vector<int64_t>& packed) {
  auto mesh = this->mesh(mesh_number);
  TORCH_CHECK_VALUE(mesh != nullptr, "sharding ", number, " names mesh ", mesh_number,
                    ", which was never defined");
  TORCH_CHECK_VALUE(packed.size() == mesh->shape.size(), "a mesh of ", mesh->shape.size(),
                    " axes and ", packed.size(), " placements");
  auto sharding = std::make_shared<Sharding>();
  sharding->mesh = std::move(mesh);
  for (int64_t value : packed) sharding->placements.push_back(Placement::unpacked(value));
  std::lock_guard<std::mutex> guard(mutex_);
  auto& known = shardings_[number];
  if (!known || known->mesh != sharding->mesh || known->placements != sharding->placements) {
    known = std::move(sharding);
  }
}

void ShardingTable::clear() {
  std::lock_guard<std::mutex> guard(mutex_);
  meshes_.clear();
  shardings_.clear();
}

std::shared_ptr<const Mesh> ShardingTable::mesh(uint32_t number) const {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = meshes_.find(number);
  return found == meshes_.end() ? nullptr : found->second;
}

std::shared_ptr<const Sharding> ShardingTable::sharding(uint32_t number) const {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = shardings_.find(number);
  return found == shardings_.end() ? nullptr : found->second;
}

std::vector<int64_t> coordinate_of(const Mesh& mesh, int32_t worker) {
  auto found = std::find(mesh.workers.begin(), mesh.workers.end(), worker);
  if (found == mesh.workers.end()) return {};
  int64_t index = found - mesh.workers.begin();
  std::vector<int64_t> coordinate(mesh.shape.size());
  for (size_t axis = mesh.shape.size(); axis-- > 0;) {
    coordinate[axis] = index % mesh.shape[axis];
    index /= mesh.shape[axis];
  }
  return coordinate;
}

}  // namespace dtorch
