// Rank 0's side of replies: receives that are posted, and blocks in shared memory.
#pragma once

#include <map>
#include <memory>

#include "transport/mpi/message.h"

namespace dtorch {

// One worker's answer as a message: an MPI_Irecv that poll() looks at.
class NetworkReply {
 public:
  NetworkReply(int rank, int tag, MPI_Comm comm)
      : rank_(rank), tag_(tag), comm_(comm), block_(new char[kRoom]) {
    requests_.emplace_back();
    check_mpi(MPI_Irecv(block_.get(), static_cast<int>(kRoom), MPI_BYTE, rank, tag, comm,
                        &requests_.back()), "MPI_Irecv");
  }

  bool poll() {
    while (!done_) {
      int arrived = 0;
      check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &arrived,
                            MPI_STATUSES_IGNORE), "MPI_Testall");
      if (!arrived) return false;
      if (block_) {
        size_t rest = 0;
        reply = read_reply(block_.get(), kRoom, &rest);
        block_.reset();
        post_rest(rest);
        done_ = rest == 0;
      } else {
        done_ = true;
      }
    }
    return true;
  }

  Reply reply;

 private:
  // For any first message, whatever the size of the value that was asked for: one that a message
  // did not fit would end the job.
  static constexpr size_t kRoom = sizeof(TensorHeader) + kInline;

  // A large value's data comes behind its header, from the same rank under the same tag.
  void post_rest(size_t rest) {
    requests_.clear();
    requests_.reserve(rest / kPiece + 1);
    char* at = rest ? static_cast<char*>(reply.value.mutable_data_ptr()) : nullptr;
    while (rest > 0) {
      const size_t piece = std::min(rest, kPiece);
      requests_.emplace_back();
      check_mpi(MPI_Irecv(at, static_cast<int>(piece), MPI_BYTE, rank_, tag_, comm_, &requests_.back()),
                "MPI_Irecv");
      at += piece;
      rest -= piece;
    }
  }

  int rank_, tag_;
  MPI_Comm comm_;
  std::unique_ptr<char[]> block_;  // not touched beyond what arrives
  std::vector<MPI_Request> requests_;
  bool done_ = false;
};

// Replies whose future was dropped: their receives must still be completed.
inline std::vector<std::shared_ptr<NetworkReply>>& abandoned() {
  static auto* list = new std::vector<std::shared_ptr<NetworkReply>>;
  return *list;
}
inline void abandon(std::vector<std::shared_ptr<NetworkReply>>& replies) {
  for (auto& reply : replies) {
    if (!reply->poll()) abandoned().push_back(reply);
  }
}
inline std::shared_ptr<NetworkReply> expect_network(int rank, int tag, MPI_Comm comm) {
  std::erase_if(abandoned(), [](const auto& reply) { return reply->poll(); });
  return std::make_shared<NetworkReply>(rank, tag, comm);
}

// A block of shared memory opens with a word that says whether the reply is there.
inline size_t block_header() { return 64; }
inline void publish(char* block) {
  reinterpret_cast<std::atomic<uint64_t>*>(block)->store(1, std::memory_order_release);
}
inline bool published(const char* block) {
  return reinterpret_cast<const std::atomic<uint64_t>*>(block)->load(std::memory_order_acquire) != 0;
}
inline void clear(char* block) {
  reinterpret_cast<std::atomic<uint64_t>*>(block)->store(0, std::memory_order_release);
}

// Hands out pieces of the shared window, first fit. Used by the client's threads under the GIL.
class SharedBoard {
 public:
  SharedBoard(char* memory, size_t size) : memory_(memory) { free_[0] = static_cast<int64_t>(size); }

  // -1 where there is no room.
  int64_t allocate(size_t bytes) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < static_cast<int64_t>(bytes)) continue;
      const auto [place, size] = *it;
      free_.erase(it);
      if (size > static_cast<int64_t>(bytes)) free_[place + bytes] = size - bytes;
      used_[place] = static_cast<int64_t>(bytes);
      return place;
    }
    return -1;
  }
  void release(int64_t place) {
    auto used = used_.find(place);
    int64_t size = used->second;
    used_.erase(used);
    auto next = free_.lower_bound(place);
    if (next != free_.end() && place + size == next->first) {
      size += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      auto previous = std::prev(next);
      if (previous->first + previous->second == place) {
        previous->second += size;
        return;
      }
    }
    free_[place] = size;
  }
  char* at(int64_t place) { return memory_ + place; }

 private:
  char* memory_;
  std::map<int64_t, int64_t> free_, used_;  // place -> bytes
};

}  // namespace dtorch
