// Filling a tensor with numbers that depend on each element's place in the global tensor.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "device/pinned.h"
#include "random/part.h"

namespace dtorch {

constexpr int64_t kGrain = 8192;  // elements that are worth a thread

// Calls `body(begin, end)` for ranges that together are all elements of a contiguous CPU tensor,
// on the threads that LibTorch gives its own kernels.
template <class Body>
void for_ranges(const at::Tensor& contiguous, const Body& body) {
  if (contiguous.numel() == 0) return;
  const auto flat = contiguous.view({-1});
  const auto* base = static_cast<const char*>(flat.const_data_ptr());
  const auto size = static_cast<int64_t>(flat.element_size());
  auto iterator = at::TensorIterator::borrowing_nullary_op(flat);
  iterator.for_each([&](char** data, const int64_t*, int64_t count) {
    const int64_t begin = (data[0] - base) / size;
    body(begin, begin + count);
  }, kGrain);
}

// The tensor itself where numbers can be put into its memory in order; else (other strides,
// another device) new memory, which `finish` copies from.
inline at::Tensor fillable(const at::Tensor& self) {
  if (self.is_contiguous() && self.device().is_cpu() && !self.is_neg() && !self.is_conj()) return self;
  return at::empty(self.sizes(), self.options().device(at::kCPU));
}

inline void finish(const at::Tensor& self, const at::Tensor& filled) {
  if (filled.is_same(self)) return;
  self.is_cpu() ? void(self.copy_(filled)) : copy_to_device(filled, self);
}

// A transform makes kPerBlock values of each block: transform(words, count of blocks, values).
template <int kPerBlock, class T, class Transform>
void fill_run(T* out, int64_t first, int64_t count, const PhiloxStream& stream,
              const Transform& transform) {
  PhiloxWords words;
  std::array<T, PhiloxWords::kMaxBlocks * kPerBlock> values;
  const int64_t end = first + count;
  while (first < end) {
    const int64_t skipped = first % kPerBlock;
    const int64_t taken = std::min<int64_t>(values.size() - skipped, end - first);
    const int blocks = static_cast<int>((skipped + taken + kPerBlock - 1) / kPerBlock);
    philox_blocks(stream, static_cast<uint64_t>(first / kPerBlock), blocks, &words);
    transform(words, blocks, values.data());
    std::copy_n(values.data() + skipped, taken, out);
    out += taken;
    first += taken;
  }
}

template <int kPerBlock, class T, class Transform>
void fill(const at::Tensor& self, const RandomPart& part, const Transform& transform) {
  const auto memory = fillable(self);
  const Runs runs(self.sizes(), part);
  T* data = static_cast<T*>(memory.mutable_data_ptr());
  for_ranges(memory, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t run = begin / runs.length(), inside = begin % runs.length();
      const int64_t count = std::min(runs.length() - inside, end - begin);
      fill_run<kPerBlock, T>(data + begin, runs.start(run) + inside, count, part.stream, transform);
      begin += count;
    }
  });
  finish(self, memory);
}

// value(word): of 32 random bits.
template <class T, class Value>
void fill_of_words(const at::Tensor& self, const RandomPart& part, const Value& value) {
  fill<4, T>(self, part, [&](const PhiloxWords& words, int blocks, T* values) {
    for (int b = 0; b < blocks; ++b) {
      for (int w = 0; w < 4; ++w) values[4 * b + w] = value(words.word[w][b]);
    }
  });
}

inline uint64_t long_word(const PhiloxWords& words, int half, int block) {
  return words.word[2 * half][block] | static_cast<uint64_t>(words.word[2 * half + 1][block]) << 32;
}

// value(bits): of 64 random bits.
template <class T, class Value>
void fill_of_long_words(const at::Tensor& self, const RandomPart& part, const Value& value) {
  fill<2, T>(self, part, [&](const PhiloxWords& words, int blocks, T* values) {
    for (int b = 0; b < blocks; ++b) {
      for (int h = 0; h < 2; ++h) values[2 * b + h] = value(long_word(words, h, b));
    }
  });
}

// value(normal): of a standard normal number in double.
template <class T, class Value>
void fill_of_normals(const at::Tensor& self, const RandomPart& part, const Value& value) {
  fill<2, T>(self, part, [&](const PhiloxWords& words, int blocks, T* values) {
    for (int b = 0; b < blocks; ++b) {
      const auto pair = normal_pair(long_word(words, 0, b), long_word(words, 1, b));
      for (int h = 0; h < 2; ++h) values[2 * b + h] = value(pair[h]);
    }
  });
}

// value(element stream, index in the tensor): of as many numbers as it likes. `out` contiguous.
template <class T, class Value>
void fill_of_streams(const at::Tensor& out, const RandomPart& part, const Value& value) {
  const Runs runs(out.sizes(), part);
  T* data = static_cast<T*>(out.mutable_data_ptr());
  for_ranges(out, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t element = runs.start(i / runs.length()) + i % runs.length();
      PhiloxElement numbers(part.stream, static_cast<uint64_t>(element));
      data[i] = value(numbers, i);
    }
  });
}

}  // namespace dtorch
