// The dtorch device as PyTorch sees it: guard, hooks, shallow-copy rule.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "tensor/device.h"
#include "tensor/generator.h"
#include "tensor/slot.h"

namespace dtorch {
namespace {

std::function<void()>& synchronize_hook() {
  static std::function<void()> hook;
  return hook;
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
  void synchronizeDevice(const c10::DeviceIndex) const override { synchronize_hook()(); }
  void synchronizeStream(const c10::Stream&) const override { synchronize_hook()(); }
  bool queryStream(const c10::Stream&) const override {
    synchronize_hook()();
    return true;
  }
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
};

// `param.data = param.data.to("dtorch")` keeps the Parameter object, and with it weight
// ties and optimizers made before the move.
bool has_compatible_shallow_copy_type(const at::Tensor&, const at::Tensor&) { return true; }

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

void register_device(std::function<void()> synchronize) {
  synchronize_hook() = std::move(synchronize);
  at::RegisterPrivateUse1HooksInterface(new Hooks());  // PyTorch keeps it for good
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

}  // namespace dtorch
