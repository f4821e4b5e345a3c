// Encode: append values to a record that is being written.
#pragma once

#include <cstring>
#include <string_view>

#include <c10/util/ArrayRef.h>
#include <c10/util/complex.h>

#include "wire/record.h"

namespace dtorch {

// Writes into memory that its owner sized beforehand; `words_for_*` give the bounds.
class Writer {
 public:
  explicit Writer(uint32_t* at) : begin_(at), at_(at) {}

  void begin(Kind kind, uint32_t count, uint32_t number, uint32_t site) {
    begin_ = at_;
    at_[1] = static_cast<uint32_t>(kind) | count << 16;
    at_[2] = number;
    at_[3] = site;
    at_ += kHeaderWords;
  }
  // Closes the record; returns its length in words.
  uint32_t end() {
    begin_[0] = static_cast<uint32_t>(at_ - begin_);
    return begin_[0];
  }
  uint32_t* position() const { return at_; }

  void word(uint32_t value) { *at_++ = value; }
  void tag(Tag tag, uint32_t payload = 0) {
    word(static_cast<uint32_t>(tag) << 24 | (payload & 0xffffffu));
  }
  void two_words(const void* value) {
    std::memcpy(at_, value, 8);
    at_ += 2;
  }
  void int_value(int64_t value) {
    if (value >= -(1 << 23) && value < (1 << 23)) {
      tag(Tag::kSmallInt, static_cast<uint32_t>(value));
    } else {
      tag(Tag::kInt);
      two_words(&value);
    }
  }
  void double_value(double value) {
    tag(Tag::kDouble);
    two_words(&value);
  }
  void bool_value(bool value) { tag(Tag::kBool, value); }
  void complex_value(c10::complex<double> value) {
    tag(Tag::kComplex);
    double parts[2] = {value.real(), value.imag()};
    two_words(&parts[0]);
    two_words(&parts[1]);
  }
  void int_list(c10::IntArrayRef values, Tag as = Tag::kIntList) {
    tag(as, static_cast<uint32_t>(values.size()));
    raw_ints(values);
  }
  void raw_ints(c10::IntArrayRef values) {
    std::memcpy(at_, values.data(), values.size() * 8);
    at_ += values.size() * 2;
  }
  void string(std::string_view text) {
    tag(Tag::kString, static_cast<uint32_t>(text.size()));
    const size_t words = words_for_bytes(text.size());
    if (words) at_[words - 1] = 0;
    std::memcpy(at_, text.data(), text.size());
    at_ += words;
  }
  void promise(const PromiseName& name) {
    tag(Tag::kSmallInt, static_cast<uint32_t>(name.home));
    int_value(name.id);
    int_value(static_cast<int64_t>(name.place));
  }

  static constexpr size_t words_for_bytes(size_t bytes) { return (bytes + 3) / 4; }

 private:
  uint32_t* begin_;
  uint32_t* at_;
};

}  // namespace dtorch
