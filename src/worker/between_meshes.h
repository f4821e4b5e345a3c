// A redistribution from one mesh to another: point to point, so that the workers of neither wait
// for one another, and nobody else takes part.
#pragma once

#include <cstring>

#include <ATen/ops/from_blob.h>

#include "device/pinned.h"
#include "sharding/transfer.h"
#include "worker/state.h"

namespace dtorch {

// A message begins with what became of the part: whoever reads it at its goal must learn of a
// failure at its source.
class MessageHead {
 public:
  static constexpr int64_t kBytes = 2048;

  static void write(const FailurePtr& failure, char* bytes) {
    std::memset(bytes, 0, kBytes);
    if (!failure) return;
    const Fixed fixed{1, failure->site, failure->worker, failure->record};
    std::memcpy(bytes, &fixed, sizeof fixed);
    const size_t host = std::min<size_t>(failure->host.size(), kHost - 1);
    std::memcpy(bytes + sizeof fixed, failure->host.data(), host);
    const size_t text = std::min<size_t>(failure->text.size(), kBytes - sizeof fixed - kHost - 1);
    std::memcpy(bytes + sizeof fixed + kHost, failure->text.data(), text);
  }

  static FailurePtr read(const char* bytes) {
    Fixed fixed;
    std::memcpy(&fixed, bytes, sizeof fixed);
    if (fixed.has_failed == 0) return nullptr;
    auto failure = std::make_shared<Failure>();
    failure->site = fixed.site;
    failure->worker = fixed.worker;
    failure->record = fixed.record;
    failure->host = bytes + sizeof fixed;
    failure->text = bytes + sizeof fixed + kHost;
    return failure;
  }

 private:
  static constexpr size_t kHost = 256;
  struct Fixed {
    uint32_t has_failed, site;
    int32_t worker;
    uint64_t record;
  };
};

// The part was without a value where it came from.
struct FailedElsewhere : std::exception {
  explicit FailedElsewhere(FailurePtr failure) : failure(std::move(failure)) {}
  FailurePtr failure;
};

// All workers of the job, for messages between any two.
inline c10d::Backend& everybody(WorkerState& state) {
  if (!state.graphs->everybody) Reader::fail("a redistribution between meshes of a job of unknown size");
  return *state.graphs->everybody;
}

inline at::Tensor part_of(const at::Tensor& tensor, const Box& whole, const Box& box) {
  at::Tensor part = tensor;
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    part = part.narrow(static_cast<int64_t>(d), box.offsets[d] - whole.offsets[d], box.sizes[d]);
  }
  return part;
}

// The bytes of a message's tensor, behind its head.
inline at::Tensor body_of(const at::Tensor& message, c10::ScalarType dtype, const Box& box) {
  return message.narrow(0, MessageHead::kBytes, message.numel() - MessageHead::kBytes)
      .view(dtype)
      .view(box.sizes);
}

inline at::Tensor new_message(WorkerState& state, c10::ScalarType dtype, const Box& box) {
  const int64_t bytes = c10::multiply_integers(box.sizes) * static_cast<int64_t>(c10::elementSize(dtype));
  return at::empty({MessageHead::kBytes + bytes}, at::TensorOptions().dtype(at::kByte).device(state.device));
}

// Sends this worker's parts, and begins to take what it is sent. local: its part under `from`,
// anything of the right shape where it has failed; undefined where it has none. The result is
// undefined where `to` gives it none.
inline PendingTensor start_transfer(WorkerState& state, const at::Tensor& local, const FailurePtr& failure,
                                    c10::ScalarType dtype, std::span<const int64_t> sizes,
                                    const Sharding& from, const Sharding& to) {
  constexpr int kTags = 1 << 14;  // MPI has to allow for 32767
  const int tag = static_cast<int>(state.graphs->num_transfers++ % kTags);
  auto& group = everybody(state);
  std::erase_if(state.sending, [](const auto& sent) { return sent.first->isCompleted(); });
  struct Arriving {
    c10::intrusive_ptr<c10d::Work> work;  // null: from this worker itself
    at::Tensor message;
    Box box;
    DeviceResults results;
  };
  std::vector<Arriving> arriving;
  DeviceResults results;
  for (const auto& [source, goal, box] : plan_transfer(sizes, from, to)) {
    if (source != state.worker && goal != state.worker) continue;
    auto message = new_message(state, dtype, box);
    if (source == state.worker) {
      const auto whole = box_of(sizes, from, coordinate_of(*from.mesh, source));
      char head[MessageHead::kBytes];
      MessageHead::write(failure, head);
      const auto begin = message.narrow(0, 0, MessageHead::kBytes);
      const auto content = at::from_blob(head, {MessageHead::kBytes}, at::kByte);
      state.streams.exist() ? copy_to_device(content, begin) : void(begin.copy_(content));
      body_of(message, dtype, box).copy_(part_of(local, whole, box));
    }
    c10::intrusive_ptr<c10d::Work> work;
    std::vector<at::Tensor> one{message};
    if (goal != state.worker) {
      work = group.send(one, goal, tag);
      if (!work->isCompleted()) work->getFuture();  // goes on by itself
      note_result(group, *work, &results);
      state.sending.emplace_back(std::move(work), message);
      continue;
    }
    DeviceResults received;
    if (source != state.worker) {
      work = group.recv(one, source, tag);
      if (!work->isCompleted()) work->getFuture();
      note_result(group, *work, &received);
      results.insert(results.end(), received.begin(), received.end());
    }
    arriving.push_back({std::move(work), message, box, std::move(received)});
  }
  const auto coordinate = coordinate_of(*to.mesh, state.worker);
  if (coordinate.empty()) return ready(at::Tensor(), std::move(results));
  const auto last = std::ranges::find_if(arriving, [](const Arriving& one) { return one.work != nullptr; });
  const auto wait_for = last == arriving.end() ? nullptr : last->work;
  return {wait_for, [arriving = std::move(arriving), whole = box_of(sizes, to, coordinate), dtype,
                     device = state.device] {
            auto result = at::empty(whole.sizes, at::TensorOptions().dtype(dtype).device(device));
            for (const auto& [work, message, box, results] : arriving) {
              if (work) work->wait();
              const auto head = on_host(message.narrow(0, 0, MessageHead::kBytes));
              // The device goes on from a message that was given up, and has not written it.
              for (const auto& result : results) {
                if (const char* text = failure_of(result)) throw std::runtime_error(text);
              }
              if (auto failure = MessageHead::read(static_cast<const char*>(head.const_data_ptr()))) {
                throw FailedElsewhere(std::move(failure));
              }
              part_of(result, whole, box).copy_(body_of(message, dtype, box));
            }
            return result;
          },
          std::move(results)};
}

}  // namespace dtorch
