// What Cython can't say: C++ exceptions caught without the GIL, and the pieces of a record's
// execution that throw. Each returns false and fills `failure` instead of throwing.
#pragma once

#include <unordered_set>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "capture/operator_info.h"
#include "sharding/parts.h"
#include "worker/arguments.h"
#include "worker/kernel_error.h"

namespace dtorch {

inline std::string described(const at::Tensor& tensor, uint32_t sharding) {
  if (!tensor.defined()) return "None";
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << tensor.sizes();
  if (sharding != 0) {
    if (auto found = ShardingTable::get().sharding(sharding)) text << " " << to_string(found->placements);
  }
  return text.str();
}

// LibTorch appends a C++ backtrace after the first line or "Exception raised from".
inline std::string first_part(const char* what) {
  std::string text(what);
  const size_t end = text.find("\nException raised from");
  return end == std::string::npos ? text : text.substr(0, end);
}

inline FailurePtr make_failure(WorkerState& state, const std::string& text) {
  constexpr size_t kMostUnreported = 1000, kMostText = 3000;
  auto failure = std::make_shared<Failure>();
  failure->text = text.substr(0, kMostText);
  failure->site = state.site;
  failure->record = state.record;
  failure->worker = state.worker;
  failure->host = state.host;
  ++state.num_failures;
  if (state.unreported.size() < kMostUnreported) {
    state.unreported.push_back(failure);
  } else {
    ++state.unlisted;
  }
  return failure;
}

inline std::string message_of(const std::exception& error) {
  std::string text;
  if (is_python_error(error, &text)) return text;
  if (const auto* c10_error = dynamic_cast<const c10::Error*>(&error)) {
    return first_part(c10_error->what_without_backtrace());
  }
  return first_part(error.what());
}

// worker/pending.h
void watch_pending(WorkerState& state);
void settle_all(WorkerState& state);

// Calls LibTorch with the arguments on state.stack, where the results come. call: its number in the
// record.
inline bool call_kernel(WorkerState& state, const WorkerOperator& op, uint32_t call, FailurePtr* failure) {
  try {
    if (!op.unchecked.empty()) op.unchecked.check(state.stack);
    if (C10_UNLIKELY(state.num_unwatched > 0)) watch_pending(state);
    if (C10_UNLIKELY(op.users != nullptr)) {
      op.users->call(*op.handle, call, state.device, &state.stack);
    } else {
      op.handle->callBoxed(state.stack);
    }
    ++state.num_operators;
    return true;
  } catch (const std::exception& error) {
    *failure = make_failure(state, op.name + "\x1f" + message_of(error));
    state.stack.clear();
  }
  return false;
}

inline const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Gives a slot that is about to be written over whole its value back, and every view of its memory:
// what was lost there does not matter any more. Not where it is only a part of its memory.
inline void revive(WorkerState& state, uint32_t slot) {
  const at::Tensor whole = state.known_slot(slot).tensor;
  const auto* storage = storage_of(whole);
  if (storage == nullptr || storage->nbytes() != whole.nbytes() || !whole.is_non_overlapping_and_dense()) return;
  if (state.spoiled.erase(storage) == 0) return;
  for (auto& entry : state.slots) {
    if (entry.state != SlotEntry::State::kFailed || storage_of(entry.tensor) != storage) continue;
    entry.state = SlotEntry::State::kTensor;
    entry.failure = nullptr;
  }
}

inline std::vector<uint32_t> slots_of_argument(Reader& reader) {
  std::vector<uint32_t> slots;
  const Tag tag = reader.peek();
  if (tag != Tag::kSlot && tag != Tag::kSlotList) return slots;
  uint32_t payload;
  reader.tag(&payload);
  if (tag == Tag::kSlot) {
    slots.push_back(payload);
  } else {
    reader.need(payload);
    for (uint32_t i = 0; i < payload; ++i) slots.push_back(reader.word());
  }
  std::erase(slots, kNoSlot);
  return slots;
}

// Revives what an operator's first argument names, but for what its second reads. reader: at the
// arguments.
inline void revive_written(WorkerState& state, Reader reader, uint32_t count) {
  const auto written = slots_of_argument(reader);
  const auto read = count > 1 ? slots_of_argument(reader) : std::vector<uint32_t>();
  for (uint32_t slot : written) {
    const auto* storage = storage_of(state.known_slot(slot).tensor);
    const bool reads_it = std::any_of(read.begin(), read.end(), [&](uint32_t other) {
      return storage_of(state.known_slot(other).tensor) == storage;
    });
    if (!reads_it) revive(state, slot);
  }
}

// Decodes an operator record and calls LibTorch; results are left on state.stack.
// absent: this worker is not part of it.
inline bool call_operator(WorkerState& state, Reader& reader, uint32_t count, uint32_t number,
                          uint32_t call, FailurePtr* failure, bool* absent) {
  state.stack.clear();
  if (C10_UNLIKELY(state.is_missing(number))) {
    ArgumentDecoder(state, reader).decode(count, &state.stack);
    *failure = make_failure(state, state.operators[number].name + "\x1fthis worker does not know the "
                            "operator: register it (dtorch_mpi.python_kernel, torch.library) before "
                            "dtorch_mpi.init(), where workers stay, in a module that every rank imports");
    return false;
  }
  const WorkerOperator& known = state.op(number);
  const c10::OperatorHandle& op = *known.handle;
  if (count != op.schema().arguments().size()) Reader::fail("another number of arguments than the operator has");
  if (C10_UNLIKELY(!state.spoiled.empty()) && known.writes_over) revive_written(state, reader, count);
  Obstacle obstacle = ArgumentDecoder(state, reader, !known.draws_by_place).decode(count, &state.stack);
  if (C10_UNLIKELY(obstacle.absent || obstacle.failure)) {
    *absent = obstacle.absent;
    *failure = std::move(obstacle.failure);
    return false;
  }
  return call_kernel(state, known, call, failure);
}

// The operator's tensor arguments in words, decoded again for the error text.
inline std::string arguments_in_words(WorkerState& state, Reader reader, uint32_t count) {
  std::string text;
  for (uint32_t i = 0; i < count && !reader.done(); ++i) {
    const Tag tag = reader.peek();
    if (tag == Tag::kSlot) {
      uint32_t slot;
      reader.tag(&slot);
      if (slot == kNoSlot) continue;
      auto& entry = state.known_slot(slot);
      text += (text.empty() ? "" : ", ") + described(entry.tensor, entry.sharding);
    } else if (tag == Tag::kSlotList || tag == Tag::kOptionalSlotList) {
      uint32_t length;
      reader.tag(&length);
      text += (text.empty() ? "" : ", ") + std::string("[") + std::to_string(length) + " tensors]";
      for (uint32_t k = 0; k < length; ++k) reader.word();
    } else {
      Stack ignored;
      ArgumentDecoder(state, reader).decode(1, &ignored);
    }
  }
  return text;
}

inline void put_value(WorkerState& state, uint32_t slot, const at::Tensor& value, uint32_t sharding) {
  auto& entry = state.slot(slot);
  entry.tensor = value;
  entry.failure = nullptr;
  entry.record = state.record;
  entry.sharding = sharding;
  entry.state = SlotEntry::State::kTensor;
}

// Puts the call's results, or its failure, where the record says.
inline void store_outputs(WorkerState& state, Reader& reader, const FailurePtr& failure, bool absent,
                          bool sharded) {
  size_t next = 0;
  const bool have = !failure && !absent;
  const auto store = [&](uint32_t number, const at::Tensor* value) {
    const uint32_t sharding = sharded ? reader.word() : 0;
    if (C10_LIKELY(have)) return put_value(state, number, *value, sharding);
    auto& entry = state.slot(number);
    entry.tensor = at::Tensor();
    entry.failure = failure;
    entry.record = state.record;
    entry.sharding = sharding;
    entry.state = absent ? SlotEntry::State::kAbsent : SlotEntry::State::kFailed;
  };
  while (!reader.done()) {
    uint32_t payload;
    const Tag tag = reader.tag(&payload);
    if (have && next >= state.stack.size()) Reader::fail("more outputs than the operator returns");
    const c10::IValue* value = have ? &state.stack[next++] : nullptr;
    if (tag == Tag::kOutput) {
      if (have && !value->isTensor()) Reader::fail("a slot for what is no tensor");
      store(payload, have ? &value->toTensor() : nullptr);
    } else if (tag == Tag::kOutputList) {
      if (have && (!value->isTensorList() || value->toListRef().size() != payload)) {
        Reader::fail("a list of outputs of another length than the operator returns");
      }
      for (uint32_t i = 0; i < payload; ++i) {
        store(reader.word(), have ? &value->toListRef()[i].toTensor() : nullptr);
      }
    } else if (tag != Tag::kOutputIgnored) {
      Reader::fail("a tag that opens no output");
    }
  }
}

// Takes a slot's value away, and that of every view of its memory.
inline void spoil(WorkerState& state, uint32_t slot, const FailurePtr& failure) {
  auto& entry = state.known_slot(slot);
  if (entry.state != SlotEntry::State::kTensor) return;
  if (entry.tensor.has_storage()) {
    const auto& storage = entry.tensor.storage();
    state.spoiled.emplace(storage.unsafeGetStorageImpl(), std::make_pair(storage, failure));
  }
  entry.state = SlotEntry::State::kFailed;
  entry.failure = failure;
}

// Takes away what the operator that made this slot has made.
inline void spoil_siblings(WorkerState& state, uint32_t slot, const FailurePtr& failure) {
  const uint64_t record = state.known_slot(slot).record;
  for (uint32_t other = 0; other < state.slots.size(); ++other) {
    const auto& entry = state.slots[other];
    if (entry.state == SlotEntry::State::kTensor && entry.record == record) spoil(state, other, failure);
  }
}

// A failed in-place operator leaves what it should have written without a value. One of PyTorch's without
// any return only checks what another has made (linalg.inv makes a matrix and an error code,
// then checks the code): that has no value then.
inline void spoil_written(WorkerState& state, Reader reader, uint32_t count, uint32_t number,
                          const FailurePtr& failure) {
  if (state.is_missing(number)) return;
  const auto& schema = state.op(number).handle->schema();
  const bool checks = schema.returns().empty() && !schema.is_mutable() && !state.op(number).users;
  if (!schema.is_mutable() && !checks) return;
  for (uint32_t i = 0; i < count; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    const Tag tag = reader.peek();
    uint32_t payload;
    if (tag == Tag::kSlot) {
      reader.tag(&payload);
      if (written && payload != kNoSlot) spoil(state, payload, failure);
      if (checks && payload != kNoSlot) spoil_siblings(state, payload, failure);
    } else if (tag == Tag::kSlotList || tag == Tag::kOptionalSlotList) {
      reader.tag(&payload);
      for (uint32_t k = 0; k < payload; ++k) {
        const uint32_t slot = reader.word();
        if (written && slot != kNoSlot) spoil(state, slot, failure);
      }
    } else {
      Stack ignored;
      ArgumentDecoder(state, reader).decode(1, &ignored);
    }
  }
}

// ---- the other records ----------------------------------------------------------------------

// What becomes of an operator that failed, or that this worker has no part in. count: as in the
// record. outputs: begins behind the arguments.
inline void settle_failure(WorkerState& state, const Reader& arguments, Reader& outputs, uint32_t count,
                           uint32_t number, const FailurePtr& failure, bool absent) {
  const uint32_t num_arguments = count & (kShardedOperator - 1);
  if (failure) {
    const size_t cut = failure->text.find('\x1f');
    if (cut != std::string::npos) {
      auto& text = const_cast<Failure&>(*failure).text;  // made just now, seen by nobody
      text = text.substr(0, cut) + "(" + arguments_in_words(state, arguments, num_arguments) + "): " +
             text.substr(cut + 1);
    }
    spoil_written(state, arguments, num_arguments, number, failure);
  }
  store_outputs(state, outputs, failure, absent, (count & kShardedOperator) != 0);
}

inline void run_operator(WorkerState& state, Reader& reader, uint32_t count, uint32_t number) {
  if (state.notes_flight) flight_record().note(number, state.site);
  const uint32_t call = reader.word();
  FailurePtr failure;
  bool absent = false;
  const Reader arguments = reader;
  if (C10_LIKELY(call_operator(state, reader, count & (kShardedOperator - 1), number, call, &failure, &absent))) {
    store_outputs(state, reader, nullptr, false, (count & kShardedOperator) != 0);
    state.stack.clear();  // else the outputs' memory would outlive their slots
    return;
  }
  state.stack.clear();
  settle_failure(state, arguments, reader, count, number, failure, absent);
}

// Write all of their first argument, and read none of it.
inline const std::unordered_set<std::string_view> kWritesOver = {
    "aten::copy_", "aten::zero_", "aten::fill_", "aten::normal_", "aten::uniform_",
    "aten::_foreach_copy_", "aten::_foreach_zero_"};

inline void define_operator(WorkerState& state, Reader& reader, uint32_t number) {
  constexpr uint32_t kMost = 1 << 15;
  const std::string name(reader.string()), overload(reader.string());
  if (number >= kMost) Reader::fail("an operator number beyond what PyTorch has");
  auto& dispatcher = c10::Dispatcher::singleton();
  auto op = dispatcher.findOp({name, overload});
  const bool is_users = is_users_operator(name);
  const bool is_known = op && op->hasSchema();
  if (!is_known && !is_users) Reader::fail(("operator " + name + ", which is not registered").c_str());
  // Random operators have kernels of our own, by which numbers do not depend on the mesh.
  const auto random = own_random_operator({name, overload});
  if (random) op = random;
  if (number >= state.operators.size()) state.operators.resize(number + 64);
  auto& entry = state.operators[number];
  entry = {};
  entry.name = overload.empty() ? name : name + "." + overload;
  if (is_known) {
    entry.handle = op;
    entry.draws_by_place = random.has_value();
    entry.unchecked = UncheckedArguments(op->schema());
    entry.writes_over = kWritesOver.contains(name);
    if (is_users) entry.users = std::make_shared<UsersOperator>();
  }
  if (state.notes_flight) flight_record().define_op(number, name);
}

inline void define_site(WorkerState& state, Reader& reader, uint32_t number) {
  const auto text = reader.string();
  if (state.notes_flight) flight_record().define_site(number, text);
}

inline void define_mesh(WorkerState& state, Reader& reader, uint32_t number) {
  const auto shape = reader.int_list(), workers = reader.int_list();
  // A group with a member that does not exist would be waited for.
  const std::unordered_set<int64_t> distinct(workers.begin(), workers.end());
  if (distinct.size() != workers.size()) Reader::fail("a mesh that names a worker twice");
  for (int64_t worker : workers) {
    if (worker < 0 || worker >= state.num_workers) Reader::fail("a mesh of workers that do not exist");
  }
  auto& table = ShardingTable::get();
  try {
    table.define_mesh(number, {shape.begin(), shape.end()}, {workers.begin(), workers.end()});
    const auto mesh = table.mesh(number);
    MeshMember member;
    member.coordinate = coordinate_of(*mesh, state.worker);
    if (member.coordinate.empty()) return;
    for (size_t axis = 0; axis < mesh->shape.size(); ++axis) {
      int64_t stride = 1;
      for (size_t inner = axis + 1; inner < mesh->shape.size(); ++inner) stride *= mesh->shape[inner];
      int64_t origin = 0, outer = 1;
      for (size_t a = mesh->shape.size(); a-- > 0; outer *= mesh->shape[a]) {
        if (a != axis) origin += member.coordinate[a] * outer;
      }
      std::vector<int32_t> line;
      for (int64_t i = 0; i < mesh->shape[axis]; ++i) line.push_back(mesh->workers[origin + i * stride]);
      member.groups.push_back(state.make_group(line, static_cast<int>(member.coordinate[axis])));
    }
    state.members[number] = std::move(member);
  } catch (const WireError&) {
    throw;
  } catch (const std::exception& error) {
    make_failure(state, std::string("making a mesh: ") + message_of(error));
  }
}

inline void define_sharding(WorkerState& state, Reader& reader, uint32_t number) {
  const uint32_t mesh = reader.word();
  const auto placements = reader.int_list();
  try {
    ShardingTable::get().define_sharding(number, mesh, {placements.begin(), placements.end()});
  } catch (const std::exception& error) {
    Reader::fail(error.what());
  }
}

inline void free_slot(WorkerState& state, uint32_t number) {
  auto& entry = state.known_slot(number);
  entry.tensor = at::Tensor();
  entry.failure = nullptr;
  entry.state = SlotEntry::State::kEmpty;
  if (C10_UNLIKELY(!state.spoiled.empty())) {
    // What only the table holds has no view left that could be read.
    std::erase_if(state.spoiled, [](const auto& item) { return item.second.first.use_count() == 1; });
  }
}

inline void put_tensor(WorkerState& state, uint32_t number, at::Tensor tensor, uint32_t sharding) {
  auto& entry = state.slot(number);
  entry.state = tensor.defined() ? SlotEntry::State::kTensor : SlotEntry::State::kAbsent;
  entry.tensor = std::move(tensor);
  entry.failure = nullptr;
  entry.record = state.record;
  entry.sharding = sharding;
}

inline void put_failure(WorkerState& state, uint32_t number, const FailurePtr& failure) {
  auto& entry = state.slot(number);
  entry.state = SlotEntry::State::kFailed;
  entry.tensor = at::Tensor();
  entry.failure = failure;
}

// This worker's part with its dims in memory in the order of the global strides, which the
// client counts on: whether a view is possible, for one.
inline at::Tensor in_order(at::Tensor part, const Sizes& global_strides) {
  if (part.dim() != static_cast<int64_t>(global_strides.size())) Reader::fail("strides for another tensor");
  const auto wanted = local_strides({global_strides.data(), global_strides.size()},
                                    {part.sizes().data(), part.sizes().size()});
  if (part.numel() == 0 || part.strides() == c10::IntArrayRef(wanted)) return part;
  return at::empty_strided(part.sizes(), wanted, part.options()).copy_(part);
}

inline void upload(WorkerState& state, const WorkerLink& link, Reader& reader, uint32_t number) {
  const auto dtype = reader.dtype();
  const auto sizes = reader.int_list(), strides = reader.int_list();
  const uint32_t sharding = reader.word();
  at::Tensor part;
  if (reader.peek() == Tag::kString) {
    const auto bytes = reader.string();
    if (sizes.size() != strides.size()) Reader::fail("sizes and strides of different lengths");
    uint64_t elements = 1;
    for (int64_t size : sizes) {
      if (size < 0 || size > (1 << 20)) Reader::fail("an inline tensor of a wild size");
      elements *= static_cast<uint64_t>(size);
      if (elements > (1 << 20)) Reader::fail("an inline tensor of a wild size");
    }
    int64_t span = elements ? 1 : 0;
    for (size_t d = 0; d < sizes.size() && elements; ++d) {
      if (strides[d] < 0 || strides[d] > (1 << 20)) Reader::fail("an inline tensor of wild strides");
      span += (sizes[d] - 1) * strides[d];
    }
    if (elements * c10::elementSize(dtype) != bytes.size() || span != static_cast<int64_t>(elements)) {
      Reader::fail("an inline tensor whose bytes do not fit its sizes");
    }
    part = at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype));
    std::memcpy(part.mutable_data_ptr(), bytes.data(), bytes.size());
  } else {
    const auto transfer = static_cast<uint64_t>(reader.int_value());
    if (!link.fetch(link.self, transfer, &part)) Reader::fail("a transfer that never came");
    if (sharding != 0 && part.defined()) part = in_order(std::move(part), strides);
  }
  if (part.defined() && !state.device.is_cpu()) part = part.to(state.device);
  put_tensor(state, number, std::move(part), sharding);
}

