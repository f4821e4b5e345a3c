#include "sharding/transfer.h"

#include <algorithm>

#include <c10/util/Exception.h>

namespace dtorch {

bool Box::empty() const {
  return std::ranges::any_of(sizes, [](int64_t size) { return size <= 0; });
}

Box intersection(const Box& a, const Box& b) {
  Box both;
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    const int64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const int64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    both.offsets.push_back(begin);
    both.sizes.push_back(std::max<int64_t>(0, end - begin));
  }
  return both;
}

Box box_of(std::span<const int64_t> global_sizes, const Sharding& sharding,
           std::span<const int64_t> coordinate) {
  const auto& shape = sharding.mesh->shape;
  return {local_offsets(global_sizes, shape, sharding.placements, coordinate),
          local_sizes(global_sizes, shape, sharding.placements, coordinate)};
}

std::vector<Message> plan_transfer(std::span<const int64_t> global_sizes, const Sharding& from,
                                   const Sharding& to) {
  for (const auto* sharding : {&from, &to}) {
    check_placements(global_sizes.size(), sharding->mesh->shape, sharding->placements);
    TORCH_CHECK_VALUE(std::ranges::none_of(sharding->placements, &Placement::is_partial),
                      "partial sums can't go to another mesh: redistribute them first");
  }
  // Workers that hold the same part.
  struct Copies {
    Box box;
    std::vector<int32_t> workers;
  };
  std::vector<Copies> sources;
  for (int32_t worker : from.mesh->workers) {
    const auto box = box_of(global_sizes, from, coordinate_of(*from.mesh, worker));
    if (box.empty()) continue;
    auto known = std::ranges::find_if(sources, [&](const Copies& copies) {
      return copies.box.offsets == box.offsets && copies.box.sizes == box.sizes;
    });
    if (known == sources.end()) {
      sources.push_back({box, {worker}});
    } else {
      known->workers.push_back(worker);
    }
  }
  std::vector<Message> messages;
  for (size_t i = 0; i < to.mesh->workers.size(); ++i) {
    const int32_t worker = to.mesh->workers[i];
    const auto wanted = box_of(global_sizes, to, coordinate_of(*to.mesh, worker));
    for (const auto& [box, workers] : sources) {
      const auto part = intersection(box, wanted);
      if (part.empty()) continue;
      const bool is_own = std::ranges::find(workers, worker) != workers.end();
      messages.push_back({is_own ? worker : workers[i % workers.size()], worker, part});
    }
  }
  return messages;
}

}  // namespace dtorch
