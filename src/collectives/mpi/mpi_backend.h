#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>

#include "collectives/checked_backend.h"
#include "collectives/mpi/communicator.h"

namespace dtorch {

// Some MPI libraries compute sizes in ints inside; a quarter of that range leaves room.
constexpr int64_t kLargestPiece = int64_t{1} << 29;

// CPU tensors over MPI's nonblocking collectives. Collectives end when MPI is called: in
// wait() and isCompleted(), now and then in later calls, or, once a future is asked for, in a
// background thread. Reductions are repeatable as far as MPI's are; float16 and bfloat16 are
// combined in float32 and rounded at each step.
//
// A send of a small tensor may complete before its receive is issued. alltoall_base takes split
// sizes on all members or on none. Differing shapes raise only where MPI notices.
class MPIBackend : public CheckedBackend {
 public:
  explicit MPIBackend(std::shared_ptr<Communicator> communicator);
  // Never waits: what is under way keeps its memory and the communicator until it ends.
  ~MPIBackend() override;

  // All that wait, and later calls, raise here; other members are not told. MPI can't cancel a
  // collective, so the memory of what is under way stays in use.
  void abort() override;
  // Wait for all that is under way.
  void shutdown() override;

  c10::intrusive_ptr<c10d::Work> start(Request&& request) override;

 private:
  const std::shared_ptr<Communicator> communicator_;
  uint64_t num_issued_ = 0;
};

// With `own` the backend takes `comm` over and frees it; without, it works on a duplicate,
// which makes this call collective. `largest` bounds the bytes of one plain piece: what is
// larger goes in pieces or through derived datatypes (tests set it low). DistBackendError if
// MPI is not running, ValueError if `largest` is not in 1..2^31-1.
c10::intrusive_ptr<c10d::Backend> make_mpi_backend(MPI_Comm comm, bool own,
                                                   int64_t largest = kLargestPiece);

}  // namespace dtorch
