#include "failing_group.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>

namespace simulated_gpu {
namespace {

std::atomic<int64_t> fail_from{0};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

// As NCCL's: waiting is for the stream, and its exception is found by a watchdog in a copy.
class GivenWork : public c10d::Work {
 public:
  explicit GivenWork(std::optional<c10d::WorkResult> result) {
    if (result) result_->markCompleted(c10::IValue(static_cast<int64_t>(*result)));
  }
  bool isCompleted() override { return false; }
  bool isSuccess() const override { return false; }
  bool wait(std::chrono::milliseconds) override { return true; }
  FuturePtr getFuture() override { return c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get()); }
  FuturePtr getFutureResult() override { return result_; }

 private:
  const FuturePtr result_ = c10::make_intrusive<c10::ivalue::Future>(c10::AnyEnumType::get());
};

class FailingGroup : public c10d::Backend {
 public:
  FailingGroup(int rank, int size, std::optional<c10d::WorkResult> result) : Backend(rank, size), result_(result) {}
  const std::string getBackendName() const override { return "nccl"; }
  c10d::ErrorType getError() override {
    return result_ ? c10d::ErrorType::SUCCESS : c10d::ErrorType::TIMEOUT;
  }
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&) override {
    return work_on(tensors[0].numel());
  }
  WorkPtr allreduce_coalesced(std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions&) override {
    int64_t elements = 0;
    for (const auto& tensor : tensors) elements += tensor.numel();
    return work_on(elements);
  }
  WorkPtr _reduce_scatter_base(at::Tensor&, at::Tensor& input, const c10d::ReduceScatterOptions&) override {
    return work_on(input.numel());
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor&, const c10d::AllgatherOptions&) override {
    return work_on(output.numel());
  }
  WorkPtr alltoall_base(at::Tensor&, at::Tensor& input, std::vector<int64_t>&, std::vector<int64_t>&,
                        const c10d::AllToAllOptions&) override {
    return work_on(input.numel());
  }
  WorkPtr send(std::vector<at::Tensor>& tensors, int, int) override {
    return work_on(tensors[0].numel());
  }
  WorkPtr recv(std::vector<at::Tensor>& tensors, int, int) override {
    tensors[0].zero_();
    return work_on(tensors[0].numel());
  }

 private:
  WorkPtr work_on(int64_t elements) const {
    const bool fails = elements >= fail_from.load();
    return c10::make_intrusive<GivenWork>(fails ? result_ : c10d::WorkResult::SUCCESS);
  }

  const std::optional<c10d::WorkResult> result_;  // none: the group alone knows
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> failing_group(int rank, int size, const std::string& how) {
  std::optional<c10d::WorkResult> result;
  if (how == "error") result = c10d::WorkResult::COMM_ERROR;
  if (how == "timeout") result = c10d::WorkResult::TIMEOUT;
  if (how == "success") result = c10d::WorkResult::SUCCESS;
  return c10::make_intrusive<FailingGroup>(rank, size, result);
}

void fail_collectives_from(int64_t elements) { fail_from = elements; }

}  // namespace simulated_gpu
