// PyTorch's operators that fill a tensor with random numbers, for workers. The checks of the
// arguments are PyTorch's own (its kernels' templates); the numbers are Philox's.
#include <ATen/OpMathType.h>
#include <ATen/native/DistributionTemplates.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "random/adopt.h"
#include "random/fill.h"

namespace dtorch {
namespace {

using at::Tensor;
using Generator = std::optional<at::Generator>;
namespace templates = at::native::templates;
using namespace c10;  // AT_DISPATCH_V2 takes dtypes by their bare names

struct Worker;  // what the templates call RNG

// The part that matches a tensor: of complex numbers the templates pass the real view, which has
// one dim more.
RandomPart part_for(const Tensor& self, const Generator& generator) {
  RandomPart part = part_of(generator);
  if (!part.is_whole && self.dim() == static_cast<int64_t>(part.global_sizes.size()) + 1 &&
      self.size(-1) == 2) {
    part.global_sizes.push_back(2);
    part.offsets.push_back(0);
  }
  return part;
}

// Digits of the uniform numbers in [0, 1) that a dtype takes: all are values of that dtype.
template <class T>
constexpr int kDigits = std::numeric_limits<T>::digits;

template <class>
struct Uniform {
  void operator()(at::TensorIteratorBase& iterator, double from_given, double to_given,
                  const Generator& generator) const {
    const Tensor self = iterator.tensor(0);
    const RandomPart part = part_for(self, generator);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(),
                                    "uniform_kernel_cpu", [&] {
      using wide = at::opmath_type<scalar_t>;
      const auto from = static_cast<scalar_t>(from_given), to = static_cast<scalar_t>(to_given);
      const wide low = from, width = static_cast<wide>(to) - low;
      // Rounding must not give `to`, which is outside the range.
      const auto place = [=](wide unit) {
        const auto value = static_cast<scalar_t>(unit * width + low);
        return value < to ? value : from;
      };
      if constexpr (std::is_same_v<scalar_t, double>) {
        fill_of_long_words<double>(self, part, [=](uint64_t bits) {
          return place(static_cast<double>(bits >> 11) * 0x1p-53);
        });
      } else {
        constexpr int kShift = 32 - kDigits<scalar_t>;
        constexpr float kStep = 1.0f / (1 << kDigits<scalar_t>);
        fill_of_words<scalar_t>(self, part, [=](uint32_t word) {
          return place(static_cast<float>(static_cast<int32_t>(word >> kShift)) * kStep);
        });
      }
    });
  }
};

template <class>
struct Normal {
  void operator()(const Tensor& self, double mean, double std, const Generator& generator) const {
    const RandomPart part = part_for(self, generator);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(),
                                    "normal_kernel_cpu", [&] {
      if constexpr (std::is_same_v<scalar_t, double>) {
        fill_of_normals<double>(self, part, [=](double x) { return x * std + mean; });
      } else {
        const auto shift = static_cast<float>(mean), scale = static_cast<float>(std);
        fill<4, scalar_t>(self, part, [=](const PhiloxWords& words, int blocks, scalar_t* values) {
          std::array<float, PhiloxWords::kMaxBlocks * 4> normal;
          normal_blocks(words, blocks, normal.data());
          for (int i = 0; i < 4 * blocks; ++i) {
            values[i] = static_cast<scalar_t>(normal[i] * scale + shift);
          }
        });
      }
    });
  }
};

// Of `range` integers from `base` on, each within 2^-64 of equally often.
template <class T>
void fill_of_integers(const Tensor& self, const RandomPart& part, uint64_t range, int64_t base) {
  fill_of_long_words<T>(self, part, [=](uint64_t bits) {
    const auto chosen = static_cast<uint64_t>(static_cast<unsigned __int128>(bits) * range >> 64);
    return static_cast<T>(static_cast<int64_t>(chosen + static_cast<uint64_t>(base)));
  });
}

