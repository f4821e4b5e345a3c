#include "collectives/reduction.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <type_traits>

namespace dtorch {
namespace {

// Elements reduced at a time: all sources of a run are read before a destination, which may be
// a source, is written. Small enough for the first-level cache.
constexpr int64_t kRun = 1024;

template <typename T>
struct Accumulate {
  using type = T;
};
template <>
struct Accumulate<c10::Half> {
  using type = float;
};
template <>
struct Accumulate<c10::BFloat16> {
  using type = float;
};

// At least 32 bits wide, so that neither sums nor products of promoted integers overflow an int.
template <typename T>
using Wrapping = std::make_unsigned_t<std::common_type_t<T, int>>;

template <typename T>
constexpr bool is_complex = c10::is_complex<T>::value;

struct Sum {
  template <typename T>
  static constexpr bool takes = true;
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a || b;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(Wrapping<T>(a) + Wrapping<T>(b));
    } else {
      return a + b;
    }
  }
};

struct Average : Sum {
  template <typename T>
  static constexpr bool takes = !std::is_integral_v<T>;
};

struct Product {
  template <typename T>
  static constexpr bool takes = true;
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a && b;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(Wrapping<T>(a) * Wrapping<T>(b));
    } else {
      return a * b;
    }
  }
};

struct Min {
  template <typename T>
  static constexpr bool takes = !is_complex<T>;
  template <typename T>
  static T apply(T a, T b) {
    return (a < b || a != a) ? a : b;
  }
};

struct Max {
  template <typename T>
  static constexpr bool takes = !is_complex<T>;
  template <typename T>
  static T apply(T a, T b) {
    return (a > b || a != a) ? a : b;
  }
};

struct BitAnd {
  template <typename T>
  static constexpr bool takes = std::is_integral_v<T>;
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};

struct BitOr {
  template <typename T>
  static constexpr bool takes = std::is_integral_v<T>;
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};

struct BitXor {
  template <typename T>
  static constexpr bool takes = std::is_integral_v<T>;
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// Call `f` with a value of the dtype's C++ type; false for a dtype that has no arithmetic here.
template <typename F>
bool with_type(at::ScalarType dtype, F&& f) {
  switch (dtype) {
    case at::kBool: f(bool{}); return true;
    case at::kByte: f(uint8_t{}); return true;
    case at::kChar: f(int8_t{}); return true;
    case at::kShort: f(int16_t{}); return true;
    case at::kInt: f(int32_t{}); return true;
    case at::kLong: f(int64_t{}); return true;
    case at::kUInt16: f(uint16_t{}); return true;
    case at::kUInt32: f(uint32_t{}); return true;
    case at::kUInt64: f(uint64_t{}); return true;
    case at::kHalf: f(c10::Half{}); return true;
    case at::kBFloat16: f(c10::BFloat16{}); return true;
    case at::kFloat: f(float{}); return true;
    case at::kDouble: f(double{}); return true;
    case at::kComplexFloat: f(c10::complex<float>{}); return true;
    case at::kComplexDouble: f(c10::complex<double>{}); return true;
    default: return false;
  }
}

template <typename F>
bool with_operator(Reduce op, F&& f) {
  switch (op) {
    case Reduce::SUM: f(Sum{}); return true;
    case Reduce::AVG: f(Average{}); return true;
    case Reduce::PRODUCT: f(Product{}); return true;
    case Reduce::MIN: f(Min{}); return true;
    case Reduce::MAX: f(Max{}); return true;
    case Reduce::BAND: f(BitAnd{}); return true;
    case Reduce::BOR: f(BitOr{}); return true;
    case Reduce::BXOR: f(BitXor{}); return true;
    default: return false;
  }
}

template <typename T, typename Op>
void reduce_typed(const std::vector<const char*>& sources, const std::vector<char*>& destinations,
                  int64_t count) {
  using A = typename Accumulate<T>::type;
  A sum[kRun];
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t n = std::min(kRun, count - begin);
    const T* first = reinterpret_cast<const T*>(sources[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<A>(first[i]);
    for (size_t s = 1; s < sources.size(); ++s) {
      const T* next = reinterpret_cast<const T*>(sources[s]) + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] = Op::apply(sum[i], static_cast<A>(next[i]));
    }
    if constexpr (std::is_same_v<Op, Average>) {
      const auto divisor = static_cast<A>(static_cast<float>(sources.size()));
      for (int64_t i = 0; i < n; ++i) sum[i] = sum[i] / divisor;
    }
    for (char* destination : destinations) {
      T* to = reinterpret_cast<T*>(destination) + begin;
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(sum[i]);
    }
  }
}

}  // namespace

const char* reduce_name(Reduce op) {
  switch (op) {
    case Reduce::SUM: return "SUM";
    case Reduce::AVG: return "AVG";
    case Reduce::PRODUCT: return "PRODUCT";
    case Reduce::MIN: return "MIN";
    case Reduce::MAX: return "MAX";
    case Reduce::BAND: return "BAND";
    case Reduce::BOR: return "BOR";
    case Reduce::BXOR: return "BXOR";
    case Reduce::PREMUL_SUM: return "PREMUL_SUM";
    default: return "an unknown reduction";
  }
}

bool is_reducible(Reduce op, at::ScalarType dtype) {
  bool reducible = false;
  with_operator(op, [&](auto functor) {
    with_type(dtype, [&](auto value) {
      reducible = decltype(functor)::template takes<decltype(value)>;
    });
  });
  return reducible;
}

void reduce_in_order(Reduce op, at::ScalarType dtype, const std::vector<const char*>& sources,
                     const std::vector<char*>& destinations, int64_t count) {
  with_operator(op, [&](auto functor) {
    with_type(dtype, [&](auto value) {
      using Op = decltype(functor);
      using T = decltype(value);
      if constexpr (Op::template takes<T>) reduce_typed<T, Op>(sources, destinations, count);
    });
  });
}

void divide_in_place(at::ScalarType dtype, char* data, int64_t count, int divisor) {
  with_type(dtype, [&](auto value) {
    using T = decltype(value);
    using A = typename Accumulate<T>::type;
    if constexpr (Average::takes<T>) {
      T* to = reinterpret_cast<T*>(data);
      const auto by = static_cast<A>(static_cast<float>(divisor));
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(static_cast<A>(to[i]) / by);
    }
  });
}

}  // namespace dtorch
