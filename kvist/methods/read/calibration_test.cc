// SPDX-License-Identifier: MIT
// Tests of calibration: moments against two plain passes, bases of a head's own, rounding, and
// files that come back or are refused.
#include "kvist/methods/read/calibration.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/methods/read/accumulator.h"

namespace kvist {
namespace {

using Floats = std::vector<float>;

const ReadSource kSource{"0123abcd", "base 100000", {2, 2, 4, 16}};

Floats rows(int n, int heads, int d, uint64_t seed, double shift = 0) {
  Rng rng(seed);
  Floats out(static_cast<size_t>(n) * static_cast<size_t>(heads * d));
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t c = i % static_cast<size_t>(d);
    out[i] = static_cast<float>(rng.gaussian() / (1 + static_cast<double>(c)) + shift * (c == 1));
  }
  return out;
}

struct Text {
  Floats k, v, q;
};
Text text(const ReadShape& shape, int n, uint64_t seed, double shift = 0) {
  return {rows(n, shape.kv_heads, shape.head_dim, seed, shift),
          rows(n, shape.kv_heads, shape.head_dim, seed + 1),
          rows(n, shape.heads, shape.head_dim, seed + 2)};
}

ReadCalibration measured(const ReadBasis& basis, int n = 50, double shift = 0) {
  CalibrationAccumulator sums(kSource, basis);
  for (int layer = 0; layer < 2; ++layer) {
    const Text t = text(kSource.shape, n, static_cast<uint64_t>(layer + 7), shift);
    sums.add(layer, n, t.k.data(), t.v.data(), n, t.q.data());
  }
  return sums.finish();
}

void expect_same(const ReadCalibration& a, const ReadCalibration& b) {
  EXPECT_EQ(a.source, b.source);
  EXPECT_EQ(a.basis, b.basis);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.positions, b.positions);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t l = 0; l < a.layers.size(); ++l) {
    EXPECT_EQ(a.layers[l].format, b.layers[l].format);
    EXPECT_EQ(a.layers[l].mu_k, b.layers[l].mu_k);
    EXPECT_EQ(a.layers[l].sigma_k, b.layers[l].sigma_k);
    EXPECT_EQ(a.layers[l].mu_v, b.layers[l].mu_v);
    EXPECT_EQ(a.layers[l].sigma_v, b.layers[l].sigma_v);
    EXPECT_EQ(a.layers[l].m2q, b.layers[l].m2q);
    EXPECT_EQ(a.layers[l].klt, b.layers[l].klt);
  }
}

// Mean, population spread and mean square of every channel of rows [n][wide], in two passes.
struct Plain {
  std::vector<double> mean, sd, square;
};
Plain plain(const Floats& x, int n) {
  const size_t wide = x.size() / static_cast<size_t>(n);
  Plain out{std::vector<double>(wide), std::vector<double>(wide), std::vector<double>(wide)};
  for (size_t i = 0; i < x.size(); ++i) out.mean[i % wide] += static_cast<double>(x[i]) / n;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto value = static_cast<double>(x[i]);
    out.sd[i % wide] += std::pow(value - out.mean[i % wide], 2) / n;
    out.square[i % wide] += value * value / n;
  }
  for (double& s : out.sd) s = std::sqrt(s);
  return out;
}

void expect_near(const Floats& got, const std::vector<double>& want, double rel, double abs) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(static_cast<double>(got[i]), want[i], rel * std::abs(want[i]) + abs) << i;
}

class Bases : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Calibration, Bases, ::testing::Bool());

TEST_P(Bases, MomentsOfTransformedRows) {
  const int n = 200;
  const ReadCalibration got = measured({.klt = GetParam()}, n, 3.0);
  EXPECT_EQ(got.tokens, n);
  const int d = kSource.shape.head_dim;
  for (int layer = 0; layer < 2; ++layer) {
    Text t = text(kSource.shape, n, static_cast<uint64_t>(layer + 7), 3.0);
    for (int row = 0; row < n; ++row) {
      for (int g = 0; g < 2; ++g)
        got.key_transform(layer, g).apply(t.k.data() + (row * 2 + g) * d, 1);
      for (int h = 0; h < 4; ++h)
        got.key_transform(layer, h / 2).apply(t.q.data() + (row * 4 + h) * d, 1);
    }
    got.value_transform(layer).apply(t.v.data(), n * 2);
    const auto& have = got.layers[static_cast<size_t>(layer)];
    const Plain k = plain(t.k, n), v = plain(t.v, n), q = plain(t.q, n);
    EXPECT_EQ(have.format, Scalar::f16);
    expect_near(have.mu_k, k.mean, 0x1p-11, 1e-6);
    expect_near(have.sigma_k, k.sd, 0x1p-11, 1e-6);
    expect_near(have.mu_v, v.mean, 0x1p-11, 1e-6);
    expect_near(have.sigma_v, v.sd, 0x1p-11, 1e-6);
    expect_near(have.m2q, q.square, 1e-5, 0);
    for (float x : have.mu_k) EXPECT_EQ(to_float(to_f16(x)), x);
  }
}

