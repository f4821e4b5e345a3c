#include "sharding/redistribute.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>

#include "sharding/reshard.h"

namespace dtorch {

std::vector<RedistributeStep> plan_redistribute(const Placements& from, const Placements& to) {
  TORCH_INTERNAL_ASSERT(from.size() == to.size());
  const auto axes = from.size();
  std::vector<bool> leaves(axes);
  for (size_t axis = 0; axis < axes; ++axis) {
    leaves[axis] = !(from[axis] == to[axis]);
    // An axis that stays must still step aside while an outer one starts or stops cutting
    // the dim it cuts.
    if (!leaves[axis] && from[axis].is_shard())
      for (size_t outer = 0; outer < axis; ++outer)
        if (from[outer].is_shard(from[axis].dim) != to[outer].is_shard(from[axis].dim))
          leaves[axis] = true;
  }

  auto current = from;
  std::vector<RedistributeStep> steps;
  const auto step = [&](size_t axis, const Placement& next) {
    steps.push_back({static_cast<int64_t>(axis), current[axis], next});
    current[axis] = next;
  };
  // Inner axes leave first. One may go to its new dim at once if no outer axis has yet to
  // start or stop cutting that dim.
  for (size_t axis = axes; axis-- > 0;) {
    if (!leaves[axis] || current[axis].is_replicate()) continue;
    bool direct = to[axis].is_shard() && !(current[axis] == to[axis]);
    for (size_t outer = 0; outer < axis && direct; ++outer)
      direct = from[outer].is_shard(to[axis].dim) == to[outer].is_shard(to[axis].dim);
    step(axis, direct ? to[axis] : Placement::replicate());
  }
  for (size_t axis = 0; axis < axes; ++axis)
    if (!(current[axis] == to[axis])) step(axis, to[axis]);
  return steps;
}

namespace {

c10d::ReduceOp collective_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct: return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin: return c10d::ReduceOp::MIN;
    case ReduceOp::kMax: return c10d::ReduceOp::MAX;
    // Few backends average; all sum.
    default: return c10d::ReduceOp::SUM;
  }
}

at::Tensor averaged(const at::Tensor& total, ReduceOp op, int64_t count) {
  if (op != ReduceOp::kAvg) return total;
  return at::isIntegralType(total.scalar_type(), true) ? total.div(count, "trunc") : total.div(count);
}

// The same bytes in a dtype that every backend moves.
at::Tensor movable(const at::Tensor& data) {
  switch (data.scalar_type()) {
    case at::kByte: case at::kChar: case at::kInt: case at::kLong:
    case at::kHalf: case at::kBFloat16: case at::kFloat: case at::kDouble:
      return data;
    default:
      return data.flatten().view(at::kByte);
  }
}

// The same values in a dtype that every backend reduces. A sum or maximum of booleans is
// "any", a product or minimum is "all"; both are 0 or not 0 as bytes under max and min.
struct Reducible {
  at::Tensor data;
  ReduceOp op;
};

Reducible reducible(const at::Tensor& data, ReduceOp op) {
  if (data.is_complex()) {
    TORCH_CHECK_VALUE(op == ReduceOp::kSum || op == ReduceOp::kAvg,
                      "can reduce complex values by sum and avg only");
    return {at::view_as_real(data), op};
  }
  if (data.scalar_type() == at::kBool) {
    const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kAvg;
    return {data.view(at::kByte), any ? ReduceOp::kMax : ReduceOp::kMin};
  }
  return {data, op};
}

// A copy with `dim` in front, lengthened by zeros to `length` there.
at::Tensor to_front(const at::Tensor& data, int64_t dim, int64_t length) {
  auto front = data.movedim(dim, 0);
  auto sizes = front.sizes().vec();
  const auto size = sizes[0];
  sizes[0] = length;
  auto padded = at::empty(sizes, data.options());
  padded.narrow(0, 0, size).copy_(front);
  padded.narrow(0, size, length - size).zero_();
  return padded;
}

at::Tensor from_front(const at::Tensor& data, int64_t dim, int64_t start, int64_t size) {
  return data.narrow(0, start, size).movedim(0, dim).clone(at::MemoryFormat::Contiguous);
}

// One axis of the mesh, seen from one worker.
struct Axis {
  c10d::Backend& group;
  int64_t length;
  int64_t index;

  int64_t padded(int64_t size) const { return (size + length - 1) / length; }
};

