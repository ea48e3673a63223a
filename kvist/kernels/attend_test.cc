// SPDX-License-Identifier: MIT
// Attention over one run against softmax attention in double precision, on every SIMD target, and
// the moves in and out of blocks.
#include "kvist/kernels/attend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kvist/core/buffer.h"
#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/kernels/attend_internal.h"
#include "kvist/kernels/targets.h"

namespace kvist::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A run in its own memory and the same numbers, as stored, in rows. A frozen run has an exact last
// block and not one byte more.
struct TestRun {
  std::vector<std::byte> k_bytes, v_bytes;
  std::vector<float> k, v;  // [n][head_dim] as read back
  KvRun run;
};

float round_to(Scalar type, float x) {
  if (type == Scalar::f16) return to_float(to_f16(x));
  return type == Scalar::bf16 ? to_float(to_bf16(x)) : x;
}

TestRun make_run(Scalar type, int head_dim, int n, bool frozen, uint64_t seed) {
  Rng rng(seed);
  const int padded = (n + kBlock - 1) / kBlock * kBlock;
  const size_t number = static_cast<size_t>(size_of(type));
  const size_t bytes = static_cast<size_t>(padded * head_dim) * number;
  TestRun out;
  out.k_bytes.resize(bytes);
  out.v_bytes.resize(bytes);
  for (int i = 0; i < n * head_dim; ++i) {
    out.k.push_back(static_cast<float>(rng.gaussian()));
    out.v.push_back(static_cast<float>(rng.gaussian()));
  }
  for (int t = 0; t < n; ++t)
    store_token(out.k_bytes.data(), out.v_bytes.data(), type, head_dim, t, &out.k[t * head_dim],
                &out.v[t * head_dim]);
  for (float& x : out.k) x = round_to(type, x);
  for (float& x : out.v) x = round_to(type, x);
  out.run = {out.k_bytes.data(), out.v_bytes.data(), type, head_dim, n, kBlock};
  if (frozen) {
    std::vector<int32_t> all(static_cast<size_t>(n));
    for (int t = 0; t < n; ++t) all[static_cast<size_t>(t)] = t;
    const size_t exact = static_cast<size_t>(n * head_dim) * number;
    std::vector<std::byte> k(exact), v(exact);
    gather(out.run, all, k.data(), v.data());
    out.k_bytes = std::move(k);
    out.v_bytes = std::move(v);
    const int width = n % kBlock == 0 ? kBlock : n % kBlock;
    out.run = {out.k_bytes.data(), out.v_bytes.data(), type, head_dim, n, width};
  }
  return out;
}

std::vector<float> make_queries(int rows, int head_dim, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> q;
  for (int i = 0; i < rows * head_dim; ++i)
    q.push_back(static_cast<float>(rng.gaussian() / std::sqrt(head_dim)));
  return q;
}

struct Softmax {
  std::vector<float> m, l, o;
  Softmax(int rows, int head_dim)
      : m(static_cast<size_t>(rows)), l(m.size()), o(static_cast<size_t>(rows * head_dim)) {
    reset(view(), rows, head_dim);
  }
  SoftmaxState view() { return {m.data(), l.data(), o.data()}; }
};

std::vector<float> run_attend(const KvRun& run, const std::vector<float>& q, int rows,
                              const int32_t* visible, Precision precision, int cut) {
  Softmax state(rows, run.head_dim);
  Buffer<std::byte> scratch(attend_scratch_bytes(rows, run.head_dim));
  if (cut > 0)
    attend(run, 0, cut, q.data(), rows, visible, precision, state.view(), scratch.data());
  attend(run, cut, run.n_tokens, q.data(), rows, visible, precision, state.view(), scratch.data());
  std::vector<float> out(q.size(), 7.0f);
  finish(state.view(), rows, run.head_dim, out.data(), run.head_dim);
  return out;
}

