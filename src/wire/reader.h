// Decode: read values from a batch, checking every bound before use.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>

#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

#include "wire/record.h"

namespace dtorch {

// A batch that is not well-formed. The worker reports it and skips the rest of the batch.
struct WireError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Sizes = c10::SmallVector<int64_t, 6>;

// Reads one record; `at` moves forward, never past `end`.
class Reader {
 public:
  Reader(const uint32_t* begin, const uint32_t* end) : at_(begin), end_(end) {}

  // Takes the record at `begin`, which lies in a batch that ends at `end`.
  static Reader record(const uint32_t* begin, const uint32_t* end) {
    if (end - begin < static_cast<ptrdiff_t>(kHeaderWords)) fail("a record shorter than its header");
    const uint32_t words = begin[0];
    if (words < kHeaderWords || words > static_cast<uint64_t>(end - begin)) {
      fail("a record that is longer than its batch");
    }
    return Reader(begin, begin + words);
  }

  Kind kind() const { return static_cast<Kind>(at_[1] & 0xffffu); }
  uint32_t count() const { return at_[1] >> 16; }
  uint32_t number() const { return at_[2]; }
  uint32_t site() const { return at_[3]; }
  uint32_t words() const { return at_[0]; }
  void enter() { at_ += kHeaderWords; }
  bool done() const { return at_ == end_; }
  const uint32_t* position() const { return at_; }
  size_t left() const { return static_cast<size_t>(end_ - at_); }

  uint32_t word() {
    need(1);
    return *at_++;
  }
  Tag tag(uint32_t* payload) {
    const uint32_t value = word();
    *payload = value & 0xffffffu;
    return static_cast<Tag>(value >> 24);
  }
  Tag peek() {
    need(1);
    return static_cast<Tag>(*at_ >> 24);
  }
  template <class T>
  T two_words() {
    static_assert(sizeof(T) == 8);
    need(2);
    T value;
    std::memcpy(&value, at_, 8);
    at_ += 2;
    return value;
  }
  uint32_t expect(Tag wanted) {
    uint32_t payload;
    if (tag(&payload) != wanted) fail("a value of another kind than the record needs");
    return payload;
  }
  int64_t int_value() {
    uint32_t payload;
    switch (tag(&payload)) {
      case Tag::kSmallInt: return small_int(payload);
      case Tag::kInt: return two_words<int64_t>();
      default: fail("an integer was expected");
    }
  }
  Sizes int_list(Tag wanted = Tag::kIntList) {
    const uint32_t count = expect(wanted);
    return raw_ints(count);
  }
  Sizes raw_ints(uint32_t count) {
    need(uint64_t{count} * 2);
    Sizes values(count);
    std::memcpy(values.data(), at_, uint64_t{count} * 8);
    at_ += uint64_t{count} * 2;
    return values;
  }
  std::string_view string() {
    const uint32_t bytes = expect(Tag::kString);
    return text(bytes);
  }
  std::string_view text(uint32_t bytes) {
    const uint64_t words = (uint64_t{bytes} + 3) / 4;
    need(words);
    std::string_view view(reinterpret_cast<const char*>(at_), bytes);
    at_ += words;
    return view;
  }
  PromiseName promise() {
    PromiseName name;
    const int64_t home = int_value();
    if (home < 0 || home > 2) fail("a promise of an unknown home");
    name.home = static_cast<Home>(home);
    name.id = static_cast<uint32_t>(int_value());
    name.place = static_cast<uint64_t>(int_value());
    return name;
  }
  c10::ScalarType dtype() {
    const int64_t value = int_value();
    if (value < 0 || value >= static_cast<int64_t>(c10::ScalarType::Undefined)) fail("an unknown dtype");
    return static_cast<c10::ScalarType>(value);
  }
  c10::Scalar scalar() {
    uint32_t payload;
    switch (tag(&payload)) {
      case Tag::kSmallInt: return small_int(payload);
      case Tag::kInt: return two_words<int64_t>();
      case Tag::kDouble: return two_words<double>();
      case Tag::kBool: return payload != 0;
      case Tag::kComplex: {
        const double real = two_words<double>();
        return c10::complex<double>(real, two_words<double>());
      }
      default: fail("a number was expected");
    }
  }
  static int64_t small_int(uint32_t payload) {
    return static_cast<int32_t>(payload << 8) >> 8;
  }
  void need(uint64_t words) const {
    if (words > left()) fail("a value that runs past the end of its record");
  }
  [[noreturn]] static void fail(const char* what) {
    throw WireError(std::string("malformed batch: ") + what);
  }

 private:
  const uint32_t* at_;
  const uint32_t* end_;
};

}  // namespace dtorch