// Takes a failure off the list of what is still to be told.
inline FailurePtr take_unreported(WorkerState& state, std::vector<FailurePtr>::iterator at) {
  FailurePtr failure = *at;
  state.unreported.erase(at);
  if (state.unreported.empty() && state.unlisted > 0) {
    auto last = std::make_shared<Failure>(*failure);
    last->text += "\n(" + std::to_string(state.unlisted) + " more operators failed after a thousand "
                  "failures that nobody had read)";
    state.unlisted = 0;
    return last;
  }
  return failure;
}

// A failure that no live value leads to any more: reported at the next read or sync.
inline FailurePtr take_orphan(WorkerState& state) {
  for (auto it = state.unreported.begin(); it != state.unreported.end(); ++it) {
    if (it->use_count() == 1) return take_unreported(state, it);
  }
  return nullptr;
}

inline void mark_reported(WorkerState& state, const FailurePtr& failure) {
  auto found = std::find(state.unreported.begin(), state.unreported.end(), failure);
  if (found != state.unreported.end()) take_unreported(state, found);
}

// Somebody waits for the answer, so whatever goes wrong is one. `make` fills it; false: this
// worker owes none.
template <class Make>
void answer(WorkerState& state, const WorkerLink& link, Reader& reader, Make&& make) {
  const PromiseName promise = reader.promise();
  Reply reply;
  bool owed = true;
  try {
    owed = make(&reply);
  } catch (const std::exception& error) {
    reply = Reply();
    reply.failure = make_failure(state, "reading a value: " + message_of(error));
    mark_reported(state, reply.failure);
  }
  if (!owed || link.reply(link.self, &promise, &reply)) return;
  if (reply.value.defined()) {
    reply = Reply();
    reply.failure = make_failure(state, "reading a value: it is larger than its reader expects");
    if (link.reply(link.self, &promise, &reply)) return mark_reported(state, reply.failure);
  }
  Reader::fail("a promise of a wild place");
}

