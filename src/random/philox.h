// Philox4x32-10, a counter-based random number generator (Salmon, Moraes, Dror, Shaw: "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011).
//
// A number is a function of the seed, the call's offset and its place in the global tensor, and
// of nothing else: any worker can make any part.
#pragma once

#include <array>
#include <cstdint>

namespace dtorch {

// What one call draws from. The seed is the key; the counter holds, from its low end, the block
// (48 bits), the draw (16 bits: for elements that need more than one block) and the offset.
struct PhiloxStream {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

using PhiloxBlock = std::array<uint32_t, 4>;

PhiloxBlock philox(PhiloxBlock counter, std::array<uint32_t, 2> key);

// Words of up to kMaxBlocks consecutive blocks, word by word of the block, so that the loops over
// blocks become vector instructions.
struct PhiloxWords {
  static constexpr int kMaxBlocks = 64;
  uint32_t word[4][kMaxBlocks];
};

// Fills the words of `count` blocks from block `first` on.
void philox_blocks(const PhiloxStream& stream, uint64_t first, int count, PhiloxWords* words);

// The numbers of one element, as many as its distribution asks for.
class PhiloxElement {
 public:
  PhiloxElement(const PhiloxStream& stream, uint64_t element) : stream_(stream), element_(element) {}

  // In (0, 1), 2^52 values evenly apart.
  double uniform();
  double normal();

 private:
  uint64_t next();

  PhiloxStream stream_;
  uint64_t element_;
  uint64_t draw_ = 0;
  PhiloxBlock block_{};
};

// In (0, 1), 2^52 values evenly apart: neither end, so that logarithms are finite and not 0.
inline double open_uniform(uint64_t bits) {
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

// Standard normal numbers of a pair of open uniforms (Box and Muller 1958).
std::array<double, 2> normal_pair(uint64_t first, uint64_t second);

// Standard normal numbers in float of `count` blocks, four a block. Made of additions and
// multiplications alone, so that every machine gives the same bits.
void normal_blocks(const PhiloxWords& words, int count, float* values);

}  // namespace dtorch
