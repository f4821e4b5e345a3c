#include "tensor/generator.h"

#include <cstring>

#include <ATen/ops/empty.h>

#include "tensor/slot.h"

namespace dtorch {

DtorchGenerator::DtorchGenerator(uint64_t seed)
    : c10::GeneratorImpl(c10::Device(kDeviceType, 0),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      seed_(seed) {}

void DtorchGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t DtorchGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void DtorchGenerator::set_state(const c10::TensorImpl& new_state) {
  TORCH_CHECK(new_state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && new_state.numel() == 16 &&
                  new_state.is_contiguous() && new_state.device().is_cpu(),
              "a dtorch generator's state is 16 contiguous uint8 numbers on the CPU, as "
              "torch.dtorch.get_rng_state() gives; got ", new_state.numel(), " of ",
              new_state.dtype(), " on ", new_state.device());
  const auto* bytes = static_cast<const uint8_t*>(new_state.data());
  std::memcpy(&seed_, bytes, 8);
  std::memcpy(&offset_, bytes + 8, 8);
}

c10::intrusive_ptr<c10::TensorImpl> DtorchGenerator::get_state() const {
  auto state = at::empty({16}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  std::memcpy(state.data_ptr<uint8_t>(), &seed_, 8);
  std::memcpy(state.data_ptr<uint8_t>() + 8, &offset_, 8);
  return state.getIntrusivePtr();
}

std::pair<uint64_t, uint64_t> DtorchGenerator::draw() {
  std::lock_guard<std::mutex> lock(mutex_);
  return {seed_, offset_++};
}

DtorchGenerator* DtorchGenerator::clone_impl() const {
  auto* copy = new DtorchGenerator(seed_);
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator() {
  static at::Generator generator = at::make_generator<DtorchGenerator>(c10::default_rng_seed_val);
  return generator;
}

at::Generator new_generator() {
  return at::make_generator<DtorchGenerator>(c10::default_rng_seed_val);
}

}  // namespace dtorch