// One row in double precision. Returns the largest |v| that it sees and the largest |logit| in
// *spread.
std::vector<double> reference(const TestRun& kv, const float* q, int count, double* spread) {
  const int d = kv.run.head_dim;
  std::vector<double> logits, out(static_cast<size_t>(d));
  double top = -1e300, l = 0;
  *spread = 0;
  for (int t = 0; t < count; ++t) {
    double x = 0, size = 0;
    for (int c = 0; c < d; ++c) {
      x += double{q[c]} * double{kv.k[t * d + c]};
      size += std::abs(double{q[c]} * double{kv.k[t * d + c]});
    }
    logits.push_back(x);
    top = std::max(top, x);
    *spread = std::max(*spread, size);
  }
  for (int t = 0; t < count; ++t) {
    const double p = std::exp(logits[static_cast<size_t>(t)] - top);
    l += p;
    for (int c = 0; c < d; ++c) out[static_cast<size_t>(c)] += p * double{kv.v[t * d + c]};
  }
  for (double& x : out) x = l == 0 ? 0 : x / l;
  return out;
}

// Bound on |out - reference|: an error e of every logit and e' of every weight moves a weighted
// mean of values by at most (2 e + e') max|v|. fp32: e = (d + 4) eps sum|q k|, e' = (n + 8) eps
// (sums) plus 4e-7 (exp). bf16: products of q rounded to 2^-9 and K exact where stored as bf16,
// else 2^-9 more; weights 2^-9 and V 2^-9.
double bound(const TestRun& kv, int count, double spread, bool bf16_products) {
  constexpr double kEps = 0x1p-24;
  const double d = kv.run.head_dim;
  double largest = 0;
  for (int i = 0; i < count * kv.run.head_dim; ++i)
    largest = std::max(largest, std::abs(double{kv.v[i]}));
  double logit = (d + 4) * kEps * spread, weight = (count + 8) * kEps + 4e-7;
  if (bf16_products) {
    logit += 2 * 0x1p-9 * spread;
    weight += 2 * 0x1p-9;
  }
  return (2 * logit + weight) * largest + 1e-30;
}

void expect_close(const TestRun& kv, const std::vector<float>& q, int rows, const int32_t* visible,
                  Precision precision, const std::string& where) {
  const int d = kv.run.head_dim, n = kv.run.n_tokens;
  const bool bf16_products = precision == Precision::fast && rows >= kFastRows && has_bf16_dot();
  const int cut = n / 2 / kBlock * kBlock;
  const auto out = run_attend(kv.run, q, rows, visible, precision, cut);
  for (int r = 0; r < rows; ++r) {
    const int count = visible == nullptr ? n : std::clamp(visible[r], 0, n);
    double spread = 0;
    const auto want = reference(kv, &q[r * d], count, &spread);
    const double allowed = bound(kv, count, spread, bf16_products);
    for (int c = 0; c < d; ++c)
      ASSERT_NEAR(double{out[r * d + c]}, want[static_cast<size_t>(c)], allowed)
          << where << " row " << r << " channel " << c;
  }
}

constexpr Scalar kTypes[] = {Scalar::f16, Scalar::bf16, Scalar::f32};

TEST(Attend, IsSoftmaxAttentionForEveryShape) {
  for_each_target([](const std::string& target) {
    uint64_t seed = 1;
    for (Scalar type : kTypes)
      for (int d : {1, 5, 64, 80, 112, 128})
        for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 24, 31, 100})
          for (int n : {1, 2, 31, 63, 64, 65, 101, 127, 128, 129}) {
            if ((d > 64 || rows > 12) && n != 31 && n != 129) continue;
            ++seed;
            const bool frozen = seed % 2 == 0;
            const auto kv = make_run(type, d, n, frozen, seed);
            const auto q = make_queries(rows, d, seed + 1000);
            for (Precision precision : {Precision::exact, Precision::fast})
              expect_close(kv, q, rows, nullptr, precision,
                           str(target, " ", name(type), " d ", d, " rows ", rows, " n ", n,
                               " frozen ", frozen));
          }
  });
}

