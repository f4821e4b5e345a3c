// The streams of one graph of a worker on an accelerator.
//
//   compute    operators, in the order of the program; the device's default stream for the main graph
//   upload     copies of values that the program sends
//   download   copies of values that it reads
//   capture    parts of plans while they become graphs of the device (worker/part_capture.h); one for all graphs
//              and workers of a process that share the device
//   branch(n)  independent branches of a plan (OperatorAssignInfo), beside compute, which is branch 0
//
// Collectives go on a stream of their backend's. Two rules keep memory right. What one stream made and
// another uses: order() before, keep_for() after. What is freed goes back to the stream that it was
// allocated for, whatever other streams still do with it, unless keep_for() named them.
//
// A worker on the CPU has no streams: it issues and executes at once.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "transport/backoff.h"

namespace dtorch {

// What any thread issues to a stream while it is captured becomes part of the graph, so that nobody else may have
// that stream. PyTorch's pool gives out its few streams in turn, to many.
struct CaptureStream {
  explicit CaptureStream(const c10::Stream& stream) : stream(stream) {}
  const c10::Stream stream;
  std::mutex mutex;  // held by who captures it

  static CaptureStream& of(c10::Device device) {
    static std::mutex mutex;
    static std::map<c10::DeviceIndex, CaptureStream> by_device;
    const std::lock_guard<std::mutex> guard(mutex);
    const c10::impl::VirtualGuardImpl pool(device.type());
    return by_device.try_emplace(device.index(), pool.getStreamFromGlobalPool(device)).first->second;
  }
};

class DeviceStreams {
 public:
  DeviceStreams(c10::Device device, bool is_main) : device_(device) {
    if (device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(device.type());
    capture_ = &CaptureStream::of(device);
    branches_.push_back(is_main ? guard.getDefaultStream(device) : new_stream());
    upload_ = new_stream();
    download_ = new_stream();
  }

  bool exist() const { return !branches_.empty(); }
  const c10::Stream& compute() const { return branches_.front(); }
  const c10::Stream& upload() const { return *upload_; }
  const c10::Stream& download() const { return *download_; }
  CaptureStream& capture() const { return *capture_; }
  const c10::Stream& branch(size_t number) {
    while (branches_.size() <= number) branches_.push_back(new_stream());
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
  c10::Stream new_stream() const {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    while (true) {
      const c10::Stream stream = guard.getStreamFromGlobalPool(device_);
      if (stream != capture_->stream) return stream;
    }
  }

  const c10::Device device_;
  std::vector<c10::Stream> branches_;
  std::optional<c10::Stream> upload_, download_;
  CaptureStream* capture_ = nullptr;
};

}  // namespace dtorch