template <class>
struct RandomFromTo {
  void operator()(at::TensorIteratorBase& iterator, uint64_t range, int64_t base,
                  const Generator& generator) const {
    const Tensor self = iterator.tensor(0);
    AT_DISPATCH_V2(self.scalar_type(), "random_from_to_kernel_cpu", AT_WRAP([&] {
      fill_of_integers<scalar_t>(self, part_of(generator), range, base);
    }), kBool, kHalf, kBFloat16, AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
  }

  // All 2^64 integers.
  void operator()(at::TensorIteratorBase& iterator, const Generator& generator) const {
    const Tensor self = iterator.tensor(0);
    TORCH_CHECK(self.scalar_type() == at::kLong || self.scalar_type() == at::kDouble ||
                    self.scalar_type() == at::kFloat || self.scalar_type() == at::kBFloat16,
                "random_from_to_kernel_cpu handles only int64, double, float and bfloat16");
    AT_DISPATCH_ALL_TYPES_AND(at::kBFloat16, self.scalar_type(), "random_full_64_bits_range", [&] {
      fill_of_long_words<scalar_t>(self, part_of(generator), [](uint64_t bits) {
        return static_cast<scalar_t>(static_cast<int64_t>(bits));
      });
    });
  }
};

template <class>
struct Random {
  void operator()(at::TensorIteratorBase& iterator, const Generator& generator) const {
    const Tensor self = iterator.tensor(0);
    AT_DISPATCH_V2(self.scalar_type(), "random_kernel_cpu", AT_WRAP([&] {
      // As PyTorch: integers up to the largest, others up to 2^digits, which all have values.
      uint64_t range = 2;
      if constexpr (std::is_same_v<scalar_t, uint64_t>) {
        range = uint64_t{1} << 63;
      } else if constexpr (std::is_integral_v<scalar_t> && !std::is_same_v<scalar_t, bool>) {
        range = static_cast<uint64_t>(std::numeric_limits<scalar_t>::max()) + 1;
      } else if constexpr (!std::is_same_v<scalar_t, bool>) {
        range = (uint64_t{1} << std::numeric_limits<scalar_t>::digits) + 1;
      }
      fill_of_integers<scalar_t>(self, part_of(generator), range, 0);
    }), kBool, kHalf, kBFloat16, AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
  }
};

template <class>
struct Cauchy {
  void operator()(at::TensorIteratorBase& iterator, double median, double sigma,
                  const Generator& generator) const {
    const Tensor self = iterator.tensor(0);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "cauchy_cpu", [&] {
      fill_of_long_words<scalar_t>(self, part_of(generator), [=](uint64_t bits) {
        return static_cast<scalar_t>(
            median + sigma * std::tan(std::numbers::pi * (open_uniform(bits) - 0.5)));
      });
    });
  }
};

template <class>
struct LogNormal {
  void operator()(at::TensorIteratorBase& iterator, double mean, double std,
                  const Generator& generator) const {
    const Tensor self = iterator.tensor(0);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "log_normal_cpu",
                                    [&] {
      fill_of_normals<scalar_t>(self, part_of(generator), [=](double x) {
        return static_cast<scalar_t>(std::exp(x * std + mean));
      });
    });
  }
};

template <class>
struct Geometric {
  void operator()(at::TensorIteratorBase& iterator, double p, const Generator& generator) const {
    const Tensor self = iterator.tensor(0);
    AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "geometric_cpu", [&] {
      fill_of_long_words<scalar_t>(self, part_of(generator), [=](uint64_t bits) {
        return static_cast<scalar_t>(std::ceil(std::log(open_uniform(bits)) / std::log1p(-p)));
      });
    });
  }
};

template <class>
struct Exponential {
  void operator()(at::TensorIteratorBase& iterator, double lambda,
                  const Generator& generator) const {
    const Tensor self = iterator.tensor(0);
    TORCH_CHECK(at::isFloatingType(self.scalar_type()), "Exponential distribution is a continuous "
                "probability distribution. dtype must be a floating point but you specified ",
                self.dtype());
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "exponential_cpu",
                                    [&] {
      fill_of_long_words<scalar_t>(self, part_of(generator), [=](uint64_t bits) {
        const auto value = static_cast<scalar_t>(-std::log(open_uniform(bits)) / lambda);
        // PyTorch documents that 0 does not occur: programs divide by these numbers.
        return value > 0 ? value : std::numeric_limits<scalar_t>::min();
      });
    });
  }
};

