// The words of a call's key: each argument opens with a mark, so that no two argument lists give
// the same words. A tensor's word has a sharding's number where a mark has its kind, and those
// stay below 2^24.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/mix.h"

namespace dtorch {

enum class Mark : uint64_t {
  kTensor = 0, kNone, kInt, kBool, kDouble, kComplex, kInts, kDoubles, kBools, kTensors,
  kScalars, kText, kAnyDevice, kHost, kOther, kExtent, kOpen,
};

constexpr uint64_t mark(Mark kind, uint64_t payload = 0) {
  return static_cast<uint64_t>(kind) << 56 | payload;
}
constexpr Mark mark_of(uint64_t word) { return static_cast<Mark>(word >> 56); }
constexpr uint64_t payload_of(uint64_t word) { return word & ((uint64_t{1} << 56) - 1); }

// A tensor's word: dtype, number of dims, then these, then the sharding in the upper half.
constexpr uint64_t kConjugateBit = 1 << 16, kNegativeBit = 1 << 17, kHostBit = 1 << 18,
                   kWrappedBit = 1 << 19;
constexpr size_t dims_of(uint64_t word) { return (word >> 8) & 0xff; }

template <class Words>
uint64_t hash_of(const Words& words) {
  uint64_t hash = words.size() * 0x9e3779b97f4a7c15ull;
  for (uint64_t word : words) hash = mix(hash, word);
  return hash;
}

}  // namespace dtorch