inline bool read_slot(WorkerState& state, Reader& reader, uint32_t number, Reply* reply) {
  const uint32_t sharding_number = reader.word();
  bool wanted = state.worker == 0;
  if (sharding_number != 0) {
    const auto sharding = state.sharding(sharding_number);
    const MeshMember* member = state.member(*sharding->mesh);
    if (member == nullptr) return false;
    wanted = is_needed(sharding->placements, member->coordinate);
  }
  auto& entry = state.known_slot(number);
  reply->failure = failure_of(state, entry);
  if (!reply->failure) {
    reply->failure = take_orphan(state);
  } else {
    mark_reported(state, reply->failure);
  }
  if (!reply->failure && wanted && entry.tensor.defined()) {
    TORCH_CHECK_VALUE(entry.tensor.dim() <= kMaxDims, "expected a tensor of ", kMaxDims, " dims at "
                      "most to read, got ", entry.tensor.dim(), ": flatten some of them first");
    auto value = entry.tensor.resolve_conj().resolve_neg().to(c10::kCPU).contiguous();
    // A snapshot: what follows in the stream may write to the tensor.
    reply->value = value.is_alias_of(entry.tensor) ? value.clone() : value;
  }
  return true;
}

inline void get_value(WorkerState& state, const WorkerLink& link, Reader& reader, uint32_t number) {
  answer(state, link, reader, [&](Reply* reply) { return read_slot(state, reader, number, reply); });
}

