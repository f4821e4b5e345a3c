#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/work.h"

namespace dtorch {

class ThreadWork;

// One collective, or one send with its receive, among threads. It gathers the members' works;
// the last one to arrive plans it as independent pieces (copies, and reductions in rank order)
// and begins to run them; members that wait meanwhile take pieces too. Nothing touches a
// member's memory before all have arrived, and whoever runs the last piece ends every work:
// so a work ends only when all have finished with its buffers, and an exchange that some
// member never joins can be given up at any time.
class Exchange {
 public:
  explicit Exchange(int num_members);

  // Add the work of a member; its place is its rank, for a send 0 and for a receive 1. True if
  // it was the last. The group serializes join(), is_full() and give_up().
  bool join(int place, const c10::intrusive_ptr<ThreadWork>& work);
  bool is_full() const { return num_joined_ == num_members_; }
  // The works that wait for members who will not come; the caller ends them.
  std::vector<c10::intrusive_ptr<ThreadWork>> give_up();

  // After the last has joined: plan, and run pieces until none is left to take.
  void run();
  // Run pieces if there are any.
  void help();
  // Until `work` has ended or there are pieces to take, at most `nap`.
  void sleep(const ThreadWork& work, std::chrono::microseconds nap);

 private:
  struct Transfer {
    std::vector<const char*> sources;
    std::vector<char*> destinations;
  };
  // Elements [begin, end) of a transfer.
  struct Piece {
    size_t transfer;
    int64_t begin;
    int64_t end;
  };

  std::string mismatch() const;
  void plan();
  void add(std::vector<const char*> sources, std::vector<char*> destinations, int64_t count);
  void run_piece(const Piece& piece) const;
  void end_all(const std::string& error);
  const Request& request(int place) const;

  std::vector<c10::intrusive_ptr<ThreadWork>> works_;
  const int num_members_;
  int num_joined_ = 0;

  bool reduces_ = false;
  Reduce op_ = Reduce::SUM;
  at::ScalarType dtype_ = at::kByte;
  int64_t item_size_ = 1;
  std::vector<Transfer> transfers_;
  std::vector<Piece> pieces_;
  std::atomic<bool> is_planned_{false};
  std::atomic<size_t> next_piece_{0};
  std::atomic<size_t> num_done_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
};

class ThreadWork : public PolledWork {
 public:
  ThreadWork(Request&& request, std::shared_ptr<Exchange> exchange);

  int sourceRank() const override { return source_; }
  // End it without a result.
  void fail(const std::string& why);

 private:
  friend class Exchange;

  bool poll() override;
  void sleep(std::chrono::microseconds nap) override { exchange_->sleep(*this, nap); }

  const std::shared_ptr<Exchange> exchange_;
  // The rank that a receive got its data from.
  std::atomic<int> source_{kAnySource};
};

}  // namespace dtorch