template <class>
struct Bernoulli {
  void operator()(const Tensor& self, double p, const Generator& generator) const {
    const auto below = static_cast<uint64_t>(std::ceil(p * 0x1p32));
    AT_DISPATCH_V2(self.scalar_type(), "bernoulli_scalar_cpu_", AT_WRAP([&] {
      fill_of_words<scalar_t>(self, part_of(generator), [=](uint32_t word) {
        return static_cast<scalar_t>(word < below);
      });
    }), kBool, kHalf, kBFloat16, AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
  }

  void operator()(const Tensor& self, const Tensor& p_given, const Generator& generator) const {
    TORCH_CHECK(at::isFloatingType(p_given.scalar_type()),
                "expected probabilities tensor to have floating type, got ", p_given.scalar_type());
    const auto p = p_given.to(at::kCPU, at::kDouble).expand(self.sizes()).contiguous();
    const double* probability = p.const_data_ptr<double>();
    const auto memory = fillable(self);
    AT_DISPATCH_V2(self.scalar_type(), "bernoulli_tensor_cpu_self_", AT_WRAP([&] {
      fill_of_streams<scalar_t>(memory, part_of(generator), [=](PhiloxElement& numbers, int64_t i) {
        const double wanted = probability[i];
        TORCH_CHECK(wanted >= 0 && wanted <= 1,
                    "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
        return static_cast<scalar_t>(numbers.uniform() < wanted);
      });
    }), kBool, kHalf, kBFloat16, AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
    finish(self, memory);
  }
};

// ---- the operators ---------------------------------------------------------------------------

Tensor& uniform_(Tensor& self, double from, double to, Generator generator) {
  return templates::uniform_impl_<Uniform, Worker>(self, from, to, std::move(generator));
}
Tensor& normal_(Tensor& self, double mean, double std, Generator generator) {
  return templates::normal_impl_<Normal, Worker>(self, mean, std, std::move(generator));
}
Tensor& random_(Tensor& self, Generator generator) {
  return templates::random_impl<Random, Worker>(self, std::move(generator));
}
Tensor& random_from(Tensor& self, int64_t from, std::optional<int64_t> to, Generator generator) {
  return templates::random_from_to_impl<RandomFromTo, Worker>(self, from, to, std::move(generator));
}
Tensor& random_to(Tensor& self, int64_t to, Generator generator) {
  return random_from(self, 0, to, std::move(generator));
}
Tensor& cauchy_(Tensor& self, double median, double sigma, Generator generator) {
  return templates::cauchy_impl_<Cauchy, Worker>(self, median, sigma, std::move(generator));
}
Tensor& log_normal_(Tensor& self, double mean, double std, Generator generator) {
  return templates::log_normal_impl_<LogNormal, Worker>(self, mean, std, std::move(generator));
}
Tensor& geometric_(Tensor& self, double p, Generator generator) {
  return templates::geometric_impl_<Geometric, Worker>(self, p, std::move(generator));
}
Tensor& exponential_(Tensor& self, double lambda, Generator generator) {
  return templates::exponential_impl_<Exponential, Worker>(self, lambda, std::move(generator));
}
Tensor& bernoulli_float(Tensor& self, double p, Generator generator) {
  return templates::bernoulli_impl_<Bernoulli, Worker>(self, p, std::move(generator));
}
Tensor& bernoulli_tensor(Tensor& self, const Tensor& p, Generator generator) {
  return templates::bernoulli_impl_<Bernoulli, Worker>(self, p, std::move(generator));
}
Tensor normal_tensor_float(const Tensor& mean, double std, Generator generator) {
  return templates::normal_impl<Normal, Worker>(mean, std, std::move(generator));
}
Tensor normal_float_tensor(double mean, const Tensor& std, Generator generator) {
  return templates::normal_impl<Normal, Worker>(mean, std, std::move(generator));
}
Tensor normal_tensor_tensor(const Tensor& mean, const Tensor& std, Generator generator) {
  return templates::normal_impl<Normal, Worker>(mean, std, std::move(generator));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dtorch, library) {
  adopt(library, "uniform_", &uniform_);
  adopt(library, "normal_", &normal_);
  adopt(library, "random_", &random_);
  adopt(library, "random_.from", &random_from);
  adopt(library, "random_.to", &random_to);
  adopt(library, "cauchy_", &cauchy_);
  adopt(library, "log_normal_", &log_normal_);
  adopt(library, "geometric_", &geometric_);
  adopt(library, "exponential_", &exponential_);
  adopt(library, "bernoulli_.float", &bernoulli_float);
  adopt(library, "bernoulli_.Tensor", &bernoulli_tensor);
  adopt(library, "normal.Tensor_float", &normal_tensor_float);
  adopt(library, "normal.float_Tensor", &normal_float_tensor);
  adopt(library, "normal.Tensor_Tensor", &normal_tensor_tensor);
}

}  // namespace dtorch
