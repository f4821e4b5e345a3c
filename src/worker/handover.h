// Answers that a device has still to make: handed over by a thread of their own, so that the worker goes on
// issuing and nobody waits for the device as a whole.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "transport/backoff.h"
#include "transport/link.h"
#include "worker/device_collectives.h"

namespace dtorch {

using DeviceGroups = std::vector<c10::intrusive_ptr<c10d::Backend>>;

class Handover {
 public:
  // collectives: of the worker, in which it notes what it has told.
  Handover(const WorkerLink& link, c10::Device device, DeviceCollectives& collectives)
      : link_(link), device_(device), collectives_(collectives) {}
  ~Handover() {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  struct Item {
    PromiseName promise;
    Reply reply;        // its value in host memory that the device writes to
    c10::Event ready;   // when it has
    Failure place;      // of the read, should the device fail
    std::vector<DeviceCollective> before;  // under way when it was issued
    DeviceGroups groups;                   // that may be theirs, and know what their works don't
  };

  void post(Item item) {
    std::lock_guard<std::mutex> guard(mutex_);
    items_.push_back(std::move(item));
    ++left_;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.notify_all();
  }

  // Whether all has been handed over.
  bool is_empty() {
    std::lock_guard<std::mutex> guard(mutex_);
    return left_ == 0;
  }

 private:
  static constexpr int kSpins = 200;

  void run() {
    // A thread that has chosen none takes memory of the first device for itself.
    const c10::DeviceGuard guard(device_);
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_over_ || !items_.empty(); });
      if (is_over_) return;
      Item item = std::move(items_.front());
      items_.pop_front();
      lock.unlock();
      const bool ended = wait(&item);
      if (ended) hand_over(&item);
      lock.lock();
      --left_;
      if (!ended) return;
    }
  }

  // False: the worker is gone.
  bool wait(Item* item) {
    Backoff backoff(kSpins);
    try {
      while (true) {
        // Behind a collective that was given up the device goes on, with what was in memory.
        const bool is_ready = item->ready.query();
        if (auto failure = failure_of(item)) {
          item->reply = {at::Tensor(), std::move(failure)};
          return true;
        }
        if (is_ready) return true;
        backoff.pause();
        std::lock_guard<std::mutex> guard(mutex_);
        if (is_over_) return false;
      }
    } catch (...) {
      item->reply = {at::Tensor(), failed(item->place, std::current_exception())};
    }
    return true;
  }

  FailurePtr failure_of(Item* item) {
    std::erase_if(item->before, [](const DeviceCollective& one) { return has_succeeded(one.result); });
    if (item->before.empty()) return nullptr;
    for (const auto& collective : item->before) {
      const char* text = dtorch::failure_of(collective.result);
      if (auto failure = text ? failed(*item, collective, text) : nullptr) return failure;
    }
    // What another member has told of is no failure of this one's works: the oldest waits for it.
    for (const auto& group : item->groups) {
      const auto error = group->getError();
      if (error == c10d::ErrorType::SUCCESS) continue;
      const bool is_late = error == c10d::ErrorType::TIMEOUT;
      return failed(*item, item->before.front(),
                    device_failure(is_late ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR));
    }
    return nullptr;
  }

  // Who reads a value is told each time, since it is none; who syncs, once. Null: told before.
  FailurePtr failed(const Item& item, const DeviceCollective& collective, const char* text) {
    const bool is_new = collectives_.tell(collective.record);
    if (!is_new && !item.reply.value.defined()) return nullptr;
    auto failure = std::make_shared<Failure>(item.place);
    failure->text = std::string("redistribute: ") + text;
    failure->site = collective.site;
    failure->record = collective.record;
    return failure;
  }
  static FailurePtr failed(Failure place, const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const c10::Error& known) {
      place.text += known.what_without_backtrace();
    } catch (const std::exception& known) {
      place.text += known.what();
    }
    return std::make_shared<Failure>(std::move(place));
  }

  void hand_over(Item* item) {
    // Whoever reads in this process keeps the value; pinned memory is for passing through.
    if (item->promise.home == Home::kMemory && item->reply.value.defined()) {
      item->reply.value = item->reply.value.clone();
    }
    if (link_.reply(link_.self, &item->promise, &item->reply) || !item->reply.value.defined()) return;
    Failure place = item->place;
    place.text += kTooLarge;
    item->reply = {at::Tensor(), std::make_shared<Failure>(std::move(place))};
    link_.reply(link_.self, &item->promise, &item->reply);
  }

 public:
  static constexpr const char* kTooLarge = "it is larger than its reader expects";

 private:
  const WorkerLink link_;
  const c10::Device device_;
  DeviceCollectives& collectives_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  size_t left_ = 0;  // those being handed over too
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace dtorch
