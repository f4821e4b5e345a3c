// The dtorch device's random generator: a seed and an offset, no state of its own.
//
// Each call that needs random numbers takes the next offset; the pair travels in the
// record, so every worker draws the same numbers, and a saved state restores the stream.
#pragma once

#include <mutex>

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

namespace dtorch {

class DtorchGenerator final : public c10::GeneratorImpl {
 public:
  explicit DtorchGenerator(uint64_t seed);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // The seed and offset for one call.
  std::pair<uint64_t, uint64_t> draw();

 private:
  DtorchGenerator* clone_impl() const override;

  uint64_t seed_;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator();
at::Generator new_generator();

}  // namespace dtorch
