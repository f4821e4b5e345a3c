#include "collectives/mpi/progress.h"

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "collectives/mpi/mpi_work.h"

namespace dtorch {
namespace {

// One for the process, made at first need and never destroyed: it may outlive static objects.
class Progress {
 public:
  void add(const c10::intrusive_ptr<MPIWork>& work) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return;
    if (!is_running_) {
      std::thread([this] { run(); }).detach();
      is_running_ = true;
    }
    added_.push_back(work);
    changed_.notify_one();
  }

  void stop() {
    std::unique_lock<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
    // Not for ever: a future's callback that needs an interpreter which is gone never returns.
    idle_.wait_for(lock, std::chrono::seconds(1), [&] { return !is_polling_; });
  }

 private:
  void run() {
    std::vector<c10::intrusive_ptr<MPIWork>> works;
    Patience patience;
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopped_) {
      if (works.empty()) changed_.wait(lock, [&] { return stopped_ || !added_.empty(); });
      if (!added_.empty()) patience = Patience();
      for (auto& work : added_) works.push_back(std::move(work));
      added_.clear();
      if (stopped_) break;
      is_polling_ = true;
      lock.unlock();
      std::erase_if(works, [](auto& work) { return work->isCompleted(); });
      lock.lock();
      is_polling_ = false;
      idle_.notify_all();
      if (!works.empty() && !patience.spin()) changed_.wait_for(lock, patience.nap());
    }
    // What is left can no longer end: MPI may still own its memory.
    for (auto& work : works) work.release();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable idle_;
  std::vector<c10::intrusive_ptr<MPIWork>> added_;
  bool is_running_ = false;
  bool is_polling_ = false;
  bool stopped_ = false;
};

Progress& progress() {
  static auto* only = new Progress();
  return *only;
}

}  // namespace

void progress_in_background(const c10::intrusive_ptr<MPIWork>& work) {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  if (level == MPI_THREAD_MULTIPLE) {
    progress().add(work);
    return;
  }
  try {
    work->wait();
  } catch (const c10::Error&) {
    // The future carries the error.
  }
}

void stop_progress() { progress().stop(); }

}  // namespace dtorch