// Both files of bf16 products, whichever of them this CPU would choose.
TEST(Attend, Bf16PathsStayWithinTheirBound) {
  using Path = decltype(&internal::attend_bf16);
  std::vector<std::pair<const char*, Path>> paths;
  if (internal::cpu_has_bf16_dot()) paths.emplace_back("avx512bf16", internal::attend_bf16);
  if (internal::cpu_has_amx()) paths.emplace_back("amx", internal::attend_amx);
  if (paths.empty()) GTEST_SKIP() << "this CPU has no bf16 products";
  uint64_t seed = 500;
  for (const auto& [path_name, path] : paths)
    for (Scalar type : kTypes)
      for (int d : {1, 5, 16, 33, 64, 80, 96, 112, 128})
        for (int rows : {1, 15, 17, 32, 77})
          for (int n : {1, 31, 65, 200}) {
            ++seed;
            const auto kv = make_run(type, d, n, seed % 2 == 0, seed);
            const auto q = make_queries(rows, d, seed + 1);
            std::vector<int32_t> visible;
            for (int r = 0; r < rows; ++r) visible.push_back(r * 37 % (n + 9));
            const int32_t* limits = seed % 3 == 0 ? nullptr : visible.data();
            Softmax state(rows, d);
            Buffer<std::byte> scratch(attend_scratch_bytes(rows, d));
            const int cut = n / 2 / kBlock * kBlock;
            if (cut > 0) path(kv.run, 0, cut, q.data(), rows, limits, state.view(), scratch.data());
            path(kv.run, cut, n, q.data(), rows, limits, state.view(), scratch.data());
            std::vector<float> out(q.size());
            finish(state.view(), rows, d, out.data(), d);
            for (int r = 0; r < rows; ++r) {
              const int count = limits == nullptr ? n : std::min(limits[r], n);
              double spread = 0;
              const auto want = reference(kv, &q[r * d], count, &spread);
              const double allowed = bound(kv, count, spread, true);
              for (int c = 0; c < d; ++c)
                ASSERT_NEAR(double{out[r * d + c]}, want[static_cast<size_t>(c)], allowed)
                    << path_name << " " << name(type) << " d " << d << " rows " << rows << " n "
                    << n << " row " << r;
            }
          }
}

TEST(Attend, CrossesSpansAndFollowsAGrowingMaximum) {
  for_each_target([](const std::string& target) {
    for (int d : {64, 96}) {
      for (int n : {257, 509, 700}) {
        auto kv = make_run(Scalar::f32, d, n, true, 5);
        const auto q = make_queries(3, d, 6);
        // Later keys lie ever closer to the first query.
        for (int t = 0; t < n; ++t) {
          const float pull = 6.0f * static_cast<float>(t) / static_cast<float>(n);
          for (int c = 0; c < d; ++c) kv.k[t * d + c] += pull * q[c];
        }
        std::vector<std::byte> k((n + kBlock) * d * sizeof(float)), v(k.size());
        for (int t = 0; t < n; ++t)
          store_token(k.data(), v.data(), Scalar::f32, d, t, &kv.k[t * d], &kv.v[t * d]);
        kv.run = {k.data(), v.data(), Scalar::f32, d, n, kBlock};
        expect_close(kv, q, 3, nullptr, Precision::exact, str(target, " n ", n));
      }
    }
  });
}

TEST(Attend, RowsSeeOnlyWhatIsVisible) {
  for_each_target([](const std::string& target) {
    for (Scalar type : kTypes)
      for (int rows : {3, 8, 30})
        for (Precision precision : {Precision::exact, Precision::fast}) {
          const int d = 64, n = 200;
          const auto kv = make_run(type, d, n, rows == 8, 77);
          const auto q = make_queries(rows, d, 78);
          std::vector<int32_t> visible;
          for (int r = 0; r < rows; ++r) visible.push_back(r * 211 % (n + 40) - 10);
          expect_close(kv, q, rows, visible.data(), precision, str(target, " rows ", rows));
        }
  });
}

