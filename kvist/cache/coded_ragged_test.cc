// SPDX-License-Identifier: MIT
// Coded prefixes behind a selector: every head has its own tokens, read as the plain ones would be,
// with budgets and a ledger that count them exactly.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "kvist/cache/coded_prefix.h"
#include "kvist/cache/suffix.h"
#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/kernels/targets.h"

namespace kvist {
namespace {

using kernels::Precision;
using Kept = std::vector<std::vector<int32_t>>;

constexpr int kTokens = 1300, kSuffix = 3, kDim = 64;
constexpr KvShape kShape{.kv_heads = 4, .heads = 8, .head_dim = kDim};
constexpr size_t kWidth = 4 * kDim;

std::vector<float> gaussians(size_t n, uint64_t seed, double sd = 1) {
  Rng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = to_float(to_f16(static_cast<float>(sd * rng.gaussian())));
  return out;
}

// n of the positions, ascending.
std::vector<int32_t> some(int n, uint64_t seed) {
  std::vector<int32_t> all(kTokens);
  std::iota(all.begin(), all.end(), 0);
  Rng rng(seed);
  for (int left = kTokens; left > n; --left)
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(rng.uniform() * left));
  return all;
}
// More than a page, one token, none, and no whole page.
Kept uneven() { return {some(700, 1), some(1, 2), {}, some(401, 3)}; }
Kept everything() {
  return {some(kTokens, 1), some(kTokens, 1), some(kTokens, 1), some(kTokens, 1)};
}

struct World {
  int n_layers;
  std::vector<float> k, v, q;  // [tokens and suffix][kv_heads][d], of every layer; [rows][heads][d]
  std::shared_ptr<const CodedModel> model;

  explicit World(int layers = 1) : n_layers(layers) {
    k = gaussians(kWidth * (kTokens + kSuffix), 5);
    v = gaussians(kWidth * (kTokens + kSuffix), 6);
    q = gaussians(2 * kWidth * kSuffix, 7, 1.7);
    ReadCalibration calibration;
    calibration.source.shape = {layers, kShape.kv_heads, kShape.heads, kDim};
    for (int l = 0; l < layers; ++l) {
      calibration.layers.push_back({.mu_k = gaussians(kWidth, 8, 0.3),
                                    .sigma_k = gaussians(kWidth, 9),
                                    .mu_v = gaussians(kWidth, 10, 0.3),
                                    .sigma_v = gaussians(kWidth, 11),
                                    .m2q = gaussians(2 * kWidth, 12),
                                    .klt = {}});
      for (auto* sigma : {&calibration.layers.back().sigma_k, &calibration.layers.back().sigma_v})
        for (float& s : *sigma) s = 0.5f + std::abs(s);
      for (float& m : calibration.layers.back().m2q) m *= m;
    }
    model = std::make_shared<CodedModel>(std::move(calibration));
  }

