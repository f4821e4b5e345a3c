#include "sharding/reshard.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace dtorch {
namespace {

// Ascending ranges of the indices of a dim.
using Runs = std::vector<Piece>;

int64_t size_of(const Runs& runs) {
  return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                         [](int64_t total, const Piece& run) { return total + run.size; });
}

Runs common(const Runs& left, const Runs& right) {
  Runs found;
  for (const auto& a : left) {
    for (const auto& b : right) {
      const auto start = std::max(a.start, b.start);
      const auto end = std::min(a.start + a.size, b.start + b.size);
      if (start < end) found.push_back({start, end - start});
    }
  }
  return found;
}

// Along one axis after the other, each element goes to where its destinations have their
// coordinate. Behind some axes a worker holds, of what workers that differ from it on those
// axes had, what workers that differ from it on the others want.
struct Route {
  std::span<const int64_t> sizes;
  const std::vector<int64_t>& mesh;
  const Placements& from;
  const Placements& to;

  // The indices of `dim` that `placements` give to a coordinate; where `is_free`, to any.
  Runs region(const Placements& placements, int64_t dim, const std::vector<int64_t>& coordinate,
              const std::vector<bool>& is_free) const {
    Runs runs{{0, sizes[dim]}};
    for (size_t axis = 0; axis < mesh.size(); ++axis) {
      if (!placements[axis].is_shard(dim)) continue;
      Runs cut;
      for (const auto& [start, size] : runs) {
        for (int64_t index = 0; index < mesh[axis]; ++index) {
          if (!is_free[axis] && index != coordinate[axis]) continue;
          const auto piece = piece_of(size, mesh[axis], index);
          if (piece.size != 0) cut.push_back({start + piece.start, piece.size});
        }
      }
      runs = std::move(cut);
    }
    return runs;
  }

  // For each dim, what a coordinate holds behind the axes that are `done`.
  std::vector<Runs> held(const std::vector<int64_t>& coordinate,
                         const std::vector<bool>& done) const {
    auto waiting = done;
    waiting.flip();
    std::vector<Runs> all;
    for (size_t dim = 0; dim < sizes.size(); ++dim)
      all.push_back(common(region(from, dim, coordinate, done), region(to, dim, coordinate, waiting)));
    return all;
  }

  // Whether an axis keeps cutting a dim that no other axis starts or stops cutting.
  bool is_settled(size_t axis) const {
    if (!(from[axis] == to[axis])) return false;
    for (size_t other = 0; other < mesh.size(); ++other)
      if (from[other].is_shard(from[axis].dim) != to[other].is_shard(from[axis].dim)) return false;
    return true;
  }
};

// Of a tensor that holds `has` of a dim, what is in `wants` too.
at::Tensor part_of(const at::Tensor& data, int64_t dim, const Runs& has, const Runs& wants) {
  std::vector<at::Tensor> parts;
  int64_t start = 0;
  for (const auto& run : has) {
    for (const auto& [first, size] : common({run}, wants))
      parts.push_back(data.narrow(dim, start + first - run.start, size));
    start += run.size;
  }
  if (parts.empty()) return data.narrow(dim, 0, 0);
  return parts.size() == 1 ? parts[0] : at::cat(parts, dim);
}

at::Tensor part_of(at::Tensor data, const std::vector<Runs>& has, const std::vector<Runs>& wants) {
  for (size_t dim = 0; dim < has.size(); ++dim)
    data = part_of(data, dim, has[dim], common(has[dim], wants[dim]));
  return data;
}

// What each peer has for this worker, in the peers' order.
std::vector<at::Tensor> exchanged(const std::vector<at::Tensor>& parts,
                                  const std::vector<std::vector<int64_t>>& sizes,
                                  c10d::Backend& group, DeviceResults* results) {
  const auto width = parts[0].element_size();
  std::vector<at::Tensor> flat;
  std::vector<int64_t> sent, received, counts;
  for (size_t peer = 0; peer < parts.size(); ++peer) {
    flat.push_back(parts[peer].flatten());
    sent.push_back(flat.back().numel() * width);
    counts.push_back(c10::multiply_integers(sizes[peer]));
    received.push_back(counts.back() * width);
  }
  // As bytes: backends do not move every dtype.
  auto output = at::empty({c10::sum_integers(counts)}, parts[0].options());
  auto input = at::cat(flat).view(at::kByte), into = output.view(at::kByte);
  const auto work = group.alltoall_base(into, input, received, sent);  // it may move the sizes out
  note_result(group, *work, results);
  work->wait();
  std::vector<at::Tensor> pieces;
  int64_t start = 0;
  for (size_t peer = 0; peer < parts.size(); ++peer) {
    pieces.push_back(output.narrow(0, start, counts[peer]).view(sizes[peer]));
    start += counts[peer];
  }
  return pieces;
}

