#include "collectives/mpi/communicator.h"

#include "collectives/mpi/mpi_work.h"
#include "collectives/mpi/progress.h"

namespace dtorch {
namespace {

std::atomic<bool> finalize_has_begun{false};

// MPI_Finalize deletes the attributes of MPI_COMM_SELF before anything else.
int at_finalize(MPI_Comm, int, void*, void*) {
  finalize_has_begun.store(true);
  stop_progress();
  return MPI_SUCCESS;
}

void hear_of_finalize(const Caller& caller) {
  static std::once_flag once;
  std::call_once(once, [&] {
    int key = MPI_KEYVAL_INVALID;
    check_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &key, nullptr), caller,
              "MPI_Comm_create_keyval");
    check_mpi(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), caller, "MPI_Comm_set_attr");
  });
}

}  // namespace

bool mpi_is_running() {
  if (finalize_has_begun.load()) return false;
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

void check_mpi(int code, const Caller& caller, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  std::rethrow_exception(
      backend_error(caller, std::string(call) + " failed: " + std::string(text, length)));
}

Communicator::Communicator(MPI_Comm comm, int64_t largest) : comm_(comm), largest_(largest) {
  const Caller caller{"dtorch-mpi", "MPIBackend", 0, 0};
  hear_of_finalize(caller);
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), caller, "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), caller, "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size_), caller, "MPI_Comm_size");
  void* tag_limit = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_limit, &found), caller,
            "MPI_Comm_get_attr");
  // 32767 is what the standard grants.
  largest_tag_ = found ? *static_cast<int*>(tag_limit) : 32767;
}

Communicator::~Communicator() {
  if (mpi_is_running()) MPI_Comm_free(&comm_);
}

void Communicator::check_usable(const Caller& caller) const {
  if (!mpi_is_running()) {
    std::rethrow_exception(backend_error(
        caller, "MPI is not running: MPI_Finalize has been called (or MPI_Init never was)"));
  }
  if (is_aborted()) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::rethrow_exception(backend_error(caller, reason_));
  }
}

void Communicator::abort(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_aborted()) return;
  reason_ = "the backend was aborted: " + reason;
  is_aborted_.store(true, std::memory_order_release);
}

void Communicator::remember(const c10::intrusive_ptr<MPIWork>& work) {
  std::lock_guard<std::mutex> lock(mutex_);
  under_way_.emplace(work.get(), work);
}

void Communicator::forget(const MPIWork* work) {
  c10::intrusive_ptr<MPIWork> last_reference;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = under_way_.find(work);
  if (found == under_way_.end()) return;
  last_reference = std::move(found->second);
  under_way_.erase(found);
}

std::vector<c10::intrusive_ptr<MPIWork>> Communicator::under_way() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<c10::intrusive_ptr<MPIWork>> works;
  for (const auto& [key, work] : under_way_) works.push_back(work);
  return works;
}

void Communicator::poll_all() {
  for (auto& work : under_way()) work->isCompleted();
}

void Communicator::wait_all() {
  for (auto& work : under_way()) work->wait();
}

}  // namespace dtorch