  template <typename Store>
  void write(Store* store, int begin, int n) const {
    store->reserve(n);
    store->resize(n);
    for (int j = 0; j < n; ++j) {
      const size_t at = static_cast<size_t>(begin + j) * kWidth;
      store->write(j, &k[at], &v[at]);
    }
  }
  // Every layer keeps `kept`; null: nothing was selected.
  std::unique_ptr<PlainPrefix> plain(const Kept* kept) const {
    std::vector<DenseLayer> layers;
    for (int l = 0; l < n_layers; ++l) {
      layers.emplace_back(kShape);
      write(&layers.back(), 0, kTokens);
    }
    auto made = std::make_unique<PlainPrefix>(kShape, std::move(layers), kTokens);
    for (int l = 0; l < n_layers && kept != nullptr; ++l) made->select(l, *kept);
    return made;
  }
  CodedPrefix coded(const ReadPlan& plan, const Kept* kept) const {
    CodedPrefix made(plain(kept), model, plan);
    ThreadPool pool(2);
    for (int l = 0; l < n_layers; ++l) made.encode(l, pool);
    return made;
  }
};

struct How {
  int n_workers = 2;
  Precision precision = Precision::exact;
  int layer = 0;
};
struct Answer {
  std::vector<float> out;                      // [rows][heads][d]
  std::vector<std::vector<uint8_t>> t_k, t_v;  // of each row
  std::vector<std::vector<RowHead>> heads;
  ReadTrace trace;
};

// Attention of the suffix's tokens over prefix and suffix.
Answer attend(const World& w, const PrefixCache& prefix, const How& how = {}) {
  std::vector<SuffixLayer> suffix = prefix.new_suffix();
  SuffixLayer& layer = suffix[static_cast<size_t>(how.layer)];
  w.write(&layer, kTokens, kSuffix);
  const SuffixRows rows = layer.rows(0, kSuffix, 0);
  Answer answer;
  answer.out.resize(w.q.size());
  answer.trace.observe = [&](const RowSchedule& row) {
    answer.t_k.emplace_back(row.key_depths.begin(), row.key_depths.end());
    answer.t_v.emplace_back(row.value_depths.begin(), row.value_depths.end());
    answer.heads.emplace_back(row.heads.begin(), row.heads.end());
  };
  const AttendCall call{.layer = how.layer,
                        .q = w.q.data(),
                        .out = answer.out.data(),
                        .n_rows = kSuffix,
                        .logit_scale = 0.125f,
                        .suffixes = {&rows, 1},
                        .precision = how.precision,
                        .trace = &answer.trace};
  AttendWorkspace workspace;
  prefix.reserve(workspace, kSuffix, kSuffix, how.n_workers);
  ThreadPool pool(how.n_workers);
  pool.run([&](Worker worker) { prefix.attend(call, workspace, worker); });
  return answer;
}

// What one head of prefix and suffix reconstructs to, [tokens][d].
struct Rows {
  std::vector<float> k, v;
};
Rows rows_of(const World& w, const CodedPrefix& prefix, int head) {
  Rows all, more;
  prefix.reconstruct(0, head, &all.k, &all.v);
  std::vector<SuffixLayer> suffix = prefix.new_suffix();
  w.write(&suffix[0], kTokens, kSuffix);
  suffix[0].coded()->reconstruct(head, &more.k, &more.v);
  all.k.insert(all.k.end(), more.k.begin(), more.k.end());
  all.v.insert(all.v.end(), more.v.begin(), more.v.end());
  return all;
}

// One query head over the first n tokens in double; a token is taken from `exact` where the plan
// keeps it in 16 bits, from `codes` elsewhere.
std::vector<double> plain_attention(const float* q, const Rows& codes, const Rows& exact,
                                    const ReadPlan& plan, int n) {
  const int first = std::min(plan.sinks, n), last = std::max(first, n - plan.recent);
  const auto from = [&](int j) -> const Rows& { return j < first || j >= last ? exact : codes; };
  std::vector<double> alpha, out(kDim);
  for (int j = 0; j < n; ++j) {
    double dot = 0;
    for (int c = 0; c < kDim; ++c)
      dot += double{q[c]} * double{from(j).k[static_cast<size_t>(j * kDim + c)]};
    alpha.push_back(0.125 * dot);
  }
  const double top = *std::max_element(alpha.begin(), alpha.end());
  double sum = 0;
  for (double& a : alpha) sum += a = std::exp(a - top);
  for (int j = 0; j < n; ++j)
    for (int c = 0; c < kDim; ++c)
      out[static_cast<size_t>(c)] += alpha[static_cast<size_t>(j)] / sum *
                                     double{from(j).v[static_cast<size_t>(j * kDim + c)]};
  return out;
}

TEST(CodedRagged, AtFullDepthAttentionIsThatOverWhatItReconstructs) {
  const World w;
  const Kept kept = uneven();
  for (ReadPlan plan : {ReadPlan{}, ReadPlan{.sinks = 4, .recent = 5}, ReadPlan{.sinks = 450}}) {
    plan.key_rate = plan.value_rate = {8, 1};
    ReadPlan bare = plan;
    bare.sinks = bare.recent = 0;
    const CodedPrefix prefix = w.coded(plan, &kept), codes = w.coded(bare, &kept);
    kernels::for_each_target([&](const std::string& target) {
      SCOPED_TRACE(target);
      for (const Precision precision : {Precision::exact, Precision::fast}) {
        const Answer answer = attend(w, prefix, {.precision = precision});
        // Beside bytes deep values are rounded to f16: 2^-11 of values of up to 2.
        const double bound = precision == Precision::fast ? 1e-3 : 5e-5;
        for (int head = 0; head < 8; ++head) {
          const Rows coded = rows_of(w, codes, head / 2), exact = rows_of(w, prefix, head / 2);
          for (int r = 0; r < kSuffix; ++r) {
            const size_t at = static_cast<size_t>((r * 8 + head) * kDim);
            const int n = static_cast<int>(kept[static_cast<size_t>(head / 2)].size()) + r + 1;
            const auto want = plain_attention(&w.q[at], coded, exact, plan, n);
            for (size_t c = 0; c < kDim; ++c)
              ASSERT_NEAR(static_cast<double>(answer.out[at + c]), want[c], bound)
                  << "head " << head << " row " << r << " channel " << c;
          }
        }
      }
    });
  }
}

TEST(CodedRagged, SameBytesForAnyNumberOfWorkers) {
  const World w;
  const Kept kept = uneven();
  for (const ReadPlan& plan : {ReadPlan{}, ReadPlan{.pairs = true, .sinks = 2, .recent = 3}}) {
    const CodedPrefix prefix = w.coded(plan, &kept);
    for (const Precision precision : {Precision::exact, Precision::fast}) {
      const Answer one = attend(w, prefix, {1, precision});
      for (const int n : {2, 5}) {
        const Answer other = attend(w, prefix, {n, precision});
        EXPECT_EQ(other.out, one.out) << n << " workers";
        EXPECT_EQ(other.t_v, one.t_v) << n << " workers";
      }
    }
  }
}

TEST(CodedRagged, BudgetsAndReadsCountEveryHeadsOwnTokens) {
  const World w;
  const Kept kept = uneven();
  for (const ReadPlan& plan :
       {ReadPlan{}, ReadPlan{.key_rate = {5, 2}, .value_rate = {4, 3}},
        ReadPlan{.key_rate = {7, 3}, .value_rate = {3, 1}, .per_head = true},
        ReadPlan{.key_rate = {7, 3}, .value_rate = {3, 1}, .sinks = 3, .recent = 2}}) {
    const CodedPrefix prefix = w.coded(plan, &kept);
    const Answer got = attend(w, prefix);
    ReadTrace want;
    for (size_t r = 0; r < kSuffix; ++r) {
      int64_t items = 0, per_head = 0;
      for (size_t head = 0; head < 4; ++head) {
        const RowHead& seen = got.heads[r][head];
        const int64_t tokens = std::ssize(kept[head]) + static_cast<int64_t>(r) + 1;
        const int64_t dense = std::min<int64_t>(tokens, plan.sinks + plan.recent);
        ASSERT_EQ(seen.n_tokens, tokens);
        ASSERT_EQ(seen.n_values, tokens - dense);
        ASSERT_EQ(seen.item, items);
        const auto* depths = got.t_k[r].data() + head * kDim;
        const int64_t spent = std::accumulate(depths, depths + kDim, int64_t{0});
        EXPECT_EQ(spent, floor_mul(kDim, plan.key_rate)) << "a head spends its own";
        want.key_bits += tokens * spent;
        want.key_budget += tokens * floor_mul(kDim, plan.key_rate);
        want.numbers += 2 * kDim * tokens;
        want.dense_bytes += 4 * kDim * dense;
        items += seen.n_values;
        per_head += floor_mul(seen.n_values, plan.value_rate);
      }
      want.value_bits += kDim * std::accumulate(got.t_v[r].begin(), got.t_v[r].end(), int64_t{0});
      want.value_budget += kDim * (plan.per_head ? per_head : floor_mul(items, plan.value_rate));
    }
    EXPECT_EQ(got.trace.rows, kSuffix);
    EXPECT_EQ(got.trace.numbers, want.numbers);
    EXPECT_EQ(got.trace.key_bits, want.key_bits);
    EXPECT_EQ(got.trace.key_budget, want.key_budget);
    EXPECT_EQ(got.trace.value_bits, want.value_bits);
    EXPECT_EQ(got.trace.value_budget, want.value_budget);
    EXPECT_EQ(got.trace.value_bits, want.value_budget) << "weights are positive, so all is spent";
    EXPECT_EQ(got.trace.dense_bytes, want.dense_bytes);
  }
}

TEST(CodedRagged, KeepingEverythingIsTheCodedPrefixWithBudgetsOfEachHead) {
  const World w;
  const Kept all = everything();
  for (ReadPlan plan : {ReadPlan{}, ReadPlan{.width = 4, .calibrated_keys = true, .sinks = 4}}) {
    plan.per_head = true;
    const CodedPrefix alone = w.coded(plan, nullptr), behind = w.coded(plan, &all);
    for (const Precision precision : {Precision::exact, Precision::fast}) {
      const Answer want = attend(w, alone, {.precision = precision});
      const Answer got = attend(w, behind, {.precision = precision});
      EXPECT_EQ(got.out, want.out);
      EXPECT_EQ(got.t_k, want.t_k);
      EXPECT_EQ(got.t_v, want.t_v);
      EXPECT_EQ(got.trace.lines, want.trace.lines);
    }
    EXPECT_EQ(behind.bytes().payload, alone.bytes().payload);
    EXPECT_EQ(behind.bytes().shared, alone.bytes().shared);
    for (int head = 0; head < 4; ++head) {
      std::vector<float> k, v, same_k, same_v;
      alone.reconstruct(0, head, &k, &v);
      behind.reconstruct(0, head, &same_k, &same_v);
      EXPECT_EQ(same_k, k);
      EXPECT_EQ(same_v, v);
      EXPECT_EQ(behind.kept(0, head), alone.kept(0, head));
    }
  }
}

TEST(CodedRagged, HoldsSurvivorsTheirPositionsAndNoMore) {
  const World w;
  const Kept kept = {some(1030, 1), some(515, 2), some(900, 3), some(155, 4)};
  for (const int width : {8, 4}) {
    const CodedPrefix prefix = w.coded({.width = width}, &kept);
    const Bytes bytes = prefix.bytes();
    const uint64_t n = 1030 + 515 + 900 + 155;
    EXPECT_EQ(bytes.payload, 2 * n * kDim * static_cast<uint64_t>(width) / 8);
    EXPECT_EQ(bytes.metadata, 4 * n + 4 * 4);
    EXPECT_EQ(bytes.shared, uint64_t{8} * kWidth);
    // An open block of every head, and what allocations are rounded to.
    EXPECT_LE(bytes.allocated, bytes.payload + bytes.metadata + 4 * 513 * kDim + 4 * 4 * 4096);
    EXPECT_EQ(prefix.longest_head(), 1030);
    EXPECT_EQ(prefix.next_position(), kTokens);
    for (int head = 0; head < 4; ++head)
      EXPECT_EQ(prefix.kept(0, head), kept[static_cast<size_t>(head)]);
  }
}

TEST(CodedRagged, ProtectedLayersStayRaggedAndPlain) {
  const World w(3);
  const Kept kept = uneven();
  const auto plain = w.plain(&kept);
  const CodedPrefix prefix = w.coded({.protect = 1}, &kept);
  for (const int layer : {0, 2}) {
    EXPECT_FALSE(prefix.is_coded(layer));
    EXPECT_EQ(prefix.bytes(layer).payload, plain->bytes(layer).payload);
    EXPECT_EQ(prefix.bytes(layer).metadata, plain->bytes(layer).metadata);
    EXPECT_EQ(prefix.kept(layer, 0), kept[0]);
    EXPECT_EQ(attend(w, prefix, {.layer = layer}).out, attend(w, *plain, {.layer = layer}).out);
  }
  EXPECT_TRUE(prefix.is_coded(1));
  EXPECT_EQ(attend(w, prefix, {.layer = 1}).trace.rows, kSuffix);
}

TEST(CodedRagged, NamesASurvivorThatIsNotFiniteByItsPlaceInTheDocument) {
  World w;
  const Kept kept = uneven();
  ThreadPool pool(2);
  const int32_t gone = kept[0][0] > 0 ? 0 : 1, stays = kept[3][200];
  ASSERT_EQ(std::count(kept[0].begin(), kept[0].end(), gone), 0);
  w.k[static_cast<size_t>(gone) * kWidth] = std::numeric_limits<float>::infinity();
  EXPECT_NO_THROW(require_finite(*w.plain(&kept), 0, pool));
  w.v[static_cast<size_t>(stays) * kWidth + 3 * kDim + 5] = -std::numeric_limits<float>::infinity();
  try {
    require_finite(*w.plain(&kept), 0, pool);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::corrupt);
    EXPECT_EQ(std::string(e.what()).find(
                  str("layer 0, head 3, position ", stays, ": the value holds -inf")),
              0u)
        << e.what();
  }
}

}  // namespace
}  // namespace kvist
