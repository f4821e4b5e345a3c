// Random operators that read their input element by element: samples, permutations, dropout.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/native/Distributions.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "random/adopt.h"
#include "random/fill.h"

namespace dtorch {
namespace {

using at::Tensor;
using Generator = std::optional<at::Generator>;

// ---- by element: as many numbers as rejection takes ------------------------------------------

// out[i] = sample(numbers, given[i]) in double, in the dtype of `given`.
template <class Sample>
Tensor sample_each(const Tensor& given, const Generator& generator, const Sample& sample) {
  const auto input = given.to(at::kCPU, at::kDouble).contiguous();
  const auto output = at::empty(given.sizes(), given.options().device(at::kCPU));
  const double* data = input.const_data_ptr<double>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, given.scalar_type(), "sample_each", [&] {
    fill_of_streams<scalar_t>(output, part_of(generator), [&](PhiloxElement& numbers, int64_t i) {
      return static_cast<scalar_t>(sample(numbers, data[i], i));
    });
  });
  return output.to(given.device());
}

double gamma(PhiloxElement& numbers, double alpha) {
  auto uniform = [&] { return numbers.uniform(); };
  auto normal = [&] { return numbers.normal(); };
  BaseSampler<double, decltype(uniform)> uniforms(uniform);
  BaseSampler<double, decltype(normal)> normals(normal);
  return sample_gamma<double, double, decltype(uniform), decltype(normal)>(alpha, uniforms, normals);
}

// By products of uniforms (Knuth 1969) for a small rate, else by transformed rejection (Hörmann
// 1993, "PTRS"), as PyTorch's and NumPy's.
double poisson_number(PhiloxElement& numbers, double rate) {
  TORCH_CHECK(rate >= 0, "invalid Poisson rate, expected rate to be non-negative");
  if (rate == 0) return 0;
  if (rate < 10) {
    const double limit = std::exp(-rate);
    double product = 1, count = -1;
    do {
      product *= numbers.uniform();
      ++count;
    } while (product > limit);
    return count;
  }
  const double root = std::sqrt(rate), log_rate = std::log(rate);
  const double b = 0.931 + 2.53 * root, a = -0.059 + 0.02483 * b;
  const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), v_low = 0.9277 - 3.6224 / (b - 2);
  while (true) {
    const double u = numbers.uniform() - 0.5, v = numbers.uniform();
    const double us = 0.5 - std::fabs(u);
    const double k = std::floor((2 * a / us + b) * u + rate + 0.43);
    if (us >= 0.07 && v <= v_low) return k;
    if (k < 0 || (us < 0.013 && v > us)) continue;
    if (std::log(v) + std::log(inverse_alpha) - std::log(a / (us * us) + b) <=
        -rate + k * log_rate - std::lgamma(k + 1)) {
      return k;
    }
  }
}

Tensor poisson(const Tensor& rate, Generator generator) {
  return sample_each(rate, generator, [](PhiloxElement& numbers, double value, int64_t) {
    return poisson_number(numbers, value);
  });
}

Tensor standard_gamma(const Tensor& alpha, Generator generator) {
  const double least = alpha.scalar_type() == at::kDouble ? std::numeric_limits<double>::min()
                                                          : std::numeric_limits<float>::min();
  return sample_each(alpha, generator, [=](PhiloxElement& numbers, double value, int64_t) {
    return std::max(least, gamma(numbers, value));
  });
}

Tensor sample_dirichlet(const Tensor& alpha, Generator generator) {
  const auto drawn = standard_gamma(alpha.to(at::kDouble), std::move(generator));
  return (drawn / drawn.sum(-1, true)).to(alpha.scalar_type());
}

Tensor binomial(const Tensor& count, const Tensor& prob, Generator generator) {
  const auto chances = prob.to(at::kCPU, at::kDouble).expand(count.sizes()).contiguous();
  const double* chance = chances.const_data_ptr<double>();
  return sample_each(count, generator, [=](PhiloxElement& numbers, double value, int64_t i) {
    auto uniform = [&] { return numbers.uniform(); };
    BaseSampler<double, decltype(uniform)> uniforms(uniform);
    return sample_binomial<double, double, decltype(uniform)>(value, chance[i], uniforms);
  });
}

// ---- dropout ---------------------------------------------------------------------------------

void keep(const Tensor& mask, double chance, const Generator& generator) {
  const auto below = static_cast<uint64_t>(std::ceil(chance * 0x1p32));
  fill_of_words<bool>(mask, part_of(generator), [=](uint32_t word) { return word < below; });
}

// As PyTorch's CPU kernel.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train,
                                          Generator generator) {
  const auto mask_options = input.options().dtype(at::kBool);
  if (train && !*train) return {input.clone(), at::ones_like(input, mask_options)};
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  auto mask = at::empty_like(input, mask_options);
  keep(mask, 1.0 - p, generator);
  return {input.mul(mask).mul_(p == 1.0 ? 0.0 : 1.0 / (1.0 - p)), mask};
}

Tensor rrelu(const Tensor& self, Tensor& noise, const at::Scalar& lower, const at::Scalar& upper,
             bool training, const Generator& generator) {
  if (!training) return at::leaky_relu(self, (lower.toDouble() + upper.toDouble()) / 2);
  const double low = lower.toDouble(), width = upper.toDouble() - low;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "rrelu", [&] {
    fill_of_long_words<scalar_t>(noise, part_of(generator), [=](uint64_t bits) {
      return static_cast<scalar_t>(low + width * (static_cast<double>(bits >> 11) * 0x1p-53));
    });
  });
  noise.masked_fill_(self.le(0).logical_not_(), 1);
  return self * noise;
}