// Bytes and number of the tensors that slots hold; memory that several share counts once.
inline void live_memory(const WorkerState& state, int64_t* bytes, int64_t* tensors) {
  std::unordered_set<const c10::StorageImpl*> seen;
  for (const auto& entry : state.slots) {
    if (!entry.tensor.defined()) continue;
    ++*tensors;
    if (!entry.tensor.has_storage()) continue;
    const auto& storage = entry.tensor.storage();
    if (seen.insert(storage.unsafeGetStorageImpl()).second) *bytes += storage.nbytes();
  }
}

// The metadata of a slot as an int64 tensor: dtype, dim, offset, sizes, strides; empty for an
// undefined tensor.
inline void describe_slot(WorkerState& state, const WorkerLink& link, Reader& reader, uint32_t number) {
  answer(state, link, reader, [&](Reply* reply) {
    const auto& entry = state.known_slot(number);
    reply->failure = failure_of(state, entry);
    if (reply->failure) {
      mark_reported(state, reply->failure);
      return true;
    }
    std::vector<int64_t> words;
    if (entry.tensor.defined()) {
      const auto& tensor = entry.tensor;
      words = {static_cast<int64_t>(tensor.scalar_type()), tensor.dim(), tensor.storage_offset()};
      words.insert(words.end(), tensor.sizes().begin(), tensor.sizes().end());
      words.insert(words.end(), tensor.strides().begin(), tensor.strides().end());
    }
    reply->value = at::tensor(words, at::kLong);
    return true;
  });
}

inline void sync(WorkerState& state, const WorkerLink& link, Reader& reader) {
  answer(state, link, reader, [&](Reply* reply) {
    settle_all(state);
    if (!state.unreported.empty()) reply->failure = take_unreported(state, state.unreported.begin());
    return true;
  });
}

}  // namespace dtorch
