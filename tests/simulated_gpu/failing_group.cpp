#include "failing_group.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace simulated_gpu {
namespace {

class FailedWork : public c10d::Work {
 public:
  explicit FailedWork(std::exception_ptr error) : error_(std::move(error)) {}
  bool isCompleted() override { return false; }
  bool isSuccess() const override { return false; }
  std::exception_ptr exception() const override { return error_; }
  bool wait(std::chrono::milliseconds) override { return true; }  // on the stream, as NCCL's
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
  }

 private:
  const std::exception_ptr error_;
};

class FailingGroup : public c10d::Backend {
 public:
  FailingGroup(int rank, int size, c10d::ErrorType error) : Backend(rank, size), error_(error) {}
  const std::string getBackendName() const override { return "nccl"; }
  c10d::ErrorType getError() override { return error_; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    std::exception_ptr error;
    if (error_ == c10d::ErrorType::SUCCESS) {
      error = std::make_exception_ptr(std::runtime_error("NCCL error: remote process has ended"));
    }
    return c10::make_intrusive<FailedWork>(error);
  }

 private:
  const c10d::ErrorType error_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> failing_group(int rank, int size, const std::string& how) {
  return c10::make_intrusive<FailingGroup>(
      rank, size, how == "timeout" ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::SUCCESS);
}

}  // namespace simulated_gpu
