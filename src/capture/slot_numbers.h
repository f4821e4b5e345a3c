// Numbers for slots: always the lowest that is free.
//
// So a step of a program that begins with the same tensors alive gives the same numbers as the
// last one did, in whatever order those died, and the workers' table stays dense.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace dtorch {

class SlotNumbers {
 public:
  uint32_t take() {
    if (num_free_ == 0) return next_++;
    --num_free_;
    uint32_t number = 0;
    for (int level = kLevels - 1; level >= 0; --level) {
      number = number * 64 + static_cast<uint32_t>(std::countr_zero(free_[level][number]));
    }
    uint32_t at = number;
    for (auto& level : free_) {
      auto& word = level[at / 64];
      word &= ~(uint64_t{1} << at % 64);
      if (word != 0) break;
      at /= 64;
    }
    return number;
  }
  void give_back(uint32_t number) {
    ++num_free_;
    for (auto& level : free_) {
      if (number / 64 >= level.size()) level.resize(number / 64 + 1);
      auto& word = level[number / 64];
      const bool was_empty = word == 0;
      word |= uint64_t{1} << number % 64;
      if (!was_empty) break;
      number /= 64;
    }
  }
  // One that was never taken and never will be.
  uint32_t reserve() {
    ++num_reserved_;
    return next_++;
  }
  void clear() { *this = SlotNumbers(); }
  // Without the reserved ones.
  uint32_t num_taken() const { return next_ - num_free_ - num_reserved_; }
  bool is_full(uint32_t limit) const { return num_free_ == 0 && next_ >= limit; }

 private:
  // 64^4 numbers, as many as a tag's payload holds.
  static constexpr int kLevels = 4;
  // Level 0: a bit for each number, set where it is free. Above: a bit for each word of the level
  // below that has one set.
  std::array<std::vector<uint64_t>, kLevels> free_;
  uint32_t next_ = 0, num_free_ = 0, num_reserved_ = 0;
};

}  // namespace dtorch
