// The streams of one graph of a worker on an accelerator.
//
//   compute    operators, in the order of the program; the device's default stream for the main graph
//   upload     copies of values that the program sends
//   download   copies of values that it reads
//   capture    parts of plans while they become graphs of the device (worker/captured.h)
//   branch(n)  independent branches of a plan (OperatorAssignInfo), beside compute, which is branch 0
//
// Collectives go on a stream of their backend's. Two rules keep memory right. What one stream made and
// another uses: order() before, keep_for() after. What is freed goes back to the stream that it was
// allocated for, whatever other streams still do with it, unless keep_for() named them.
//
// A worker on the CPU has no streams: it issues and executes at once.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "transport/backoff.h"

namespace dtorch {

class DeviceStreams {
 public:
  DeviceStreams(c10::Device device, bool is_main) : device_(device) {
    if (device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(device.type());
    branches_.push_back(is_main ? guard.getDefaultStream(device) : guard.getStreamFromGlobalPool(device));
    upload_ = guard.getStreamFromGlobalPool(device);
    download_ = guard.getStreamFromGlobalPool(device);
    capture_ = guard.getStreamFromGlobalPool(device);
  }

  bool exist() const { return !branches_.empty(); }
  const c10::Stream& compute() const { return branches_.front(); }
  const c10::Stream& upload() const { return *upload_; }
  const c10::Stream& download() const { return *download_; }
  const c10::Stream& capture() const { return *capture_; }
  const c10::Stream& branch(size_t number) {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    while (branches_.size() <= number) branches_.push_back(guard.getStreamFromGlobalPool(device_));
    return branches_[number];
  }

  // Makes the graph's device and its compute stream the calling thread's, from here on.
  void enter() const {
    if (!exist()) return;
    const c10::impl::VirtualGuardImpl guard(device_.type());
    guard.setDevice(device_);
    guard.exchangeStream(compute());
  }

  // Behind all that a stream has been given so far.
  static c10::Event mark(const c10::Stream& stream) {
    c10::Event event(stream.device_type());
    event.record(stream);
    return event;
  }
  // Waits on the host, without burning a core, for this and nothing else of the device.
  static void wait(const c10::Event& event) {
    constexpr int kSpins = 200;
    Backoff backoff(kSpins);
    while (!event.query()) backoff.pause();
  }
  // What `later` is given from now on begins when `earlier` is through with what it has so far.
  static void order(const c10::Stream& later, const c10::Stream& earlier) {
    if (later != earlier) mark(earlier).block(later);
  }
  // The tensor's memory, another stream's, is not given away before `stream` is through with what it has by
  // the time the tensor is freed.
  static void keep_for(const c10::Stream& stream, const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage() || !tensor.storage().data()) return;
    const c10::impl::VirtualGuardImpl guard(stream.device_type());
    guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  }

 private:
  const c10::Device device_;
  std::vector<c10::Stream> branches_;
  std::optional<c10::Stream> upload_, download_, capture_;
};

}  // namespace dtorch