TEST(Attend, ARowDoesNotDependOnItsNeighbours) {
  for_each_target([](const std::string& target) {
    for (Scalar type : kTypes)
      for (Precision precision : {Precision::exact, Precision::fast}) {
        const int d = 80, n = 300;
        const auto kv = make_run(type, d, n, true, 9);
        const auto q = make_queries(40, d, 10);
        for (const auto& [many, few] : {std::pair{11, 1}, {7, 3}, {40, 13}}) {
          const std::vector<float> part(q.begin() + d, q.begin() + (1 + few) * d);
          const auto all = run_attend(kv.run, q, many, nullptr, precision, 128);
          const auto some = run_attend(kv.run, part, few, nullptr, precision, 128);
          for (int i = 0; i < few * d; ++i) ASSERT_EQ(all[d + i], some[i]) << target << " " << many;
        }
      }
  });
}

TEST(Attend, UnseenRowsAreZeroAndMergeWithoutNan) {
  for_each_target([](const std::string&) {
    for (int rows : {2, 20}) {
      const int d = 64;
      const auto kv = make_run(Scalar::f16, d, 70, true, 3);
      const auto q = make_queries(rows, d, 4);
      std::vector<int32_t> visible(static_cast<size_t>(rows), 0);
      visible[1] = 66;
      Softmax state(rows, d), empty(rows, d);
      Buffer<std::byte> scratch(attend_scratch_bytes(rows, d));
      attend(kv.run, 0, 70, q.data(), rows, visible.data(), Precision::fast, state.view(),
             scratch.data());
      EXPECT_EQ(state.m[0], -kInfinity);
      EXPECT_EQ(state.l[0], 0.0f);
      const Softmax before = state;
      merge(state.view(), empty.view(), rows, d);
      EXPECT_EQ(state.o, before.o);
      merge(empty.view(), state.view(), rows, d);
      EXPECT_EQ(empty.m, before.m);
      EXPECT_EQ(empty.l, before.l);
      EXPECT_EQ(empty.o, before.o);
      std::vector<float> out(static_cast<size_t>(rows * d), 1.0f);
      finish(state.view(), rows, d, out.data(), d);
      for (int c = 0; c < d; ++c) EXPECT_EQ(out[c], 0.0f);
      EXPECT_NE(out[d], 0.0f);
    }
  });
}

TEST(Attend, MergeOfTwoHalvesIsTheWhole) {
  for_each_target([](const std::string&) {
    const int d = 96, n = 640, rows = 3;
    const auto kv = make_run(Scalar::f32, d, n, false, 21);
    const auto q = make_queries(rows, d, 22);
    Softmax a(rows, d), b(rows, d);
    Buffer<std::byte> scratch(attend_scratch_bytes(rows, d));
    attend(kv.run, 0, 192, q.data(), rows, nullptr, Precision::exact, a.view(), scratch.data());
    attend(kv.run, 192, n, q.data(), rows, nullptr, Precision::exact, b.view(), scratch.data());
    merge(a.view(), b.view(), rows, d);
    std::vector<float> out(q.size());
    finish(a.view(), rows, d, out.data(), d);
    for (int r = 0; r < rows; ++r) {
      double spread = 0;
      const auto want = reference(kv, &q[r * d], n, &spread);
      for (int c = 0; c < d; ++c)
        ASSERT_NEAR(double{out[r * d + c]}, want[static_cast<size_t>(c)],
                    bound(kv, n, spread, false));
    }
  });
}

TEST(Attend, WeightsFarBelowTheMaximumVanish) {
  for_each_target([](const std::string&) {
    const int d = 1, n = 3;
    std::vector<float> k(kBlock), v(kBlock);
    const float keys[] = {0.0f, -1e4f, -86.0f}, values[] = {1.0f, 1e30f, 0.0f};
    for (int t = 0; t < n; ++t)
      store_token(k.data(), v.data(), Scalar::f32, d, t, &keys[t], &values[t]);
    const KvRun run{k.data(), v.data(), Scalar::f32, d, n, kBlock};
    const auto out = run_attend(run, {1.0f}, 1, nullptr, Precision::exact, 0);
    EXPECT_EQ(out[0], 1.0f);
  });
}

