#pragma once

#include <mpi.h>

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/mpi/communicator.h"
#include "collectives/mpi/datatypes.h"
#include "collectives/work.h"

namespace dtorch {

// A request as MPI requests. The communicator holds it until it has ended, since MPI uses its
// memory. A failed or aborted one whose requests are still open is held for good: MPI can't
// cancel a collective.
class MPIWork : public PolledWork {
 public:
  MPIWork(Request&& request, std::shared_ptr<Communicator> communicator);

  // Make the MPI calls; raises DistBackendError.
  void issue();
  int sourceRank() const override { return source_; }

 private:
  // Bytes to move within this process when all has arrived.
  struct Move {
    const char* from;
    char* to;
    int64_t bytes;
  };

  bool poll() override;
  void sleep(std::chrono::microseconds nap) override;
  void watch() override;

  void issue_all_reduce(const Block& block);
  void issue_reduce();
  void issue_all_gather(size_t part);
  void issue_gather();
  void issue_scatter();
  void issue_reduce_scatter(size_t part);
  void issue_all_to_all();
  void issue_send();
  void issue_recv();

  void broadcast_from(int root, char* data, int64_t bytes);
  void reduce_pieces(const char* from, char* to, int64_t count, int root);
  // The blocks in one piece of memory: their own if they lie end to end, else a buffer that is
  // filled from them (for reading) or emptied into them at the end (for writing).
  char* together_to_read(const Block* blocks, size_t n);
  char* together_to_write(const Block* blocks, size_t n);
  char* buffer(int64_t bytes);

  MPI_Request* new_request();
  void check(int code, const char* call) const { check_mpi(code, request_.caller, call); }
  MPI_Comm comm() const { return communicator_->comm(); }
  int rank() const { return request_.caller.rank; }
  int size() const { return request_.caller.size; }

  int64_t largest_count() const;
  void complete();
  void check_received(const MPI_Status& status);

  const std::shared_ptr<Communicator> communicator_;
  // One thread at a time looks at the requests: the waiter's or the background one.
  std::mutex polling_;
  std::vector<MPI_Request> requests_;
  size_t first_open_ = 0;
  std::vector<std::unique_ptr<char[]>> buffers_;
  std::vector<Move> moves_;
  // Arrays and types that MPI may read until the end.
  std::deque<std::vector<int>> counts_;
  std::deque<std::vector<MPI_Datatype>> type_lists_;
  std::deque<ByteType> types_;
  std::atomic<int> source_{kAnySource};
};

}  // namespace dtorch
