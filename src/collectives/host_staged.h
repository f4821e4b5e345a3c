#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>

#include "collectives/checked_backend.h"

namespace dtorch {

// A collective of the inner backend on pinned memory, whose results come to the caller's tensors
// on the current stream of whoever first sees that it has ended: in wait(), in isCompleted(), or
// in the thread that completes the future. A stream of another that waits then waits for theirs.
// Of a Work that is dropped unseen the results are lost; the other members' are not.
class HostStagedWork : public c10d::Work {
 public:
  // `issued`: behind all that the current stream was given before and in the call.
  HostStagedWork(const Request& request, std::vector<StandIn> staged, c10::Event issued);

  // Begin, once the copies to pinned memory have ended.
  void start(CheckedBackend& inner, Request&& request);

  bool isCompleted() override;
  bool isSuccess() const override { return !exception(); }
  std::exception_ptr exception() const override;
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return results_; }
  // Makes the current stream wait for the results, and this thread for the collective.
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  // Have the current stream wait for the results, and first of all bring them. After the end.
  void bring_results();
  void complete_future();

  const c10::Device device_;
  const std::vector<at::Tensor> results_;
  c10::intrusive_ptr<c10d::Work> inner_;
  // Guards what follows.
  mutable std::mutex bringing_;
  std::vector<StandIn> staged_;
  c10::Event issued_;
  // Behind the copies of the results, once they are under way.
  std::unique_ptr<c10::Event> brought_;
  std::exception_ptr failure_;  // of bringing them
  c10::intrusive_ptr<c10::ivalue::Future> device_future_;
};

// Collectives of tensors on an accelerator by way of pinned memory and a backend for CPU tensors:
// for members that NCCL does not take, as those who share a GPU.
//
// Unlike the other backends', a call waits until the accelerator has done what the current stream
// was given before: only then is there something to send. It waits for no other member.
class HostStagedBackend : public CheckedBackend {
 public:
  HostStagedBackend(c10::intrusive_ptr<CheckedBackend> inner, c10::Device device);

  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }
  c10::intrusive_ptr<c10d::Work> start(Request&& request) override;

 private:
  const c10::intrusive_ptr<CheckedBackend> inner_;
};

// For tensors on `device`, over a backend of ours. TypeError for another backend, ValueError for a
// device that is the CPU or has no index.
c10::intrusive_ptr<c10d::Backend> make_host_staged_backend(
    const c10::intrusive_ptr<c10d::Backend>& inner, c10::Device device);

}  // namespace dtorch