Tensor rrelu_with_noise(const Tensor& self, Tensor& noise, const at::Scalar& lower,
                        const at::Scalar& upper, bool training, Generator generator) {
  return rrelu(self, noise, lower, upper, training, generator);
}

Tensor& rrelu_with_noise_(Tensor& self, Tensor& noise, const at::Scalar& lower,
                          const at::Scalar& upper, bool training, Generator generator) {
  return self.copy_(rrelu(self, noise, lower, upper, training, generator));
}

// ---- choosing --------------------------------------------------------------------------------

// The numbers of a call whose output has other last sizes than the tensor they are drawn for.
RandomPart with_last_size(RandomPart part, int64_t size) {
  if (part.is_whole) return part;
  part.global_sizes.back() = size;
  part.offsets.back() = 0;
  return part;
}

Tensor choose_with_replacement(const Tensor& weights, int64_t num_samples, const RandomPart& part) {
  auto sizes = weights.sizes().vec();
  const int64_t categories = sizes.back();
  sizes.back() = num_samples;
  auto sums = weights.cumsum(-1);
  const double* cumulative = sums.const_data_ptr<double>();
  const auto chosen = at::empty(sizes, at::kLong);
  fill_of_streams<int64_t>(chosen, part, [&](PhiloxElement& numbers, int64_t i) {
    const double* row = cumulative + i / num_samples * categories;
    const double* end = row + categories;
    const double total = end[-1];
    // The first category whose sum is above: one without weight is never chosen.
    const auto* found = std::upper_bound(row, end, numbers.uniform() * total);
    if (found == end) found = std::lower_bound(row, end, total);
    return static_cast<int64_t>(found - row);
  });
  return chosen;
}

// The largest weights over exponential numbers are a sample without replacement (Efraimidis and
// Spirakis 2006), in the order in which they would be drawn.
Tensor choose_distinct(const Tensor& weights, int64_t num_samples, const RandomPart& part) {
  auto waits = at::empty_like(weights);
  fill_of_long_words<double>(waits, with_last_size(part, weights.size(-1)), [](uint64_t bits) {
    return -std::log(open_uniform(bits));
  });
  return std::get<1>(at::topk(weights / waits, num_samples, -1));
}

Tensor multinomial(const Tensor& self, int64_t num_samples, bool replacement, Generator generator) {
  TORCH_CHECK(self.dim() == 1 || self.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(at::isFloatingType(self.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(num_samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || num_samples <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  auto sizes = self.sizes().vec();
  sizes.back() = num_samples;
  if (self.numel() == 0) return at::empty(sizes, self.options().dtype(at::kLong));
  const auto weights = self.to(at::kCPU, at::kDouble).contiguous();
  TORCH_CHECK(weights.isfinite().logical_and_(weights.ge(0)).all().item<bool>(),
              "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK(weights.sum(-1).gt(0).all().item<bool>(),
              "invalid multinomial distribution (sum of probabilities <= 0)");
  const auto& part = part_of(generator);
  const auto chosen = replacement ? choose_with_replacement(weights, num_samples, part)
                                  : choose_distinct(weights, num_samples, part);
  return chosen.to(self.device());
}

// Fisher and Yates's shuffle. Every worker that holds the permutation makes it whole.
Tensor& randperm(int64_t n, Generator generator, Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  at::native::check_supported_max_int_with_precision(n, out);
  out.resize_({n});
  const auto order = at::arange(n, at::kLong);
  auto* data = order.mutable_data_ptr<int64_t>();
  std::vector<uint64_t> bits(std::min<int64_t>(n, 4096));
  for (int64_t i = 0; i + 1 < n; ++i) {
    const auto at = static_cast<size_t>(i) % bits.size();
    if (at == 0) {
      fill_run<2>(bits.data(), i, static_cast<int64_t>(bits.size()), part_of(generator).stream,
                  [](const PhiloxWords& words, int blocks, uint64_t* values) {
                    for (int b = 0; b < blocks; ++b) {
                      for (int h = 0; h < 2; ++h) values[2 * b + h] = long_word(words, h, b);
                    }
                  });
    }
    const auto range = static_cast<unsigned __int128>(n - i);
    std::swap(data[i], data[i + static_cast<int64_t>(bits[at] * range >> 64)]);
  }
  return out.copy_(order);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dtorch, library) {
  adopt(library, "poisson", &poisson);
  adopt(library, "_standard_gamma", &standard_gamma);
  adopt(library, "_sample_dirichlet", &sample_dirichlet);
  adopt(library, "binomial", &binomial);
  adopt(library, "rrelu_with_noise", &rrelu_with_noise);
  adopt(library, "rrelu_with_noise_", &rrelu_with_noise_);
  adopt(library, "multinomial", &multinomial);
  adopt(library, "randperm.generator_out", &randperm);
  // PyTorch's has no generator among its arguments: capture adds one.
  library.def("native_dropout(Tensor input, float p, bool? train, Generator? generator) "
              "-> (Tensor, Tensor)",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &native_dropout));
}

}  // namespace dtorch
