// The dtorch device as PyTorch sees it: guard, hooks, shallow-copy rule.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "tensor/device.h"
#include "tensor/generator.h"
#include "tensor/slot.h"

namespace dtorch {
namespace {

DeviceCalls& calls() {
  static auto* instance = new DeviceCalls;
  return *instance;
}

// One device with one stream: the workers' order of execution is the program's.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kDeviceType, 0}; }
  void setDevice(c10::Device device) const override {
    check_device(device);
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeDevice(const c10::DeviceIndex) const override { calls().synchronize(); }
  void synchronizeStream(const c10::Stream&) const override { calls().synchronize(); }
  bool queryStream(const c10::Stream&) const override {
    calls().synchronize();
    return true;
  }
  // With one stream, an event is done when everything issued is: it needs no state of its own.
  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    static char recorded;
    *event = &recorded;
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    calls().synchronize();
    return true;
  }
  void synchronizeEvent(void*) const override { calls().synchronize(); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

// What torch.accelerator asks about memory. Workers allocate; nothing does here.
struct MemoryOfWorkers final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t) override {
    TORCH_CHECK(false, "a dtorch tensor has no storage on the client; make it with "
                "torch.empty(..., device='dtorch')");
  }
  void copy_data(void*, const void*, size_t) const override { allocate_nothing(); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { calls().empty_cache(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  DeviceStats getDeviceStats(c10::DeviceIndex) override { return stats_of(calls().measure()); }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { calls().reset_peak(); }

 private:
  static void allocate_nothing() { TORCH_CHECK(false, "a dtorch tensor has no storage on the client"); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return new_generator(); }
  // The client has no device to copy to, so ordinary memory serves as well as pinned.
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return false; }
};

// `param.data = param.data.to("dtorch")` keeps the Parameter object, and with it weight
// ties and optimizers made before the move.
bool has_compatible_shallow_copy_type(const at::Tensor&, const at::Tensor&) { return true; }

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

void register_device(DeviceCalls given) {
  calls() = std::move(given);
  static auto* memory = new MemoryOfWorkers;
  c10::SetAllocator(kDeviceType, memory);
  at::RegisterPrivateUse1HooksInterface(new Hooks());  // PyTorch keeps it for good
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

}  // namespace dtorch