TEST(BlockLayout, LoadsWhatWasStoredOnEveryTarget) {
  for_each_target([](const std::string& target) {
    for (Scalar type : kTypes)
      for (int d : {1, 5, 64, 80})
        for (int n : {1, 63, 64, 65, 131})
          for (bool frozen : {false, true}) {
            const auto kv = make_run(type, d, n, frozen, 31);
            for (const auto& [begin, end] : {std::pair{0, n}, {n / 3, n}, {n / 2, n - n / 4}}) {
              std::vector<float> k(static_cast<size_t>((end - begin) * d)), v(k.size());
              load_keys(kv.run, begin, end, k.data());
              load_values(kv.run, begin, end, v.data());
              const auto rows = [&](const std::vector<float>& all) {
                return std::vector<float>(all.begin() + begin * d, all.begin() + end * d);
              };
              ASSERT_EQ(k, rows(kv.k)) << target << " " << name(type) << " d " << d << " n " << n;
              ASSERT_EQ(v, rows(kv.v)) << target << " " << name(type) << " d " << d << " n " << n;
            }
          }
  });
}

TEST(BlockLayout, GatherKeepsTheBitsOfSurvivors) {
  Rng rng(41);
  for (Scalar type : kTypes)
    for (int d : {1, 5, 64})
      for (int n : {1, 64, 65, 200})
        for (bool frozen : {false, true}) {
          const auto kv = make_run(type, d, n, frozen, 42);
          std::vector<int32_t> kept;
          for (int t = 0; t < n; ++t)
            if (rng.below(3) != 0) kept.push_back(t);
          const size_t bytes = kept.size() * static_cast<size_t>(d * size_of(type));
          std::vector<std::byte> k(bytes), v(bytes);
          gather(kv.run, kept, k.data(), v.data());
          if (kept.empty()) continue;
          const int m = static_cast<int>(kept.size());
          const KvRun run{k.data(), v.data(), type, d, m, m % kBlock == 0 ? kBlock : m % kBlock};
          std::vector<float> k_rows(static_cast<size_t>(m * d)), v_rows(k_rows.size());
          load_keys(run, 0, m, k_rows.data());
          load_values(run, 0, m, v_rows.data());
          for (int i = 0; i < m; ++i)
            for (int c = 0; c < d; ++c) {
              ASSERT_EQ(k_rows[i * d + c], kv.k[kept[static_cast<size_t>(i)] * d + c]);
              ASSERT_EQ(v_rows[i * d + c], kv.v[kept[static_cast<size_t>(i)] * d + c]);
            }
        }
}

TEST(BlockLayout, StoresRoundToNearestEvenOnEveryTarget) {
  const float samples[] = {1.0f,    -0.0f,    65504.0f,  65519.0f, 65520.0f,  1e-7f,
                           6e-8f,   2.98e-8f, 3.0e-8f,   1e-40f,   0.1f,      -3.14159f,
                           2049.0f, 2051.0f,  1.001953f, 1e38f,    kInfinity, -1e-5f};
  constexpr int d = static_cast<int>(std::size(samples));
  for_each_target([&](const std::string& target) {
    for (Scalar type : {Scalar::f16, Scalar::bf16}) {
      std::vector<uint16_t> k(kBlock * d), v(kBlock * d);
      store_token(k.data(), v.data(), type, d, 3, samples, samples);
      for (int c = 0; c < d; ++c) {
        const uint16_t want =
            type == Scalar::f16 ? to_f16(samples[c]).bits : to_bf16(samples[c]).bits;
        EXPECT_EQ(k[c * kBlock + 3], want) << target << " " << samples[c];
        EXPECT_EQ(v[3 * d + c], want) << target << " " << samples[c];
      }
    }
  });
}

}  // namespace
}  // namespace kvist::kernels
