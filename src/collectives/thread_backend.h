#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/checked_backend.h"
#include "collectives/exchange.h"

namespace dtorch {

// What `size` worker threads of one process share for their collectives. ValueError if the
// size is not positive.
class ThreadGroup {
 public:
  explicit ThreadGroup(int size);
  ~ThreadGroup();

  int size() const { return size_; }
  // Every member that waits, and every later call, raises DistBackendError with this reason.
  // Collectives that all members have joined still end.
  void abort(const std::string& reason);

 private:
  friend class ThreadBackend;

  // A send or a receive that waits for its other side.
  struct Half {
    int from;
    int to;
    int tag;
    bool is_send;
    std::shared_ptr<Exchange> exchange;
  };

  c10::intrusive_ptr<ThreadWork> start(Request&& request);
  std::shared_ptr<Exchange> next_collective(int rank);
  std::shared_ptr<Exchange> other_half(const Request& request);
  std::vector<c10::intrusive_ptr<ThreadWork>> take_waiting();

  const int size_;
  std::mutex mutex_;
  std::string aborted_;
  // Collectives that some member has yet to join; the first has number num_full_.
  std::deque<std::shared_ptr<Exchange>> collectives_;
  uint64_t num_full_ = 0;
  std::vector<uint64_t> num_issued_;
  std::list<Half> halves_;
};

// Member `rank` of the group, for CPU tensors. Each member may be used from one thread at a
// time. A send completes when its receive has the data. Reductions run in rank order, so every
// member gets the same bits, every time. abort() aborts the group.
class ThreadBackend : public CheckedBackend {
 public:
  ThreadBackend(std::shared_ptr<ThreadGroup> group, int rank);

  void abort() override;

  c10::intrusive_ptr<c10d::Work> start(Request&& request) override;

 private:
  const std::shared_ptr<ThreadGroup> group_;
};

// ValueError if the group has no such rank.
c10::intrusive_ptr<c10d::Backend> make_thread_backend(std::shared_ptr<ThreadGroup> group,
                                                      int rank);

}  // namespace dtorch