// A part of a bucket's memory, which it keeps alive, as a storage of its own: what is done to a
// tensor's storage must not meet its neighbours.
at::Tensor own_storage(const at::Tensor& flat, int64_t start, at::IntArrayRef sizes) {
  auto part = flat.narrow(0, start, c10::multiply_integers(sizes));
  return at::from_blob(part.mutable_data_ptr(), sizes, [flat](void*) {}, flat.options());
}

PendingTensor all_reduce(at::Tensor result, ReduceOp op, const Axis& axis) {
  c10::intrusive_ptr<c10d::Work> work;
  if (result.numel() != 0) {
    auto [data, as] = reducible(result, op);
    std::vector<at::Tensor> tensors{data};
    c10d::AllreduceOptions options;
    options.reduceOp = collective_op(as);
    work = axis.group.allreduce(tensors, options);
  }
  return {work, [result, op, length = axis.length] { return averaged(result, op, length); }};
}

// Several of one dtype on a device, each in memory that its allocator knows, as DeviceStreams::keep_for needs.
std::vector<PendingTensor> all_reduce_each(const std::vector<at::Tensor>& locals, ReduceOp op, const Axis& axis) {
  std::vector<PendingTensor> results;
  std::vector<at::Tensor> tensors;
  c10d::AllreduceCoalescedOptions options;
  for (const auto& local : locals) {
    const auto result = local.clone(at::MemoryFormat::Contiguous);
    auto [data, as] = reducible(result, op);
    options.reduceOp = collective_op(as);
    if (data.numel() != 0) tensors.push_back(data);
    results.push_back({nullptr, [result, op, length = axis.length] { return averaged(result, op, length); }});
  }
  if (tensors.empty()) return results;
  const auto work = axis.group.allreduce_coalesced(tensors, options);
  for (auto& result : results) result.work = work;
  note_result(axis.group, *work, &results.front().device_results);
  return results;
}

PendingTensor reduce_scatter(const at::Tensor& local, ReduceOp op, int64_t dim, const Axis& axis) {
  const auto length = axis.padded(local.size(dim));
  auto input = to_front(local, dim, length * axis.length);
  auto sizes = input.sizes().vec();
  sizes[0] = length;
  auto output = at::empty(sizes, local.options());
  c10::intrusive_ptr<c10d::Work> work;
  if (input.numel() != 0) {
    auto [data, as] = reducible(input, op);
    auto into = reducible(output, op).data;
    c10d::ReduceScatterOptions options;
    options.reduceOp = collective_op(as);
    work = axis.group._reduce_scatter_base(into, data, options);
  }
  const auto size = piece_of(local.size(dim), axis.length, axis.index).size;
  return {work, [input, output, op, dim, size, length = axis.length] {
            return averaged(from_front(output, dim, 0, size), op, length);
          }};
}

PendingTensor all_gather(const at::Tensor& local, int64_t dim, int64_t whole, const Axis& axis) {
  const auto length = axis.padded(whole);
  auto input = to_front(local, dim, length);
  auto sizes = input.sizes().vec();
  sizes[0] = length * axis.length;
  auto output = at::empty(sizes, local.options());
  c10::intrusive_ptr<c10d::Work> work;
  if (output.numel() != 0) {
    auto data = movable(input), into = movable(output);
    work = axis.group._allgather_base(into, data);
  }
  // Only the last pieces can be short, so all padding is behind the values.
  return {work, [input, output, dim, whole] { return from_front(output, dim, 0, whole); }};
}

PendingTensor all_to_all(const at::Tensor& local, int64_t from, int64_t to, int64_t whole,
                         const Axis& axis) {
  // Both buffers hold one block of equal size a peer: [peer, to, from, other dims].
  const auto send = axis.padded(local.size(to)), receive = axis.padded(whole);
  const auto mine = piece_of(local.size(to), axis.length, axis.index).size;
  auto front = to_front(local, to, send * axis.length);
  // Moving `to` to the front shifts `from` by one where `from` stood before it.
  const auto from_at = from < to ? from + 1 : from;
  auto moved = front.movedim(from_at, 1);
  auto sizes = moved.sizes().vec();
  sizes[1] = receive;
  auto input = at::empty(sizes, local.options());
  input.narrow(1, 0, moved.size(1)).copy_(moved);
  input.narrow(1, moved.size(1), receive - moved.size(1)).zero_();
  sizes.insert(sizes.begin(), axis.length);
  sizes[1] = send;
  input = input.view(sizes);
  auto output = at::empty(sizes, local.options());
  c10::intrusive_ptr<c10d::Work> work;
  if (input.numel() != 0) {
    auto data = movable(input), into = movable(output);
    std::vector<int64_t> equal;
    work = axis.group.alltoall_base(into, data, equal, equal);
  }
  return {work, [input, output, mine, whole, from_at, to] {
            // [peer, to, from, ...] -> [to, peer * from, ...]
            auto joined = output.narrow(1, 0, mine).transpose(0, 1).flatten(1, 2).narrow(1, 0, whole);
            return joined.movedim(1, from_at).movedim(0, to).clone(at::MemoryFormat::Contiguous);
          }};
}

