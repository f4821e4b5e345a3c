// One call of a fused kernel, on threads of the host or on a GPU.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "worker/distinct.h"
#include "worker/fused.h"

namespace dtorch {

class FusedCall {
 public:
  explicit FusedCall(const FusedKernel& kernel) : kernel_(kernel) {}

  std::vector<at::Tensor> inputs, outputs;  // contiguous
  std::vector<int64_t> numbers;             // each in its dtype's bits
  std::vector<Spread> spreads;

  // All elements of outputs that have as many.
  void run(int64_t elements) {
    if (elements == 0) return;
    if (!kernel_.variants.empty()) return launch(elements);
    auto pointers = addresses(0);
    for (auto& spread : spreads) pointers.push_back(&spread);
    // In parts as TensorIterator makes them: what is left over at the end of each comes out alike.
    at::parallel_for(0, elements, at::internal::GRAIN_SIZE, [&](int64_t begin, int64_t end) {
      kernel_.function(pointers.data(), begin, end);
    });
  }

  void run_rows(int64_t rows, int64_t columns) {
    if (!kernel_.variants.empty()) return launch_rows(rows, columns);
    auto pointers = addresses(0);
    const int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / columns);
    at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
      kernel_.rows_function(pointers.data(), begin, end, columns);
    });
  }

 private:
  // Counts of elements in a kernel have 32 bits.
  static constexpr int64_t kMostElements = int64_t{1} << 30;

  static void* address(const at::Tensor& tensor, int64_t first) {
    return static_cast<char*>(const_cast<void*>(tensor.const_data_ptr())) + first * tensor.element_size();
  }

  // Of inputs, numbers and outputs, from an element on.
  std::vector<void*> addresses(int64_t first) {
    std::vector<void*> found;
    for (size_t i = 0; i < inputs.size(); ++i) {
      found.push_back(address(inputs[i], kernel_.extents[i] == FusedKernel::Extent::kOne ? 0 : first));
    }
    for (auto& number : numbers) found.push_back(&number);
    for (const auto& output : outputs) found.push_back(address(output, first));
    return found;
  }

  // A GPU's kernels read 16 bytes at a time. Memory that is allocated is aligned to more than that. What an input
  // repeats, its copy repeats.
  void align() {
    for (auto& input : inputs) {
      if (reinterpret_cast<uintptr_t>(input.const_data_ptr()) % 16 == 0) continue;
      input = distinct(input).clone(at::MemoryFormat::Contiguous).expand(input.sizes());
    }
  }

  void launch(int64_t elements) {
    align();
    const auto& variant = kernel_.variants.front();
    if (elements > kMostElements) spread_out();
    for (int64_t first = 0; first < elements; first += kMostElements) {
      const int64_t count = std::min(elements - first, kMostElements);
      std::vector<int32_t> counts;
      for (const auto& spread : spreads) {
        for (int64_t factor : {spread.every, spread.count, spread.outer_every, spread.outer_count}) {
          counts.push_back(static_cast<int32_t>(factor));
        }
      }
      counts.push_back(static_cast<int32_t>(count));
      launch(variant, addresses(first), counts, count, variant.columns);
    }
  }

  // What an input is broadcast to, element by element: parts of it can be had by their addresses.
  void spread_out() {
    size_t next = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (kernel_.extents[i] != FusedKernel::Extent::kSpread) continue;
      inputs[i] = inputs[i].expand(outputs.front().sizes()).contiguous();
      spreads[next++] = {1, kMostElements, 1, 1};
    }
  }

  void launch_rows(int64_t rows, int64_t columns) {
    align();
    const auto variant = std::ranges::find_if(kernel_.variants, [&](const auto& v) { return columns <= v.columns; });
    TORCH_CHECK(variant != kernel_.variants.end() && rows < kMostElements, "a fused kernel got ", rows, " rows of ", columns,
                " elements: expected fewer than ", kMostElements, " of at most ", kernel_.variants.back().columns);
    const std::vector<int32_t> counts{static_cast<int32_t>(rows), static_cast<int32_t>(columns)};
    launch(*variant, addresses(0), counts, rows, variant->rows);
  }

  // work: how much there is of what a block does `each` of.
  void launch(const DeviceVariant& variant, const std::vector<void*>& pointers, std::vector<int32_t> counts, int64_t work,
              int64_t each) {
    std::vector<void*> tensors(pointers);  // a number's own address, but the address of a tensor's
    std::vector<void*> parameters;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const bool is_number = i >= inputs.size() && i < inputs.size() + numbers.size();
      parameters.push_back(is_number ? tensors[i] : &tensors[i]);
    }
    for (auto& count : counts) parameters.push_back(&count);
    void* no_scratch = nullptr;
    for (uint32_t i = 0; i < variant.num_scratch; ++i) parameters.push_back(&no_scratch);
    const auto device = outputs.front().device();
    const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    variant.function.launch(stream, static_cast<uint32_t>((work + each - 1) / each), variant.threads, variant.shared_bytes,
                            parameters.data());
  }

  const FusedKernel& kernel_;
};

}  // namespace dtorch
