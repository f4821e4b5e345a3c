#pragma once

#include <mpi.h>

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/work.h"

namespace dtorch {

class MPIWork;

// False before MPI_Init and from the beginning of MPI_Finalize on. Destructors ask before any
// MPI call.
bool mpi_is_running();

// Raise DistBackendError with MPI's own text unless `code` is MPI_SUCCESS. `call` is the
// function's name.
void check_mpi(int code, const Caller& caller, const char* call);

// A communicator of our own, and the collectives under way on it: these hold memory that MPI
// reads and writes, so they live here until they end even if the user drops their Work.
class Communicator {
 public:
  // Takes `comm` over. `largest` bounds the bytes of one plain piece; what is larger goes in
  // pieces or through derived datatypes.
  Communicator(MPI_Comm comm, int64_t largest);
  ~Communicator();

  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  int64_t largest() const { return largest_; }
  int largest_tag() const { return largest_tag_; }

  // Raise if MPI has ended or the communicator was aborted.
  void check_usable(const Caller& caller) const;
  void abort(const std::string& reason);
  bool is_aborted() const { return is_aborted_.load(std::memory_order_acquire); }

  void remember(const c10::intrusive_ptr<MPIWork>& work);
  void forget(const MPIWork* work);
  // Look once at all that is under way.
  void poll_all();
  // Wait for all that is under way; raises what they raise.
  void wait_all();

 private:
  std::vector<c10::intrusive_ptr<MPIWork>> under_way() const;

  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 0;
  int largest_tag_ = 0;
  const int64_t largest_;
  std::atomic<bool> is_aborted_{false};
  mutable std::mutex mutex_;
  std::string reason_;
  std::unordered_map<const MPIWork*, c10::intrusive_ptr<MPIWork>> under_way_;
};

}  // namespace dtorch
