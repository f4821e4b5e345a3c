#include "device.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <chrono>
#include <cstring>

#include "captures.h"
#include "checker.h"

namespace simulated_gpu {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

constexpr int kMaxDevices = 16;
constexpr int kPoolStreams = 32;  // as many as c10::cuda has of each priority

int device_count = 0;
thread_local DeviceIndex current_device = 0;
thread_local c10::StreamId current_streams[kMaxDevices] = {};

struct Event {
  Clock clock;
  std::chrono::steady_clock::time_point time;
};

Device checked(Device device) {
  DeviceIndex index = device.has_index() ? device.index() : current_device;
  TORCH_CHECK(device.is_cuda() && index < device_count, "got device ", device,
              ", expected one of the ", device_count, " simulated GPUs");
  return Device(c10::kCUDA, index);
}

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  if (!block->is_pooled) Checker::get().remove_block(block);
  release_block(block);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  Device exchangeDevice(Device device) const override {
    Device old = getDevice();
    setDevice(device);
    return old;
  }
  Device getDevice() const override { return Device(c10::kCUDA, current_device); }
  void setDevice(Device device) const override { current_device = checked(device).index(); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  DeviceIndex deviceCount() const noexcept override { return device_count; }
  c10::DeviceCapability getDeviceCapability(Device) const override { return {}; }

  Stream getStream(Device device) const override {
    return current_stream(checked(device).index());
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, checked(device));
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    static std::atomic<int> next[kMaxDevices] = {};
    device = checked(device);
    return Stream(Stream::UNSAFE, device, 1 + next[device.index()]++ % kPoolStreams);
  }
  Stream getNewStream(Device device, int) const override {
    return new_stream(checked(device).index());
  }
  Stream exchangeStream(Stream stream) const override { return exchange_stream(stream); }
  void* getStreamNativeHandle(const Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  bool isStreamCapturing(const Stream& stream) const override {
    return capture_of(stream) != nullptr;
  }
  bool queryStream(const Stream& stream) const override {
    refuse_in_capture(stream, "a query of the stream");
    return Checker::get().query(Checker::get().clock_of(stream));
  }
  void synchronizeStream(const Stream& stream) const override {
    refuse_in_capture(stream, "a synchronization of the stream");
    Checker::get().synchronize_stream(stream);
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    refuse_in_captures_of(device, "a synchronization of the device");
    Checker::get().synchronize_device(device);
  }

  void record(void** event, const Stream& stream, const DeviceIndex device,
              const c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "got a stream of device ",
                stream.device_index(), ", expected one of the event's device ", device);
    refuse_in_capture(stream, "recording an event");
    if (*event == nullptr) *event = new Event();
    auto* recorded = static_cast<Event*>(*event);
    recorded->clock = Checker::get().clock_of(stream);
    recorded->time = std::chrono::steady_clock::now();
    Checker::get().count([](Counts& counts) { counts.events += 1; });
  }
  void block(void* event, const Stream& stream) const override {
    refuse_in_capture(stream, "waiting for an event");
    if (event != nullptr) Checker::get().wait(stream, static_cast<Event*>(event)->clock);
  }
  bool queryEvent(void* event) const override {
    refuse_in_capture_modes("a query of an event");
    return event == nullptr || Checker::get().query(static_cast<Event*>(event)->clock);
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    refuse_in_capture_modes("a synchronization with an event");
    Checker::get().count([](Counts& counts) { counts.event_synchronizations[thread_name()] += 1; });
    Checker::get().host_reaches(static_cast<Event*>(event)->clock);
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    TORCH_CHECK(first != nullptr && second != nullptr, "both events must be recorded");
    auto between = static_cast<Event*>(second)->time - static_cast<Event*>(first)->time;
    return std::chrono::duration<double, std::milli>(between).count();
  }
  // As CUDA's allocator, which takes no notice of memory that is not from it.
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    if (data.get_deleter() == &free_block) Checker::get().record_block(data.get(), stream);
  }
};

c10::DataPtr owned(Block* block, DeviceIndex device, const std::string& what) {
  block->device = device;
  block->allocated_on = Checker::get().index_of(current_stream(device));
  block->contents = std::to_string(block->bytes) + " bytes";
  Checker::get().add_block(block, what);
  return {block->data, block, &free_block, Device(c10::kCUDA, device)};
}

// Keeps nothing idle: it has of a device what is in use there.
struct DeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block();
    block->data = static_cast<char*>(bytes == 0 ? nullptr : c10::alloc_cpu(bytes));
    block->bytes = bytes;
    std::shared_ptr<Capture> capture = capture_of(current_stream(current_device));
    block->is_pooled = capture != nullptr;
    c10::DataPtr memory = owned(block, current_device, "the allocation");
    if (capture != nullptr) capture->take(block);
    return memory;
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* into, const void* from, size_t bytes) const override {
    std::memcpy(into, from, bytes);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    Checker::get().count([](Counts& counts) { counts.emptied_caches += 1; });
  }
  void recordStream(const c10::DataPtr& data, Stream stream) override {
    if (data.get_deleter() == &free_block) Checker::get().record_block(data.get(), stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    const DeviceBytes bytes = Checker::get().bytes(checked(Device(c10::kCUDA, device)).index());
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& all = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    all.current = bytes.now;
    all.peak = bytes.peak;
    stats.active_bytes = stats.reserved_bytes = stats.allocated_bytes;
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}  // none are kept
  void resetPeakStats(DeviceIndex device) override { Checker::get().reset_peak(device); }
};

}  // namespace

void release_block(Block* block) {
  if (!Checker::get().drop_owner(block)) return;
  if (block->is_pooled) Checker::get().remove_block(block);
  if (!block->adopted) c10::free_cpu(block->data);
  delete block;  // outside the lock: adopted memory may belong to Python
}

void register_devices(int devices) {
  TORCH_CHECK(devices >= 1 && devices <= kMaxDevices, "got ", devices,
              " simulated GPUs, expected 1 to ", kMaxDevices);
  device_count = devices;
  static c10::impl::DeviceGuardImplRegistrar registrar(c10::kCUDA, new Guard());
  c10::SetAllocator(c10::kCUDA, device_allocator());
}

Stream current_stream(DeviceIndex device) {
  return Stream(Stream::UNSAFE, Device(c10::kCUDA, device), current_streams[device]);
}

Stream exchange_stream(Stream stream) {
  Stream old = current_stream(checked(stream.device()).index());
  current_streams[stream.device_index()] = stream.id();
  return old;
}

Stream new_stream(DeviceIndex device) {
  static std::atomic<c10::StreamId> next{1 + kPoolStreams};
  return Stream(Stream::UNSAFE, checked(Device(c10::kCUDA, device)), next++);
}

c10::Allocator* device_allocator() {
  static DeviceAllocator* allocator = new DeviceAllocator();
  return allocator;
}

c10::DataPtr adopt(c10::Storage cpu_storage, DeviceIndex device, const std::string& what) {
  auto* block = new Block();
  block->data = static_cast<char*>(cpu_storage.mutable_data());
  block->bytes = block->data == nullptr ? 0 : cpu_storage.nbytes();  // of zeros that nothing holds
  block->adopted = std::move(cpu_storage);
  return owned(block, device, what);
}

}  // namespace simulated_gpu
