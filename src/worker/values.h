// Values that come in, and answers that go out.
#pragma once

#include <cstring>
#include <unordered_set>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/tensor.h>

#include "device/pinned.h"
#include "worker/failure.h"
#include "worker/pending.h"
#include "worker/slots.h"

namespace dtorch {

// A host tensor's content on the worker's device, for operators that are issued from now on.
inline at::Tensor on_device(WorkerState& state, const at::Tensor& part) {
  // On a stream of its own a copy goes beside computation, which small ones don't repay.
  constexpr int64_t kBeside = 256 << 10;
  const auto& compute = state.streams.compute();
  const bool beside = part.nbytes() > kBeside;
  const c10::StreamGuard guard(beside ? state.streams.upload() : compute);
  auto made = at::empty_strided(part.sizes(), part.strides(), part.options().device(state.device));
  copy_to_device(part, made);
  if (beside) {
    DeviceStreams::order(compute, state.streams.upload());
    DeviceStreams::keep_for(compute, made);
  }
  return made;
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
    const WaitNote note(*state.activity, Activity::kRank0, state.site);
    if (!link.fetch(link.self, transfer, &part)) Reader::fail("a transfer that never came");
    if (sharding != 0 && part.defined()) part = in_order(std::move(part), strides);
  }
  if (part.defined() && state.streams.exist()) part = on_device(state, part);
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

inline DeviceGroups nccl_groups(const WorkerState& state) {
  DeviceGroups found;
  const auto add = [&](const c10::intrusive_ptr<c10d::Backend>& group) {
    if (group && group->getBackendName() == "nccl") found.push_back(group);
  };
  std::lock_guard<std::mutex> guard(state.graphs->meshes_mutex);
  add(state.graphs->everybody);
  for (const auto& [number, known] : state.graphs->meshes) {
    if (!known.member) continue;
    for (const auto& group : known.member->groups) add(group);
  }
  return found;
}

// Somebody waits for the answer, so whatever goes wrong is one. `make` fills it, and, where the device
// has still to do its part, says when that is done; false: this worker owes none.
template <class Make>
void answer(WorkerState& state, const WorkerLink& link, Reader& reader, Make&& make) {
  const PromiseName promise = reader.promise();
  Reply reply;
  std::optional<c10::Event> ready;
  bool owed = true;
  try {
    owed = make(&reply, &ready);
    if (owed && ready) {
      if (!state.handover) state.handover = std::make_unique<Handover>(link, state.device, state.graphs->collectives);
      auto before = state.graphs->collectives.under_way();
      auto groups = before.empty() ? DeviceGroups() : nccl_groups(state);
      state.handover->post({promise, std::move(reply), std::move(*ready),
                            place_of(state, "reading a value: "), std::move(before), std::move(groups)});
      return;
    }
  } catch (const std::exception& error) {
    reply = Reply();
    reply.failure = make_failure(state, "reading a value: " + message_of(error));
    mark_reported(state, reply.failure);
  }
  if (!owed || link.reply(link.self, &promise, &reply)) return;
  if (reply.value.defined()) {
    reply = Reply();
    reply.failure = make_failure(state, std::string("reading a value: ") + Handover::kTooLarge);
    if (link.reply(link.self, &promise, &reply)) return mark_reported(state, reply.failure);
  }
  Reader::fail("a promise of a wild place");
}

inline at::Tensor downloaded_in_pieces(const at::Tensor& tensor, const c10::Stream& compute,
                                       const c10::Stream& download) {
  struct Piece {
    at::Tensor target, staging;
    c10::Event ready;
  };
  auto host = at::empty(tensor.sizes(), tensor.options().device(c10::kCPU));
  const auto from = tensor.view({-1}), to = host.view({-1});
  DeviceStreams::order(download, compute);
  const c10::StreamGuard guard(download);
  const int64_t step = kStagingBytes / static_cast<int64_t>(tensor.element_size());
  std::optional<Piece> before;
  const auto take = [&] {
    if (!before) return;
    DeviceStreams::wait(before->ready);
    before->target.copy_(before->staging);
  };
  for (int64_t begin = 0; begin < from.numel(); begin += step) {
    const int64_t length = std::min(step, from.numel() - begin);
    const auto part = from.narrow(0, begin, length);
    auto staging = pinned_like(download.device_type(), part);
    staging.copy_(part, /*non_blocking=*/true);
    auto ready = DeviceStreams::mark(download);
    take();  // while the device copies this one
    before.emplace(to.narrow(0, begin, length), std::move(staging), std::move(ready));
  }
  take();
  return host;
}

// A device's tensor in host memory, as it is now: what follows in the stream may write to it. ready: when it
// is there.
inline at::Tensor downloaded(WorkerState& state, const at::Tensor& tensor, std::optional<c10::Event>* ready) {
  constexpr int64_t kSnapshot = 64 << 20;
  const auto &compute = state.streams.compute(), &download = state.streams.download();
  const auto resolved = tensor.resolve_conj().resolve_neg();
  if (resolved.nbytes() > kSnapshot) {
    // A second one might not fit on the device. In pieces, and the worker issues nothing meanwhile.
    return downloaded_in_pieces(resolved.contiguous(), compute, download);
  }
  const auto snapshot = resolved.is_alias_of(tensor) || !resolved.is_contiguous()
                            ? resolved.clone(at::MemoryFormat::Contiguous) : resolved;
  DeviceStreams::order(download, compute);
  DeviceStreams::keep_for(download, snapshot);
  const auto host = pinned_like(download.device_type(), snapshot);
  const c10::StreamGuard guard(download);
  host.copy_(snapshot, /*non_blocking=*/true);
  *ready = DeviceStreams::mark(download);
  return host;
}

inline bool read_slot(WorkerState& state, Reader& reader, uint32_t number, Reply* reply,
                      std::optional<c10::Event>* ready) {
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
    if (entry.tensor.device() == state.device && state.streams.exist()) {
      reply->value = downloaded(state, entry.tensor, ready);
      return true;
    }
    auto value = entry.tensor.resolve_conj().resolve_neg().contiguous();
    // A snapshot: what follows in the stream may write to the tensor.
    reply->value = value.is_alias_of(entry.tensor) ? value.clone() : value;
  }
  return true;
}

inline void get_value(WorkerState& state, const WorkerLink& link, Reader& reader, uint32_t number) {
  answer(state, link, reader, [&](Reply* reply, std::optional<c10::Event>* ready) {
    return read_slot(state, reader, number, reply, ready);
  });
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
  answer(state, link, reader, [&](Reply* reply, std::optional<c10::Event>*) {
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
  answer(state, link, reader, [&](Reply* reply, std::optional<c10::Event>* ready) {
    settle_all(state);
    if (!state.unreported.empty()) {
      reply->failure = take_unreported(state, state.unreported.begin());
    } else if (state.streams.exist()) {
      *ready = DeviceStreams::mark(state.streams.compute());
    }
    return true;
  });
}

}  // namespace dtorch
