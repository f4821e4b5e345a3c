// Values that come in, and answers that go out.
#pragma once

#include <cstring>
#include <unordered_set>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/tensor.h>

#include "worker/failure.h"
#include "worker/pending.h"
#include "worker/slots.h"

namespace dtorch {

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
    const WaitNote note(*state.activity, Activity::kRank0, state.site);
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

// Bytes and number of a graph's own tensors that slots hold; memory that several share counts once.
inline void live_memory(const WorkerState& state, int64_t* bytes, int64_t* tensors) {
  std::unordered_set<const c10::StorageImpl*> seen;
  for (const auto& entry : state.slots) {
    if (!entry.tensor.defined() || entry.is_import) continue;
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
