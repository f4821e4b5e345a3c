#include "random/philox.h"

#include <c10/util/bit_cast.h>

#include <cmath>
#include <numbers>

// The same instructions, twice as many at a time where the machine can. No fused multiply-add:
// it would round differently.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DTORCH_VECTOR_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define DTORCH_VECTOR_CLONES
#endif

namespace dtorch {
namespace {

constexpr int kRounds = 10;
constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

std::array<uint32_t, 2> key_of(const PhiloxStream& stream) {
  return {static_cast<uint32_t>(stream.seed), static_cast<uint32_t>(stream.seed >> 32)};
}

PhiloxBlock counter_of(const PhiloxStream& stream, uint64_t block, uint64_t draw) {
  return {static_cast<uint32_t>(block),
          static_cast<uint32_t>(block >> 32 & 0xffff) | static_cast<uint32_t>(draw << 16),
          static_cast<uint32_t>(stream.offset), static_cast<uint32_t>(stream.offset >> 32)};
}

}  // namespace

PhiloxBlock philox(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = static_cast<uint64_t>(kMultiplier0) * counter[0];
    const uint64_t b = static_cast<uint64_t>(kMultiplier1) * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

DTORCH_VECTOR_CLONES
void philox_blocks(const PhiloxStream& stream, uint64_t first, int count, PhiloxWords* words) {
  constexpr int kBlocks = PhiloxWords::kMaxBlocks;
  auto key = key_of(stream);
  if (count < kBlocks) {
    for (int b = 0; b < count; ++b) {
      const auto block = philox(counter_of(stream, first + b, 0), key);
      for (int w = 0; w < 4; ++w) words->word[w][b] = block[w];
    }
    return;
  }
  auto& word = words->word;
  for (int b = 0; b < kBlocks; ++b) {
    word[0][b] = static_cast<uint32_t>(first + b);
    word[1][b] = static_cast<uint32_t>((first + b) >> 32 & 0xffff);
    word[2][b] = static_cast<uint32_t>(stream.offset);
    word[3][b] = static_cast<uint32_t>(stream.offset >> 32);
  }
  for (int round = 0; round < kRounds; ++round) {
    for (int b = 0; b < kBlocks; ++b) {
      const uint64_t a = static_cast<uint64_t>(kMultiplier0) * word[0][b];
      const uint64_t c = static_cast<uint64_t>(kMultiplier1) * word[2][b];
      word[0][b] = static_cast<uint32_t>(c >> 32) ^ word[1][b] ^ key[0];
      word[2][b] = static_cast<uint32_t>(a >> 32) ^ word[3][b] ^ key[1];
      word[1][b] = static_cast<uint32_t>(c);
      word[3][b] = static_cast<uint32_t>(a);
    }
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
}

uint64_t PhiloxElement::next() {
  if (draw_ % 2 == 0) block_ = philox(counter_of(stream_, element_, draw_ / 2), key_of(stream_));
  const int at = draw_++ % 2 * 2;
  return block_[at] | static_cast<uint64_t>(block_[at + 1]) << 32;
}

double PhiloxElement::uniform() { return open_uniform(next()); }

double PhiloxElement::normal() {
  const uint64_t first = next();
  return normal_pair(first, next())[0];
}

std::array<double, 2> normal_pair(uint64_t first, uint64_t second) {
  const double radius = std::sqrt(-2.0 * std::log(open_uniform(first)));
  const double angle = 2.0 * std::numbers::pi * open_uniform(second);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

namespace {

// Natural logarithm of a float in (0, 1], after Cephes (Moshier 1989): below 2 ulp.
inline float log_of(float x) {
  const auto bits = c10::bit_cast<int32_t>(x);
  float exponent = static_cast<float>((bits >> 23) - 126);
  float m = c10::bit_cast<float>((bits & 0x7fffff) | 0x3f000000);
  const bool low = m < 0.707106781186547524f;
  exponent -= low ? 1.0f : 0.0f;
  m = (low ? m + m : m) - 1.0f;
  const float z = m * m;
  float y = 7.0376836292e-2f;
  y = y * m - 1.1514610310e-1f;
  y = y * m + 1.1676998740e-1f;
  y = y * m - 1.2420140846e-1f;
  y = y * m + 1.4249322787e-1f;
  y = y * m - 1.6668057665e-1f;
  y = y * m + 2.0000714765e-1f;
  y = y * m - 2.4999993993e-1f;
  y = y * m + 3.3333331174e-1f;
  y = y * m * z - 2.12194440e-4f * exponent - 0.5f * z;
  return m + y + 0.693359375f * exponent;
}

// Sine and cosine of the angle that is `turn` / 2^32 of a full turn.
inline void sine_cosine(uint32_t turn, float* sine, float* cosine) {
  const uint32_t quarter = (turn + (1u << 29)) >> 30;
  const float x = static_cast<float>(static_cast<int32_t>(turn - (quarter << 30))) *
                  1.46291807926715968105e-9f;  // 2 pi / 2^32
  const float z = x * x;
  const float s =
      ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * x + x;
  const float c = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z +
                   4.166664568298827e-2f) * z * z - 0.5f * z + 1.0f;
  const bool swapped = (quarter & 1) != 0;
  const float along = swapped ? s : c, across = swapped ? c : s;
  *cosine = ((quarter + 1) & 2) != 0 ? -along : along;
  *sine = (quarter & 2) != 0 ? -across : across;
}

}  // namespace

DTORCH_VECTOR_CLONES
void normal_blocks(const PhiloxWords& words, int count, float* values) {
  float part[4][PhiloxWords::kMaxBlocks];
  for (int pair = 0; pair < 4; pair += 2) {
    for (int b = 0; b < count; ++b) {
      // In (0, 1]; 31 bits, since vector units convert signed numbers.
      const float u = static_cast<float>(static_cast<int32_t>(words.word[pair][b] >> 1)) * 0x1p-31f +
                      0x1p-32f;
      const float squared = -2.0f * log_of(u);
      const float radius = std::sqrt(squared > 0.0f ? squared : 0.0f);
      float sine, cosine;
      sine_cosine(words.word[pair + 1][b], &sine, &cosine);
      part[pair][b] = radius * cosine;
      part[pair + 1][b] = radius * sine;
    }
  }
  for (int b = 0; b < count; ++b) {
    for (int w = 0; w < 4; ++w) values[4 * b + w] = part[w][b];
  }
}

}  // namespace dtorch
