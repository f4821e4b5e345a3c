// Redistributions, and values whose collectives go on while other records run.
//
// A redistribution's last collective is begun and left to itself. Its slot waits when the value is
// wanted, and not before.
#pragma once

#include <utility>

#include <ATen/ops/zeros.h>

#include "profiling/record_event.h"
#include "worker/between_meshes.h"
#include "worker/failure.h"
#include "worker/graph_records.h"
#include "worker/slots.h"

namespace dtorch {

// A record of kRedistribute, read.
struct Redistribution {
  uint32_t input, output;
  bool into;  // an output that there is already
  c10::ScalarType dtype;
  Sizes sizes, strides;  // global ones
  uint32_t to_number;
  std::shared_ptr<const Sharding> from, to;
  Placements before;
  const MeshMember* member;  // of the input's mesh; null where this worker has no part in it
  bool is_between_meshes;
};

inline Redistribution read_redistribution(WorkerState& state, Reader& reader, uint32_t input, bool into) {
  Redistribution read;
  read.input = input;
  read.into = into;
  read.output = reader.expect(Tag::kOutput);
  read.dtype = reader.dtype();
  read.sizes = reader.int_list();
  read.strides = reader.int_list();
  if (read.sizes.size() != read.strides.size()) Reader::fail("sizes and strides of different lengths");
  const uint32_t from_number = reader.word();
  read.to_number = reader.word();
  read.to = state.sharding(read.to_number);
  const Mesh& mesh = *read.to->mesh;
  read.before = Placements(mesh.shape.size(), Placement::replicate());
  if (from_number != 0) read.from = state.sharding(from_number);
  if (read.from) read.before = read.from->placements;
  const Mesh& source = read.from ? *read.from->mesh : mesh;
  read.is_between_meshes = source.workers != mesh.workers || source.shape != mesh.shape;
  read.member = state.member(source);
  if (read.is_between_meshes && into) Reader::fail("a redistribution into a tensor of another mesh");
  return read;
}

// This worker's part of the input. Where it has no value: something of the right shape, since the
// others wait in the collective, and learn of the failure when the value is read.
inline at::Tensor own_part(WorkerState& state, const Redistribution& read, FailurePtr* failure) {
  const auto& shape = (read.from ? read.from : read.to)->mesh->shape;
  auto& input = state.known_slot(read.input);
  *failure = failure_of(state, input);
  check_placements(read.sizes.size(), shape, read.before);
  check_placements(read.sizes.size(), read.to->mesh->shape, read.to->placements);
  const auto expected = local_sizes(read.sizes, shape, read.before, read.member->coordinate);
  const at::Tensor local = input.tensor;
  if (!*failure && local.defined()) {
    if (local.sizes() == c10::IntArrayRef(expected) && local.scalar_type() == read.dtype) return local;
    *failure = make_failure(state, "redistribute: this worker's part is " + described(local, 0) +
                                       ", expected " + c10::toString(read.dtype) +
                                       c10::str(c10::IntArrayRef(expected)));
  }
  return at::zeros(expected, at::TensorOptions().dtype(read.dtype).device(state.device));
}

inline PendingValue new_pending(const WorkerState& state, const Redistribution& read) {
  PendingValue value;
  value.strides = read.strides;
  value.sharding = read.to_number;
  value.site = state.site;
  value.record = state.record;
  return value;
}

inline void fail_pending(WorkerState& state, const std::exception& error, PendingValue* value) {
  value->failure = make_failure(state, "redistribute: " + message_of(error));
  value->tensor = {nullptr, [] { return at::Tensor(); }};
}

// Failures of what a device does show up later, when a value is read that came behind.
inline void note_collectives(WorkerState& state, const PendingTensor& tensor) {
  state.graphs->collectives.note(tensor.device_results, state.site, record_of_graph(state.graph, state.record));
}

inline PendingValue start(WorkerState& state, const Redistribution& read) {
  const WaitNote note(*state.activity, Activity::kOthers, state.site);
  PendingValue value = new_pending(state, read);
  try {
    take_turn(state);
    if (read.is_between_meshes) {
      FailurePtr failure;
      at::Tensor local;
      if (read.member != nullptr) local = own_part(state, read, &failure);
      value.tensor = start_transfer(state, local, failure, read.dtype, read.sizes, *read.from, *read.to);
      note_collectives(state, value.tensor);
      return value;
    }
    const auto local = own_part(state, read, &value.failure);
    value.tensor = start_redistribute(local, read.sizes, *read.to->mesh, *read.member, read.before,
                                      read.to->placements);
    note_collectives(state, value.tensor);
    if (!value.tensor.work) {
      auto result = value.tensor.finish();
      if (result.is_same(local) && !read.into) result = result.clone();
      value.tensor.finish = [result = std::move(result)] { return result; };
    }
  } catch (const WireError&) {
    throw;
  } catch (const std::exception& error) {
    fail_pending(state, error, &value);
  }
  return value;
}

// Begins several redistributions, as one collective where that is possible.
inline void start_together(WorkerState& state, const std::vector<Redistribution>& reads,
                           std::vector<PendingValue>* values) {
  const auto& first = reads.front();
  const bool alike = reads.size() > 1 && std::ranges::all_of(reads, [&](const Redistribution& read) {
    return read.to_number == first.to_number && !read.is_between_meshes && read.before == first.before &&
           read.dtype == first.dtype;
  });
  if (!alike || !can_bucket(first.before, first.to->placements)) {
    for (const auto& read : reads) values->push_back(start(state, read));
    return;
  }
  const WaitNote note(*state.activity, Activity::kOthers, state.site);
  std::vector<at::Tensor> parts;
  for (const auto& read : reads) values->push_back(new_pending(state, read));
  try {
    take_turn(state);
    for (size_t i = 0; i < reads.size(); ++i) parts.push_back(own_part(state, reads[i], &(*values)[i].failure));
    auto tensors = start_bucket(parts, *first.to->mesh, *first.member, first.before, first.to->placements);
    note_collectives(state, tensors.front());
    for (size_t i = 0; i < reads.size(); ++i) (*values)[i].tensor = std::move(tensors[i]);
  } catch (const WireError&) {
    throw;
  } catch (const std::exception& error) {
    for (auto& value : *values) fail_pending(state, error, &value);
  }
}

// Has the collective go on by itself, and note when it ends.
inline void watch(PendingValue* value) {
  value->is_watched = true;
  if (value->tensor.work->isCompleted()) return;
  const auto future = value->tensor.work->getFuture();
  if (value->event.begin == 0) return;
  value->ended = std::make_shared<std::atomic<int64_t>>(0);
  future->addCallback([ended = value->ended](c10::ivalue::Future&) { ended->store(steady_ns()); });
}

inline void watch_pending(WorkerState& state) {
  for (auto& [slot, value] : state.pending) {
    if (!value.is_watched) watch(&value);
  }
  state.num_unwatched = 0;
}

// Puts the value where it belongs, without waiting.
inline void place(WorkerState& state, uint32_t slot, PendingValue value) {
  auto& entry = state.slot(slot);
  const bool goes_on = value.tensor.work != nullptr;
  entry = SlotEntry();
  entry.state = SlotEntry::State::kPending;
  state.num_unwatched += !value.is_watched;
  state.pending.insert_or_assign(slot, std::move(value));
  if (!goes_on || state.one_stream) state.settle(slot);
}

inline void WorkerState::settle(uint32_t number) {
  auto found = pending.find(number);
  PendingValue value = std::move(found->second);
  pending.erase(found);
  num_unwatched -= !value.is_watched;
  slots[number].state = SlotEntry::State::kEmpty;
  const auto record_now = std::exchange(record, value.record);
  const auto site_now = std::exchange(site, value.site);
  at::Tensor result;
  try {
    const WaitNote note(*activity, Activity::kOthers, value.site);
    result = value.tensor.get();
    if (!value.failure && result.defined()) result = in_order(std::move(result), value.strides);
  } catch (const FailedElsewhere& failed) {
    value.failure = failed.failure;
  } catch (const std::exception& error) {
    fail_pending(*this, error, &value);
  }
  if (C10_UNLIKELY(timeline.is_on())) resumed = steady_ns();
  if (value.event.begin != 0) {
    const int64_t ended = value.ended ? value.ended->load() : 0;
    value.event.end = ended != 0 ? ended : steady_ns();
    if (value.failure) value.event.flags |= Event::kFailed;
    timeline.note(value.event);
  }
  if (value.failure) {
    put_failure(*this, number, value.failure);
  } else {
    put_tensor(*this, number, std::move(result), value.sharding);
  }
  record = record_now;
  site = site_now;
}

inline void settle_all(WorkerState& state) {
  while (!state.pending.empty()) state.settle(state.pending.begin()->first);
  for (const auto& [work, message] : std::exchange(state.sending, {})) {
    try {
      const WaitNote note(*state.activity, Activity::kOthers, state.site);
      work->wait();
    } catch (const std::exception& error) {
      make_failure(state, std::string("sending a part to another mesh: ") + message_of(error));
    }
  }
}

// Begins the event of a redistribution that goes on, which ends when it does.
inline void begin_event(WorkerState& state, const uint32_t* record, uint16_t flags, PendingValue* value) {
  if (C10_LIKELY(!state.timeline.is_on()) || !value->tensor.work) return;
  value->event.begin = steady_ns();
  value->event.record = value->record;
  value->event.flags = flags;
  describe_record(record, &value->event);
  state.goes_on = true;
}

inline void run_redistribute(WorkerState& state, Reader& reader, uint32_t number, bool into) {
  const uint32_t* record = reader.position() - kHeaderWords;
  const auto read = read_redistribution(state, reader, number, into);
  if (read.is_between_meshes) everybody(state);
  if (read.member == nullptr && !read.is_between_meshes) return put_tensor(state, read.output, {}, read.to_number);
  PendingValue value = start(state, read);
  if (!into) {
    begin_event(state, record, state.flags, &value);
    return place(state, read.output, std::move(value));
  }
  at::Tensor result;
  try {
    const WaitNote note(*state.activity, Activity::kOthers, state.site);
    result = value.tensor.get();
    revive(state, read.output);
    auto& target = state.known_slot(read.output);
    if (!value.failure && target.state == SlotEntry::State::kTensor) target.tensor.copy_(result);
  } catch (const WireError&) {
    throw;
  } catch (const std::exception& error) {
    fail_pending(state, error, &value);
  }
  if (value.failure) spoil(state, read.output, value.failure);
}

}  // namespace dtorch
