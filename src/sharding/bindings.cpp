// Python's view of the room, for tests and for putting values together on the client.
#include <torch/csrc/utils/pybind.h>

#include "sharding/redistribute.h"
#include "sharding/table.h"

namespace dtorch {
namespace {

namespace py = pybind11;
using Sizes = std::vector<int64_t>;

Placements unpacked(const Sizes& packed) {
  Placements placements;
  for (auto value : packed) placements.push_back(Placement::unpacked(value));
  return placements;
}

// torch holds its backends by a pointer type of its own, so only the bare pointer is shared.
MeshMember member_of(const Sizes& coordinate, const py::list& groups) {
  MeshMember member{coordinate, {}};
  for (const auto& group : groups)
    member.groups.push_back(
        c10::intrusive_ptr<c10d::Backend>::reclaim_copy(group.cast<c10d::Backend*>()));
  return member;
}

}  // namespace
}  // namespace dtorch

PYBIND11_MODULE(_sharding, module) {
  using namespace dtorch;
  module.doc() = "Placements, and moving tensors between them. Placements are packed integers.";
  pybind11::module_::import("torch.distributed");

  module.def("define_mesh", [](uint32_t number, const Sizes& shape, std::vector<int32_t> workers) {
    ShardingTable::get().define_mesh(number, shape, std::move(workers));
  });
  module.def("define_sharding", [](uint32_t number, uint32_t mesh, const Sizes& packed) {
    ShardingTable::get().define_sharding(number, mesh, packed);
  });
  module.def("forget_all", [] { ShardingTable::get().clear(); });
  module.def("local_sizes", [](const Sizes& sizes, const Sizes& mesh, const Sizes& placements,
                               const Sizes& coordinate) {
    return local_sizes(sizes, mesh, unpacked(placements), coordinate);
  });
  module.def("local_offsets", [](const Sizes& sizes, const Sizes& mesh, const Sizes& placements,
                                 const Sizes& coordinate) {
    return local_offsets(sizes, mesh, unpacked(placements), coordinate);
  });
  module.def("local_strides", [](const Sizes& strides, const Sizes& sizes) {
    return local_strides(strides, sizes);
  });
  module.def("is_even", [](const Sizes& sizes, const Sizes& mesh, const Sizes& placements) {
    const auto given = unpacked(placements);
    check_placements(sizes.size(), mesh, given);
    return is_even(sizes, mesh, given);
  });
  module.def("local_slice", [](const at::Tensor& full, const Sizes& mesh, const Sizes& placements,
                               const Sizes& coordinate) {
    return local_slice(full, mesh, unpacked(placements), coordinate);
  });
  module.def("assemble", [](const std::vector<std::optional<at::Tensor>>& shards,
                            const Sizes& sizes, const Sizes& mesh, const Sizes& placements) {
    std::vector<at::Tensor> given;
    for (const auto& shard : shards) given.push_back(shard.value_or(at::Tensor()));
    return assemble(given, sizes, mesh, unpacked(placements));
  });
  module.def("plan_redistribute", [](const Sizes& from, const Sizes& to) {
    std::vector<std::tuple<int64_t, int64_t, int64_t>> steps;
    for (const auto& step : plan_redistribute(unpacked(from), unpacked(to)))
      steps.emplace_back(step.axis, step.from.packed(), step.to.packed());
    return steps;
  });
  module.def("redistribute", [](const at::Tensor& local, const Sizes& sizes, const Sizes& mesh,
                                const Sizes& coordinate, const pybind11::list& groups,
                                const Sizes& from, const Sizes& to) {
    const auto member = member_of(coordinate, groups);
    pybind11::gil_scoped_release no_gil;
    return start_redistribute(local, sizes, Mesh{0, mesh, {}}, member, unpacked(from), unpacked(to)).get();
  });
}
