// CPU tensors over the memory of CUDA tensors, for one call of a CPU kernel, and the way back.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "checker.h"

namespace simulated_gpu {

// While a graph is captured, kernels run over other memory than that of their tensors.
struct Shadows {
  virtual ~Shadows() = default;
  // Memory to run over in the place of `bytes` at `pointer`.
  virtual void* shadow(const void* pointer, size_t bytes) = 0;
  // `memory` is new, and what a kernel has written for it is in `shadow`.
  virtual void take_shadow(const void* memory, c10::Storage shadow) = 0;
};

class Aliases {
 public:
  Aliases(c10::DeviceIndex device, std::string operator_name, Shadows* shadows = nullptr)
      : device_(device), name_(std::move(operator_name)), shadows_(shadows) {}

  // A CPU tensor over the same memory, or its shadow; itself when undefined or on the CPU.
  at::Tensor to_cpu(const at::Tensor& tensor, bool read, bool written);

  // After the call: what kernels resized is resized in the originals too.
  void take_over_resizes();

  // The CUDA tensor for one that a CPU kernel returned: an original, a view of one, or a new one.
  at::Tensor to_cuda(const at::Tensor& result);

  // Storages in the order in which they first came up; those of results come last.
  struct StoragePair {
    c10::Storage original;
    c10::Storage alias;
    const void* before;  // where the alias was before the call
    bool is_moved() const { return alias.data() != before; }
  };
  const std::vector<StoragePair>& storages() const { return storages_; }

  // The blocks that the call reads or writes, each once.
  const std::vector<Use>& uses() const { return uses_; }

 private:
  struct Pair {
    at::Tensor original;
    at::Tensor alias;
  };

  c10::Storage alias_storage(const c10::Storage& storage);
  c10::DataPtr hold(const c10::Storage& cpu_storage);
  void note_use(const at::Tensor& tensor, bool written);

  c10::DeviceIndex device_;
  std::string name_;
  Shadows* shadows_;
  std::vector<Pair> pairs_;
  std::vector<StoragePair> storages_;
  std::vector<at::Tensor> from_cpu_;
  std::vector<Use> uses_;
};

// A tensor of the storage with the sizes, strides and marks of another.
at::Tensor tensor_over(const c10::Storage& storage, const at::Tensor& like, c10::DispatchKey key);

// For violations: dtype and sizes.
std::string contents(const at::Tensor& tensor);

}  // namespace simulated_gpu