PendingTensor take(const RedistributeStep& step, const at::Tensor& local, int64_t whole,
                   const Axis& axis) {
  const auto& [_, from, to] = step;
  if (from.is_replicate()) {
    at::Tensor share = local;
    if (to.is_shard()) {
      const auto piece = piece_of(local.size(to.dim), axis.length, axis.index);
      share = local.narrow(to.dim, piece.start, piece.size);
    } else {
      share = partial_share(local, to.reduce_op, axis.index);
    }
    return ready(share.clone(at::MemoryFormat::Contiguous));
  }
  if (from.is_partial())
    return to.is_shard() ? reduce_scatter(local, from.reduce_op, to.dim, axis)
                         : all_reduce(local.clone(at::MemoryFormat::Contiguous), from.reduce_op, axis);
  return to.is_shard() ? all_to_all(local, from.dim, to.dim, whole, axis)
                       : all_gather(local, from.dim, whole, axis);
}

}  // namespace

PendingTensor start_redistribute(const at::Tensor& local, std::span<const int64_t> global_sizes,
                                 const Mesh& mesh, const MeshMember& member, const Placements& from,
                                 const Placements& to) {
  check_placements(global_sizes.size(), mesh.shape, from);
  check_placements(global_sizes.size(), mesh.shape, to);
  const auto expected = local_sizes(global_sizes, mesh.shape, from, member.coordinate);
  TORCH_CHECK_VALUE(local.sizes() == at::IntArrayRef(expected), "expected a local tensor of sizes ",
                    at::IntArrayRef(expected), " under ", to_string(from), ", got ", local.sizes());
  if (should_reshard(global_sizes, mesh, from, to))
    return reshard(local, global_sizes, mesh, member, from, to);
  auto current = from;
  auto result = ready(local);
  for (const auto& step : plan_redistribute(from, to)) {
    const Axis axis{*member.groups[step.axis], mesh.shape[step.axis],
                    member.coordinate[step.axis]};
    int64_t whole = 0;
    if (step.from.is_shard()) {
      // The axis is the innermost on this dim, so without it the dim has this size.
      current[step.axis] = Placement::replicate();
      whole = local_sizes(global_sizes, mesh.shape, current, member.coordinate)[step.from.dim];
    }
    auto results = std::move(result.device_results);
    result = take(step, result.get(), whole, axis);
    if (result.work) note_result(axis.group, *result.work, &results);
    result.device_results = std::move(results);
    current[step.axis] = step.to;
  }
  return result;
}

bool can_bucket(const Placements& from, const Placements& to) {
  const auto steps = plan_redistribute(from, to);
  return steps.size() == 1 && steps[0].from.is_partial() && steps[0].to.is_replicate();
}

std::vector<PendingTensor> start_bucket(const std::vector<at::Tensor>& locals, const Mesh& mesh,
                                        const MeshMember& member, const Placements& from,
                                        const Placements& to) {
  const auto step = plan_redistribute(from, to).at(0);
  const Axis axis{*member.groups[step.axis], mesh.shape[step.axis], member.coordinate[step.axis]};
  if (!locals.front().is_cpu()) return all_reduce_each(locals, step.from.reduce_op, axis);
  std::vector<at::Tensor> flat;
  for (const auto& local : locals) flat.push_back(local.reshape({-1}));
  const auto shared = std::make_shared<PendingTensor>(all_reduce(at::cat(flat), step.from.reduce_op, axis));
  const auto total = std::make_shared<at::Tensor>();
  std::vector<PendingTensor> results;
  int64_t start = 0;
  for (const auto& local : locals) {
    results.push_back({shared->work, [shared, total, start, sizes = local.sizes().vec()] {
                         if (!total->defined()) *total = shared->finish();
                         return own_storage(*total, start, sizes);
                       }});
    start += local.numel();
  }
  return results;
}

}  // namespace dtorch
