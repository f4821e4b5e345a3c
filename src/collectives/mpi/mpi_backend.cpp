#include "collectives/mpi/mpi_backend.h"

#include <limits>

#include "collectives/mpi/mpi_work.h"

namespace dtorch {
namespace {

// Calls between two looks at all that is under way, for works that nobody waits for.
constexpr uint64_t kLookEvery = 16;

}  // namespace

MPIBackend::MPIBackend(std::shared_ptr<Communicator> communicator)
    : CheckedBackend("dtorch-mpi", communicator->rank(), communicator->size()),
      communicator_(std::move(communicator)) {}

MPIBackend::~MPIBackend() {
  if (mpi_is_running()) communicator_->poll_all();
}

void MPIBackend::abort() {
  communicator_->abort("rank " + std::to_string(rank_) + " called abort()");
}

void MPIBackend::shutdown() { communicator_->wait_all(); }

c10::intrusive_ptr<c10d::Work> MPIBackend::start(Request&& request) {
  communicator_->check_usable(request.caller);
  TORCH_CHECK_VALUE(request.tag <= communicator_->largest_tag(), request.caller.text(), "tag is ",
                    request.tag, ", expected at most ", communicator_->largest_tag(),
                    ", the largest that this MPI takes");
  if (++num_issued_ % kLookEvery == 0) communicator_->poll_all();
  auto work = c10::make_intrusive<MPIWork>(std::move(request), communicator_);
  communicator_->remember(work);
  work->issue();
  return work;
}

c10::intrusive_ptr<c10d::Backend> make_mpi_backend(MPI_Comm comm, bool own, int64_t largest) {
  TORCH_CHECK_VALUE(largest > 0 && largest <= std::numeric_limits<int>::max(),
                    "MPIBackend: largest is ", largest, ", expected 1 to 2^31-1");
  const Caller caller{"dtorch-mpi", "MPIBackend", 0, 0};
  if (!mpi_is_running()) {
    std::rethrow_exception(backend_error(
        caller, "MPI is not running; import mpi4py.MPI first, and do not finalize it"));
  }
  MPI_Comm owned = comm;
  if (!own) check_mpi(MPI_Comm_dup(comm, &owned), caller, "MPI_Comm_dup");
  return c10::make_intrusive<MPIBackend>(std::make_shared<Communicator>(owned, largest));
}

}  // namespace dtorch