TEST_P(Bases, CutsAndThreadsDoNotMatter) {
  const ReadBasis basis{.klt = GetParam()};
  const ReadCalibration want = measured(basis);
  CalibrationAccumulator sums(kSource, basis);
  std::vector<std::thread> threads;
  for (int layer = 0; layer < 2; ++layer) {
    threads.emplace_back([&sums, layer] {
      const Text t = text(kSource.shape, 50, static_cast<uint64_t>(layer + 7));
      for (int begin = 0; begin < 50; begin += 7) {
        const int n = std::min(7, 50 - begin);
        sums.add(layer, n, t.k.data() + begin * 32, t.v.data() + begin * 32, n,
                 t.q.data() + begin * 64);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  expect_same(sums.finish(), want);
}

TEST(Calibration, KltRowsAreOrthonormalAndOrdered) {
  const ReadCalibration c = measured({.klt = true}, 400);
  const int d = kSource.shape.head_dim;
  EXPECT_EQ(c.charged_bytes(), 2u * (2 * 4 * 32 + 2 * 2 * 16 * 16));
  for (int g = 0; g < 2; ++g) {
    const HeadTransform u = c.key_transform(1, g);
    for (int i = 0; i < d; ++i) {
      Floats unit(static_cast<size_t>(d), 0.0f);
      unit[static_cast<size_t>(i)] = 1;
      u.undo(unit.data(), 1);
      for (int j = 0; j < d; ++j) {
        Floats other(static_cast<size_t>(d), 0.0f);
        other[static_cast<size_t>(j)] = 1;
        u.undo(other.data(), 1);
        double dot = 0;
        for (int x = 0; x < d; ++x)
          dot += static_cast<double>(unit[static_cast<size_t>(x)]) *
                 static_cast<double>(other[static_cast<size_t>(x)]);
        ASSERT_NEAR(dot, i == j ? 1 : 0, 2e-7);
      }
    }
    const float* rows16 = c.layers[1].klt.data() + g * d * d;
    for (int i = 0; i < d; ++i) {
      const float* row = rows16 + i * d;
      const float* largest = std::max_element(
          row, row + d, [](float a, float b) { return std::abs(a) < std::abs(b); });
      EXPECT_GT(*largest, 0);
      const float* sigma = c.layers[1].sigma_k.data() + g * d;
      if (i > 0) {
        EXPECT_LE(sigma[i], sigma[i - 1] * 1.001f);
      }
    }
  }
}

TEST(Calibration, LargeNumbersTakeBf16AndConstantsAFloor) {
  const ReadSource one{"m", "r", {1, 1, 1, 4}};
  Floats k = {1e5f, 0, 0, 0, 1e5f, 0, 0, 0}, v(8, 0.25f), q(8, 1.0f);
  CalibrationAccumulator sums(one, {});
  sums.add(0, 2, k.data(), v.data(), 2, q.data());
  EXPECT_EQ(sums.finish().layers[0].format, Scalar::f16);  // 5e4 after the transform
  k[0] = k[4] = 2e5f;
  CalibrationAccumulator large(one, {});
  large.add(0, 2, k.data(), v.data(), 2, q.data());
  const auto layer = large.finish().layers[0];
  EXPECT_EQ(layer.format, Scalar::bf16);
  EXPECT_EQ(std::abs(layer.mu_k[0]), to_float(to_bf16(1e5f)));
  EXPECT_EQ(layer.sigma_k[0], 0x1p-126f);
  EXPECT_EQ(sums.finish().layers[0].sigma_v[0], 0x1p-14f);
}

TEST(Calibration, RefusesWhatIsNoNumber) {
  CalibrationAccumulator sums(kSource, {});
  Text t = text(kSource.shape, 3, 1);
  EXPECT_THROW(sums.finish(), Error);
  t.v[5] = std::nanf("");
  try {
    sums.add(1, 3, t.k.data(), t.v.data(), 3, t.q.data());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::corrupt);
    EXPECT_NE(std::string(error.what()).find("layer 1: values"), std::string::npos) << error.what();
  }
  EXPECT_THROW(CalibrationAccumulator({"m", "r", {1, 2, 3, 8}}, {}), Error);
}

TEST(Calibration, FixedKeysAreMeanSquares) {
  const ReadCalibration c = measured({});
  Floats a(32);
  calibration_fixed_keys(c, 1, a);
  const auto& layer = c.layers[1];
  for (size_t i = 0; i < 32; ++i) {
    const size_t g = i / 16, channel = i % 16;
    const float sum = layer.m2q[(2 * g) * 16 + channel] + layer.m2q[(2 * g + 1) * 16 + channel];
    EXPECT_NEAR(a[i], sum * layer.sigma_k[i] * layer.sigma_k[i], 1e-6f * a[i]);
  }
}

TEST(Calibration, FitsOnlyItsModel) {
  const ReadCalibration c = measured({});
  EXPECT_NO_THROW(c.check_fits(kSource));
  ReadSource other = kSource;
  other.model = "ffff";
  try {
    c.check_fits(other);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    const std::string what = error.what();
    EXPECT_NE(what.find("0123abcd"), std::string::npos);
    EXPECT_NE(what.find("ffff"), std::string::npos);
  }
  other = kSource;
  other.rope = "base 10000";
  EXPECT_THROW(c.check_fits(other), Error);
  other = kSource;
  other.shape.layers = 3;
  EXPECT_THROW(c.check_fits(other), Error);
}

TEST_P(Bases, FilesComeBack) {
  const ReadCalibration want = measured({.seed = 5, .layer_signs = true, .klt = GetParam()});
  const std::string path = ::testing::TempDir() + "kvist_calibration_test.bin";
  save(want, path);
  expect_same(load_calibration(path), want);
  std::remove(path.c_str());
  try {
    load_calibration(path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::not_found);
  }
}

ErrorKind refusal(const std::vector<uint8_t>& bytes, std::string* what = nullptr) {
  try {
    decode_calibration(bytes, "file");
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("file: ")) << error.what();
    if (what != nullptr) *what = error.what();
    return error.kind();
  }
  ADD_FAILURE() << "accepted";
  return ErrorKind::io;
}

TEST(Calibration, RefusesEveryTruncationAndFlip) {
  const std::vector<uint8_t> whole = encode(measured({.klt = true}));
  for (size_t n = 0; n < whole.size(); ++n)
    ASSERT_EQ(refusal({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)}),
              ErrorKind::corrupt)
        << n;
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::vector<uint8_t> flipped = whole;
    flipped[bit / 8] = static_cast<uint8_t>(flipped[bit / 8] ^ 1u << bit % 8);
    ASSERT_EQ(refusal(flipped), ErrorKind::corrupt) << bit;
  }
  std::vector<uint8_t> longer = whole;
  longer.push_back(0);
  EXPECT_EQ(refusal(longer), ErrorKind::corrupt);
  std::string what;
  std::vector<uint8_t> newer = whole;
  newer[8] = 9;
  refusal(newer, &what);
  EXPECT_EQ(what, "file: version: found 9; expected 2; make the file anew with kvist calibrate");
}