// The pieces side by side along `dim`, in the order of their indices.
at::Tensor joined(const std::vector<at::Tensor>& pieces, const std::vector<Runs>& runs,
                  int64_t dim) {
  std::vector<std::pair<int64_t, at::Tensor>> parts;
  for (size_t peer = 0; peer < pieces.size(); ++peer) {
    int64_t start = 0;
    for (const auto& run : runs[peer]) {
      parts.emplace_back(run.start, pieces[peer].narrow(dim, start, run.size));
      start += run.size;
    }
  }
  if (parts.empty()) return pieces[0];
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<at::Tensor> ordered;
  for (auto& [_, part] : parts) ordered.push_back(std::move(part));
  return at::cat(ordered, dim);
}

// The most that a worker holds.
int64_t largest(std::span<const int64_t> sizes, const Mesh& mesh, const Placements& placements) {
  const std::vector<int64_t> first(mesh.shape.size(), 0);
  return c10::multiply_integers(local_sizes(sizes, mesh.shape, placements, first));
}

}  // namespace

bool should_reshard(std::span<const int64_t> global_sizes, const Mesh& mesh,
                    const Placements& from, const Placements& to) {
  for (size_t axis = 0; axis < from.size(); ++axis) {
    const bool reduces = from[axis].is_partial() || to[axis].is_partial();
    if (reduces && !(from[axis] == to[axis])) return false;
  }
  const auto limit = std::max(largest(global_sizes, mesh, from), largest(global_sizes, mesh, to));
  auto current = from;
  for (const auto& step : plan_redistribute(from, to)) {
    current[step.axis] = step.to;
    if (largest(global_sizes, mesh, current) > limit) return true;
  }
  return false;
}

PendingTensor reshard(const at::Tensor& local, std::span<const int64_t> global_sizes,
                      const Mesh& mesh, const MeshMember& member, const Placements& from,
                      const Placements& to) {
  const Route route{global_sizes, mesh.shape, from, to};
  std::vector<size_t> order(mesh.shape.size());
  std::iota(order.begin(), order.end(), 0);
  // Axes that only drop go first, those that only add go last.
  const auto rank = [&](size_t axis) {
    return !from[axis].is_shard() ? 0 : to[axis].is_shard() ? 1 : 2;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rank(a) < rank(b); });

  std::vector<bool> done(order.size(), false);
  DeviceResults results;
  at::Tensor data = local;
  for (size_t axis : order) {
    const auto before = done;
    done[axis] = true;
    const auto has = route.held(member.coordinate, before);
    const auto wants = route.held(member.coordinate, done);
    if (!from[axis].is_shard() || route.is_settled(axis)) {
      data = part_of(data, has, wants);
      continue;
    }
    const auto dim = from[axis].dim;
    std::vector<at::Tensor> parts;
    std::vector<std::vector<int64_t>> sizes;
    std::vector<Runs> runs;
    for (int64_t peer = 0; peer < mesh.shape[axis]; ++peer) {
      auto coordinate = member.coordinate;
      coordinate[axis] = peer;
      parts.push_back(part_of(data, has, route.held(coordinate, done)));
      const auto theirs = route.held(coordinate, before);
      auto& size = sizes.emplace_back();
      for (size_t d = 0; d < theirs.size(); ++d)
        size.push_back(size_of(common(theirs[d], wants[d])));
      runs.push_back(common(theirs[dim], wants[dim]));
    }
    data = joined(exchanged(parts, sizes, *member.groups[axis], &results), runs, dim);
  }
  return ready(data.clone(at::MemoryFormat::Contiguous), std::move(results));
}

}  // namespace dtorch
