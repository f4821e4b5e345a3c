#include "collectives/host_staged.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "collectives/work.h"
#include "device/streams.h"

namespace dtorch {
namespace {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

HostStagedWork::HostStagedWork(const Request& request, std::vector<StandIn> staged,
                               c10::Event issued)
    : Work(request.caller.rank, request.op_type),
      device_(request.caller.device),
      results_(request.results),
      staged_(std::move(staged)),
      issued_(std::move(issued)) {}

void HostStagedWork::start(CheckedBackend& inner, Request&& request) {
  DeviceStreams::wait(issued_);
  request.results.clear();
  inner_ = inner.start(std::move(request));
}

bool HostStagedWork::isCompleted() {
  if (!inner_->isCompleted()) return false;
  if (!inner_->exception()) bring_results();
  return true;
}

std::exception_ptr HostStagedWork::exception() const {
  if (const std::exception_ptr error = inner_->exception()) return error;
  std::lock_guard<std::mutex> lock(bringing_);
  return failure_;
}

bool HostStagedWork::wait(std::chrono::milliseconds timeout) {
  inner_->wait(timeout);
  bring_results();
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

void HostStagedWork::bring_results() {
  std::lock_guard<std::mutex> lock(bringing_);
  if (failure_) return;
  try {
    if (brought_) {
      brought_->block(current_stream(device_));
      return;
    }
    // Of another stream than the call's: what that one did before with the tensors comes first.
    issued_.block(current_stream(device_));
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (const StandIn& staged : staged_) {
      staged.callers.copy_(staged.dense, /*non_blocking=*/true);
      // Whoever frees it may have another stream, and may not wait for this one.
      DeviceStreams::keep_for(current_stream(device_), staged.callers);
    }
    brought_ = std::make_unique<c10::Event>(DeviceStreams::mark(current_stream(device_)));
    // The allocator of pinned memory keeps it until the copies have ended.
    staged_.clear();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> HostStagedWork::getFuture() {
  {
    std::lock_guard<std::mutex> lock(bringing_);
    if (device_future_) return device_future_;
    device_future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(),
                                                              std::vector<c10::Device>{device_});
  }
  inner_->getFuture()->addCallback(
      [self = c10::intrusive_ptr<HostStagedWork>::reclaim_copy(this)](c10::ivalue::Future&) {
        self->complete_future();
      },
      /*uses_future=*/false);
  return device_future_;
}

void HostStagedWork::complete_future() {
  if (!inner_->exception()) bring_results();
  if (const std::exception_ptr error = exception()) {
    device_future_->setError(error);
  } else {
    // Records events on the current stream, for which those that wait have theirs wait.
    device_future_->markCompleted(c10::IValue(results_));
  }
}

HostStagedBackend::HostStagedBackend(c10::intrusive_ptr<CheckedBackend> inner, c10::Device device)
    : CheckedBackend("dtorch-host-staged", inner->getRank(), inner->getSize(), device),
      inner_(std::move(inner)) {}

c10::intrusive_ptr<c10d::Work> HostStagedBackend::start(Request&& request) {
  auto staged = request.take_staged();
  auto issued = DeviceStreams::mark(current_stream(request.caller.device));
  auto work = c10::make_intrusive<HostStagedWork>(request, std::move(staged), std::move(issued));
  work->start(*inner_, std::move(request));
  return work;
}

c10::intrusive_ptr<c10d::Backend> make_host_staged_backend(
    const c10::intrusive_ptr<c10d::Backend>& inner, c10::Device device) {
  auto* checked = dynamic_cast<CheckedBackend*>(inner.get());
  TORCH_CHECK_TYPE(checked != nullptr, "host_staged: got the backend ", inner->getBackendName(),
                   ", expected one of ThreadGroup or MPIBackend");
  TORCH_CHECK_VALUE(!device.is_cpu() && device.has_index(), "host_staged: the device is ", device,
                    ", expected an accelerator with its index, as in cuda:0");
  return c10::make_intrusive<HostStagedBackend>(
      c10::intrusive_ptr<CheckedBackend>::reclaim_copy(checked), device);
}

}  // namespace dtorch