// A field changed and the checksum made right again: what a broken writer would leave.
std::vector<uint8_t> forged(std::vector<uint8_t> bytes, size_t at, uint8_t value) {
  bytes[at] = value;
  const uint64_t sum = XXH64(bytes.data(), bytes.size() - 8, 0);
  std::memcpy(bytes.data() + bytes.size() - 8, &sum, 8);
  return bytes;
}

TEST(Calibration, RefusesFieldsByName) {
  const std::vector<uint8_t> whole = encode(measured({}));
  const size_t model = 12, shape = model + 4 + kSource.model.size() + 4 + kSource.rope.size();
  const size_t basis = shape + 16, first_layer = basis + 8 + 2 + 8 + 8 + 8;
  const struct {
    size_t at;
    uint8_t value;
    const char* what;
  } cases[] = {
      {model + 1, 0x40, "model: found 16392 bytes; expected at most 4096"},
      {shape, 0, "layers: found 0; expected 1 to 4096"},
      {shape + 3, 0xFF, "layers: found -16777214; expected 1 to 4096"},
      {shape, 3, "format of a layer: found 0 bytes; expected 1"},
      {shape, 1, "end: found "},
      {shape + 8, 5, "heads: found 5; expected a multiple of 2"},
      {shape + 13, 0x7F, "head dimension: found 32528; expected 1 to 1024"},
      {basis + 9, 2, "klt: found 2; expected at most 1"},
      {basis + 17, 0x80, "tokens: found -"},
      {basis + 25, 0x80, "positions: found -"},
      {basis + 26, 1, "tables: found "},
      {first_layer, 2, "format of a layer: found 2; expected at most 1"},
      {first_layer + 2, 0x7C, "means of keys: found "},
      {first_layer + 1 + 64 + 1, 0x80, "scales of keys: found -"},
  };
  for (const auto& item : cases) {
    std::string what;
    EXPECT_EQ(refusal(forged(whole, item.at, item.value), &what), ErrorKind::corrupt);
    EXPECT_TRUE(what.starts_with(str("file: ", item.what))) << what;
  }
}

}  // namespace
}  // namespace kvist
