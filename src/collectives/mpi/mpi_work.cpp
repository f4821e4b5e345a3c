#include "collectives/mpi/mpi_work.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "collectives/mpi/progress.h"
#include "collectives/reduction.h"

namespace dtorch {

MPIWork::MPIWork(Request&& request, std::shared_ptr<Communicator> communicator)
    : PolledWork(std::move(request)), communicator_(std::move(communicator)) {}

bool MPIWork::poll() {
  if (ended()) return true;
  std::unique_lock<std::mutex> polling(polling_, std::try_to_lock);
  if (!polling.owns_lock() || ended()) return ended();
  bool is_open = true;
  try {
    communicator_->check_usable(request_.caller);
    while (first_open_ < requests_.size()) {
      int done = 0;
      MPI_Status status;
      check(MPI_Test(&requests_[first_open_], &done, &status), "MPI_Test");
      if (!done) return false;
      ++first_open_;
      if (request_.kind == Kind::recv) check_received(status);
    }
    is_open = false;
    complete();
    end();
  } catch (const c10::Error&) {
    const auto is_open_request = [](MPI_Request request) { return request != MPI_REQUEST_NULL; };
    is_open = std::any_of(requests_.begin(), requests_.end(), is_open_request);
    end(std::current_exception());
  }
  polling.unlock();
  // The last reference may go here.
  if (!is_open) communicator_->forget(this);
  return true;
}

void MPIWork::sleep(std::chrono::microseconds nap) { std::this_thread::sleep_for(nap); }

void MPIWork::watch() {
  progress_in_background(c10::intrusive_ptr<MPIWork>::reclaim_copy(this));
}

void MPIWork::check_received(const MPI_Status& status) {
  source_ = status.MPI_SOURCE;
  MPI_Count got = 0;
  check(MPI_Get_elements_x(const_cast<MPI_Status*>(&status), MPI_BYTE, &got),
        "MPI_Get_elements_x");
  const int64_t expected = request_.bytes(request_.out[0]);
  if (got != expected) {
    std::rethrow_exception(backend_error(
        request_.caller, "received " + std::to_string(got) + " bytes from rank " +
                             std::to_string(status.MPI_SOURCE) + ", expected " +
                             std::to_string(expected) +
                             "; pass a tensor of the size and dtype that is sent"));
  }
}

void MPIWork::complete() {
  for (const Move& move : moves_) std::memcpy(move.to, move.from, move.bytes);
  const bool has_result = request_.kind != Kind::reduce || request_.peer == rank();
  if (request_.reduce == Reduce::AVG && has_result) {
    for (const Block& block : request_.out) {
      divide_in_place(request_.dtype, block.data, block.count, size());
    }
  }
  buffers_.clear();
  types_.clear();
}

}  // namespace dtorch
