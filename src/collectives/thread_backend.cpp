#include "collectives/thread_backend.h"

#include <utility>

namespace dtorch {

ThreadGroup::ThreadGroup(int size) : size_(size), num_issued_(size > 0 ? size : 0) {
  TORCH_CHECK_VALUE(size > 0, "ThreadGroup: size is ", size, ", expected 1 or more");
}

ThreadGroup::~ThreadGroup() {
  for (auto& work : take_waiting()) work->fail("the group of worker threads is gone");
}

std::vector<c10::intrusive_ptr<ThreadWork>> ThreadGroup::take_waiting() {
  std::vector<c10::intrusive_ptr<ThreadWork>> waiting;
  const auto take = [&](Exchange& exchange) {
    for (auto& work : exchange.give_up()) waiting.push_back(std::move(work));
  };
  for (auto& exchange : collectives_) take(*exchange);
  for (auto& half : halves_) take(*half.exchange);
  collectives_.clear();
  halves_.clear();
  return waiting;
}

void ThreadGroup::abort(const std::string& reason) {
  std::vector<c10::intrusive_ptr<ThreadWork>> waiting;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_.empty()) return;
    aborted_ = "the group was aborted: " + reason;
    waiting = take_waiting();
  }
  // Without the lock: ending a work runs the callbacks of its future.
  for (auto& work : waiting) work->fail(aborted_);
}

std::shared_ptr<Exchange> ThreadGroup::next_collective(int rank) {
  const size_t index = num_issued_[rank]++ - num_full_;
  if (index == collectives_.size()) collectives_.push_back(std::make_shared<Exchange>(size_));
  return collectives_[index];
}

std::shared_ptr<Exchange> ThreadGroup::other_half(const Request& request) {
  const bool is_send = request.kind == Kind::send;
  const int from = is_send ? request.caller.rank : request.peer;
  const int to = is_send ? request.peer : request.caller.rank;
  for (auto half = halves_.begin(); half != halves_.end(); ++half) {
    const bool same_source =
        half->from == from || half->from == kAnySource || from == kAnySource;
    if (half->is_send != is_send && half->to == to && half->tag == request.tag && same_source) {
      std::shared_ptr<Exchange> exchange = std::move(half->exchange);
      halves_.erase(half);
      return exchange;
    }
  }
  auto exchange = std::make_shared<Exchange>(2);
  halves_.push_back({from, to, request.tag, is_send, exchange});
  return exchange;
}

c10::intrusive_ptr<ThreadWork> ThreadGroup::start(Request&& request) {
  const bool is_pair = request.kind == Kind::send || request.kind == Kind::recv;
  const int rank = request.caller.rank;
  std::shared_ptr<Exchange> exchange;
  c10::intrusive_ptr<ThreadWork> work;
  bool is_last = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_.empty()) std::rethrow_exception(backend_error(request.caller, aborted_));
    exchange = is_pair ? other_half(request) : next_collective(rank);
    const int place = !is_pair ? rank : request.kind == Kind::send ? 0 : 1;
    work = c10::make_intrusive<ThreadWork>(std::move(request), exchange);
    is_last = exchange->join(place, work);
    while (!collectives_.empty() && collectives_.front()->is_full()) {
      collectives_.pop_front();
      ++num_full_;
    }
  }
  if (is_last) exchange->run();
  return work;
}

ThreadBackend::ThreadBackend(std::shared_ptr<ThreadGroup> group, int rank)
    : CheckedBackend("dtorch-threads", rank, group->size()), group_(std::move(group)) {}

void ThreadBackend::abort() {
  group_->abort("rank " + std::to_string(rank_) + " called abort()");
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::start(Request&& request) {
  return group_->start(std::move(request));
}

c10::intrusive_ptr<c10d::Backend> make_thread_backend(std::shared_ptr<ThreadGroup> group,
                                                      int rank) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < group->size(), "ThreadGroup: rank is ", rank,
                    ", expected 0 to ", group->size() - 1);
  return c10::make_intrusive<ThreadBackend>(std::move(group), rank);
}

}  // namespace dtorch
