// The step of a hash over words: a multiplication whose upper half comes back in.
#pragma once

#include <cstdint>

namespace dtorch {

inline uint64_t mix(uint64_t hash, uint64_t word) {
  const auto product = static_cast<unsigned __int128>(hash ^ word) * 0xd6e8feb86659fd93ull;
  return (static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64)) + word;
}

}  // namespace dtorch
