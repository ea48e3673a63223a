// SPDX-License-Identifier: MIT
// Mode B against mode A: the compressed read equals plain attention, in double, over what
// reconstruct_ranked() gives.
#include "kvist/cache/ranked_reader.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kvist/cache/coded_reader.h"
#include "kvist/cache/prefix.h"
#include "kvist/cache/ranked_test_layer.h"
#include "kvist/kernels/targets.h"
#include "kvist/kernels/tree_code.h"
#include "kvist/methods/rank/row_depths.h"

namespace kvist {
namespace {

using testing::RankedCase;
using testing::RankedTestLayer;

// Rows of a question behind the layer: random queries, a dense suffix of their own keys.
struct Question {
  Question(const KvShape& shape, int rows, int before, uint64_t seed, float loud = 1)
      : store(shape), n_rows(rows), first(before) {
    Rng rng(seed);
    q.resize(static_cast<size_t>(rows * shape.heads * shape.head_dim));
    for (float& x : q) x = loud * static_cast<float>(rng.gaussian());
    store.reserve(before + rows);
    store.resize(before + rows);
    std::vector<float> k(static_cast<size_t>(shape.kv_heads * shape.head_dim)), v(k.size());
    for (int t = 0; t < before + rows; ++t) {
      for (float& x : k) x = static_cast<float>(rng.gaussian());
      for (float& x : v) x = static_cast<float>(rng.gaussian());
      store.write(t, k.data(), v.data());
    }
  }
  SuffixRows rows(int row) const {
    return {.store = &store, .row = row, .n_rows = n_rows, .first_token = first};
  }
  std::vector<float> q;
  DenseLayer store;
  int n_rows, first;
};

std::vector<float> read(const RankedView& view, const Question& question, int workers,
                        RankedCounts* trace = nullptr,
                        kernels::Precision precision = kernels::Precision::exact) {
  std::vector<float> out(question.q.size());
  const SuffixRows rows = question.rows(0);
  ReadTrace all;
  const AttendCall call{.q = question.q.data(),
                        .out = out.data(),
                        .n_rows = question.n_rows,
                        .logit_scale = 0.25f,
                        .suffixes = {&rows, 1},
                        .precision = precision,
                        .trace = &all};
  RankedSizes sizes;
  sizes.cover(view);
  RankedWorkspace workspace;
  workspace.reserve(sizes, question.n_rows, workers);
  ThreadPool pool(workers);
  pool.run([&](Worker worker) { read_ranked(view, call, workspace, worker); });
  if (trace != nullptr) *trace = all.ranked;
  return out;
}

std::vector<double> plain(const RankedView& view, const Question& question) {
  const KvShape& shape = view.layer->shape();
  const size_t d = static_cast<size_t>(shape.head_dim);
  std::vector<double> out(question.q.size());
  for (int head = 0; head < shape.kv_heads; ++head) {
    std::vector<float> k, v;
    reconstruct_ranked(view, head, &k, &v);
    const size_t prefix = k.size() / d, n = static_cast<size_t>(question.store.size());
    k.resize((prefix + n) * d);
    v.resize(k.size());
    kernels::load_keys(question.store.run(head), 0, question.store.size(), &k[prefix * d]);
    kernels::load_values(question.store.run(head), 0, question.store.size(), &v[prefix * d]);
    for (int row = 0; row < question.n_rows; ++row) {
      const size_t seen = prefix + static_cast<size_t>(question.first + row + 1);
      for (int h = head * shape.group(); h < (head + 1) * shape.group(); ++h) {
        const size_t at = static_cast<size_t>(row * shape.heads + h) * d;
        std::vector<double> s(seen);
        double top = -1e300, sum = 0;
        for (size_t t = 0; t < seen; ++t) {
          for (size_t c = 0; c < d; ++c) s[t] += double{question.q[at + c]} * double{k[t * d + c]};
          top = std::max(top, s[t] *= 0.25);
        }
        for (double& x : s) sum += x = std::exp(x - top);
        for (size_t t = 0; t < seen; ++t)
          for (size_t c = 0; c < d; ++c) out[at + c] += s[t] / sum * double{v[t * d + c]};
      }
    }
  }
  return out;
}

void expect_close(const std::vector<float>& got, const std::vector<double>& want, double most) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double e = static_cast<double>(got[i]) - want[i];
    error += e * e, norm += want[i] * want[i];
  }
  EXPECT_LE(std::sqrt(error / norm), most);
}

void expect_equal_modes(const RankedCase& of, double most = 1e-4, float loud = 1) {
  const RankedTestLayer made(of);
  for (const int rows : {1, 3, 21}) {
    const Question question(made.shape, rows, 2, 5, loud);
    expect_close(read(made.view(), question, 1), plain(made.view(), question), most);
  }
}

TEST(RankedReader, EqualsTheReconstructionForEveryShape) {
  for (const auto& [kv_heads, heads, d] :
       {std::array{1, 1, 8}, {2, 6, 16}, {3, 9, 64}, {1, 8, 20}, {4, 4, 6}})
    for (const int neighbours : {1, 2, 3, 4})
      for (const int stride : {4, 16, 50}) {
        SCOPED_TRACE(::testing::Message() << kv_heads << " " << heads << " " << d << ", c "
                                          << neighbours << ", stride " << stride);
        expect_equal_modes({.kv_heads = kv_heads,
                            .heads = heads,
                            .head_dim = d,
                            .n_tokens = 333,
                            .stride = stride,
                            .neighbours = neighbours,
                            .adjacent = stride == 4});
      }
}

TEST(RankedReader, EqualsTheReconstructionForEveryRank) {
  for (const int n_tokens : {1, 17, 64, 65, 66, 129, 700})
    expect_equal_modes({.n_tokens = n_tokens});
  expect_equal_modes({.window = 300});                   // all exact
  expect_equal_modes({.rank = [](int) { return 0; }});   // means alone
  expect_equal_modes({.rank = [](int) { return 16; }});  // all at the floor
  expect_equal_modes({.rank = [](int) { return 64; }});  // all at the cap
  expect_equal_modes({.rank = [](int i) { return i == 70 ? 64 : 0; }});
  expect_equal_modes({.basis_rows = 40, .rank = [](int i) { return i % 41; }});
  expect_equal_modes({.value_scale = 2.5});
  for (const Scalar type : {Scalar::bf16, Scalar::f32}) expect_equal_modes({.type = type});
  expect_equal_modes({}, 2e-4, 20);  // one token has nearly all the weight
}

TEST(RankedReader, EqualsTheReconstructionWithoutAnchors) {
  for (const int window : {0, 64})
    expect_equal_modes({.n_tokens = 500, .window = window, .neighbours = 0});
  const RankedTestLayer made({.n_tokens = 500, .neighbours = 0});
  ThreadPool pool(2);
  made.layer->keep_key_norms(measure_residuals(made.view(), pool));
  const Question question(made.shape, 2, 3, 9);
  RankedView view = made.view();
  view.skip = true;
  expect_close(read(view, question, 2), plain(made.view(), question), 1e-4);
  const ExpandedKeys expanded = expand_keys(made.view(), 1 << 30, pool);
  view = made.view();
  view.expanded = &expanded;
  expect_close(read(view, question, 2), plain(made.view(), question), 1e-3);  // keys are f16
}

TEST(RankedReader, EqualsTheReconstructionAtEveryWidth) {
  for (const CoefficientFormat& format :
       {CoefficientFormat{3}, {4}, {8}, {8, RankPlan::Code::sigma}, {3, RankPlan::Code::sigma}})
    expect_equal_modes({.format = format});
}

TEST(RankedReader, OnEverySimdTarget) {
  kernels::for_each_target([](const std::string& target) {
    SCOPED_TRACE(target);
    expect_equal_modes({.kv_heads = 3, .heads = 9, .head_dim = 64, .adjacent = true});
    expect_equal_modes({.kv_heads = 3, .heads = 9, .head_dim = 20});
  });
}

// With products by tiles, where this CPU has them.
TEST(RankedReader, FastIsNearlyAsPrecise) {
  for (const auto& [kv_heads, d] : {std::pair{3, 64}, {2, 16}, {1, 48}, {5, 32}}) {
    const RankedTestLayer made(
        {.kv_heads = kv_heads, .heads = 3 * kv_heads, .head_dim = d, .n_tokens = 500});
    ThreadPool pool(2);
    made.layer->keep_key_norms(measure_residuals(made.view(), pool));
    for (const bool skip : {false, true}) {
      const Question question(made.shape, 1, 3, 5);
      RankedView view = made.view();
      view.skip = skip;
      expect_close(read(view, question, 2, nullptr, kernels::Precision::fast),
                   plain(made.view(), question), 4e-3);
    }
  }
}

// The largest logit lies in the last coded block, after sums have grown: they are scaled down.
TEST(RankedReader, MaximumMayComeLate) {
  RankedTestLayer made({.n_tokens = 900, .window = 1, .rank = [](int) { return 32; }});
  Question question(made.shape, 1, 0, 3, 0.1f);
  std::vector<float> k, v;
  const size_t d = static_cast<size_t>(made.shape.head_dim);
  for (int head = 0; head < made.shape.kv_heads; ++head) {
    reconstruct_ranked(made.view(), head, &k, &v);
    for (int t = 0; t < 3; ++t) {  // ever larger along the document
      const size_t at = static_cast<size_t>(std::array{300, 600, 890}[static_cast<size_t>(t)]) * d;
      for (int h = 0; h < made.shape.group(); ++h)
        for (size_t c = 0; c < d; ++c)
          question.q[static_cast<size_t>(head * made.shape.group() + h) * d + c] +=
              3 * static_cast<float>(t + 1) * k[at + c];
    }
  }
  expect_close(read(made.view(), question, 1), plain(made.view(), question), 1e-4);
}

TEST(RankedReader, BytesDoNotDependOnTheNumberOfWorkers) {
  const RankedTestLayer made({.n_tokens = 1500});
  for (const int rows : {1, 20}) {
    const Question question(made.shape, rows, 70, 6);
    const auto one = read(made.view(), question, 1);
    for (const int workers : {2, 3, 5}) EXPECT_EQ(read(made.view(), question, workers), one);
  }
}

TEST(RankedReader, RowsOfSeveralQuestionsShareAPass) {
  const RankedTestLayer made({.n_tokens = 500});
  const Question a(made.shape, 3, 5, 7), b(made.shape, 18, 0, 8);
  std::vector<float> q = a.q;
  q.insert(q.end(), b.q.begin(), b.q.end());
  std::vector<float> out(q.size());
  const SuffixRows rows[] = {a.rows(0), b.rows(3)};
  const AttendCall call{.q = q.data(),
                        .out = out.data(),
                        .n_rows = 21,
                        .logit_scale = 0.25f,
                        .suffixes = rows,
                        .precision = kernels::Precision::exact};
  RankedSizes sizes;
  sizes.cover(made.view());
  RankedWorkspace workspace;
  workspace.reserve(sizes, 21, 2);
  ThreadPool pool(2);
  const RankedView view = made.view();
  pool.run([&](Worker worker) { read_ranked(view, call, workspace, worker); });
  std::vector<double> want = plain(view, a);
  const std::vector<double> more = plain(view, b);
  want.insert(want.end(), more.begin(), more.end());
  expect_close(out, want, 1e-4);
}

TEST(RankedReader, ExpandedKeysAreTheSameKeysRounded) {
  const RankedTestLayer made({.n_tokens = 1000});
  const Question question(made.shape, 2, 3, 9);
  ThreadPool pool(2);
  const std::vector<double> want = plain(made.view(), question);
  const int n_blocks = made.layer->n_blocks();
  for (const int blocks : {0, 1, n_blocks - 1, n_blocks}) {
    const ExpandedKeys expanded = expand_keys(
        made.view(), ExpandedKeys::block_bytes(made.shape) * static_cast<uint64_t>(blocks), pool);
    EXPECT_EQ(expanded.n_blocks, blocks);
    RankedView view = made.view();
    view.expanded = &expanded;
    RankedCounts trace;
    expect_close(read(view, question, 2, &trace), want, 1e-3);  // keys are f16
    EXPECT_EQ(trace.expanded_bytes, static_cast<int64_t>(expanded.k.size()));
  }
}

// Queries that look ever harder for the key of one token.
TEST(RankedReader, SkippingLeavesOutOnlyWhatWeighsNothing) {
  RankedTestLayer made({.n_tokens = 1500, .rank = [](int i) { return i % 40 == 0 ? 40 : 2; }});
  ThreadPool pool(2);
  made.layer->keep_key_norms(measure_residuals(made.view(), pool));
  RankedView skipping = made.view();
  skipping.skip = true;
  const size_t d = static_cast<size_t>(made.shape.head_dim);
  std::vector<int64_t> skipped;
  for (const float loud : {0.0f, 3.0f, 20.0f}) {
    Question question(made.shape, 1, 0, 11, 0.1f);
    for (int head = 0; head < made.shape.kv_heads; ++head) {
      std::vector<float> k, v;
      reconstruct_ranked(made.view(), head, &k, &v);
      for (int h = 0; h < made.shape.group(); ++h)
        for (size_t c = 0; c < d; ++c)
          question.q[static_cast<size_t>(head * made.shape.group() + h) * d + c] +=
              loud * k[701 * d + c];
    }
    RankedCounts trace;
    expect_close(read(skipping, question, 2, &trace), plain(made.view(), question), 1e-4);
    EXPECT_EQ(trace.blocks, int64_t{made.layer->n_blocks()} * made.shape.kv_heads);
    skipped.push_back(trace.skipped);
  }
  EXPECT_EQ(skipped.front(), 0);
  EXPECT_GT(skipped.back(), 0);
}

// What one query reads of a layer of tree codes, by definition: every coefficient to the depth of
// its row, in a layer of plain numbers.
struct ReadByRows {
  ReadByRows(const RankedTestLayer& made, const float* q, Ratio read) : code(made.code) {
    const KvShape& shape = made.shape;
    const auto tokens = made.layer->row_tokens();
    std::vector<float> channels(static_cast<size_t>(shape.kv_heads * shape.head_dim));
    std::vector<float> scaled(q, q + shape.heads * shape.head_dim);
    for (float& x : scaled) x *= 0.25f;
    std::vector<float> weights(tokens.size());
    row_importance(made.basis,
                   {scaled.data(), shape.kv_heads, shape.group(), shape.head_dim,
                    made.rotations.n_frequencies(), made.rotations.adjacent()},
                   channels, weights);
    for (size_t j = 0; j < weights.size(); ++j) weights[j] *= made.layer->row_energies()[j];
    depths.resize(tokens.size());
    DepthWorkspace workspace;
    workspace.reserve(std::ssize(tokens));
    budget = floor_mul(made.layer->rank_sum(), read);
    bits = choose_row_depths(weights, tokens, made.layer->format().bits, budget, depths, workspace);
    for (size_t i = 0; i < code.coded.size(); ++i) {
      const auto x = made.code.coefficients_of(i);
      std::vector<uint8_t> leaves(x.size());
      const f16 gain = gain_of(x, made.sigma.data());
      code_leaves(x, gain, made.sigma.data(), leaves.data());
      for (size_t j = 0; j < x.size(); ++j)
        code.coefficients[code.offset[i] + j] =
            kernels::tree_value(leaves[j], depths[j]) * (to_float(gain) * made.sigma[j]);
    }
    ThreadPool pool(1);
    layer = std::make_unique<RankedLayer>(shape, made.tokens, made.runs, code,
                                          CoefficientFormat{32}, made.sigma.data(), pool);
  }
  RankedCode code;
  std::vector<uint8_t> depths;
  int64_t bits = 0, budget = 0;
  std::unique_ptr<RankedLayer> layer;
};

void expect_read_by_rows(RankedCase of, Ratio read_bits, int rows) {
  RankedTestLayer made(of);
  made.layer->keep_row_weights(made.sigma.data());
  RankedView view = made.view();
  view.read = read_bits;
  Question question(made.shape, rows, 2, 5);
  // Rows that look at different channels.
  const size_t row = question.q.size() / static_cast<size_t>(rows);
  for (size_t i = 0; i < question.q.size(); ++i)
    question.q[i] *= (i / row + i) % 5 == 0 ? 4.0f : 0.3f;
  RankedCounts trace;
  const auto got = read(view, question, 1, &trace);
  EXPECT_EQ(read(view, question, 3), got);
  int64_t bits = 0, budget = 0;
  for (int r = 0; r < rows; ++r) {
    const ReadByRows by(made, question.q.data() + static_cast<size_t>(r) * row, read_bits);
    bits += by.bits;
    budget += by.budget;
    RankedView plain_view = made.view();
    plain_view.layer = by.layer.get();
    const auto want = plain(plain_view, question);  // of all rows; this one is meant
    expect_close({got.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(r) * row),
                  got.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(r + 1) * row)},
                 {want.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(r) * row),
                  want.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(r + 1) * row)},
                 1e-4);
  }
  EXPECT_EQ(trace.passes, rows);
  EXPECT_EQ(trace.asked_bits, bits);
  EXPECT_EQ(trace.budget_bits, budget);
  EXPECT_LE(trace.asked_bits, trace.budget_bits);
  EXPECT_EQ(trace.coefficients, rows * made.layer->rank_sum());
}

// Composition of ranks and tree codes, stage 1.
TEST(RankedReader, AQueryReadsEveryRowAsDeepAsItDeserves) {
  const RankedCase of{.n_tokens = 700, .format = {8, RankPlan::Code::sigma}};
  for (const Ratio read : {Ratio{0, 1}, {1, 2}, {2, 1}, {7, 2}, {8, 1}}) {
    SCOPED_TRACE(read.text());
    expect_read_by_rows(of, read, 3);
  }
  RankedCase other{.kv_heads = 3, .heads = 9, .head_dim = 20, .n_tokens = 400};
  other.format = {5, RankPlan::Code::sigma};
  other.adjacent = true;
  expect_read_by_rows(other, {2, 1}, 2);
  other.neighbours = 0;
  expect_read_by_rows(other, {2, 1}, 1);
  other.rank = [](int) { return 0; };  // nothing to choose
  expect_read_by_rows(other, {2, 1}, 1);
  other.window = 400;  // nothing coded
  expect_read_by_rows(other, {2, 1}, 1);
}

TEST(RankedReader, AllBitsAreThoseOfAReadWithoutAChoice) {
  RankedTestLayer made({.n_tokens = 2600, .format = {8, RankPlan::Code::sigma}});
  made.layer->keep_row_weights(made.sigma.data());
  const Question question(made.shape, 1, 2, 5);
  RankedView view = made.view();
  RankedCounts all, few;
  const auto want = read(view, question, 1, &all);
  view.read = Ratio{8, 1};
  EXPECT_EQ(read(view, question, 1), want);
  view.read = Ratio{2, 1};
  EXPECT_NE(read(view, question, 1, &few), want);
  EXPECT_LT(few.coded_bytes, all.coded_bytes / 2);  // lines, of which a row may share two
  EXPECT_GE(few.coded_bytes * 8, few.asked_bits);
  EXPECT_EQ(few.exact_bytes, all.exact_bytes);
}

// More bits, less error, against the read of everything.
TEST(RankedReader, MoreBitsOfTheRowsThatMatterLoseLess) {
  RankedTestLayer made({.n_tokens = 1000, .format = {8, RankPlan::Code::sigma}});
  made.layer->keep_row_weights(made.sigma.data());
  const Question question(made.shape, 4, 2, 5);
  const auto want = plain(made.view(), question);
  double before = 1e300;
  for (const int bits : {0, 1, 2, 4, 6}) {
    RankedView view = made.view();
    view.read = Ratio{bits, 1};
    const auto got = read(view, question, 2);
    double error = 0;
    for (size_t i = 0; i < want.size(); ++i)
      error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    EXPECT_LT(error, before * 0.9) << bits;
    before = error;
  }
}

TEST(RankedReader, CountsWhatItTouches) {
  const RankedTestLayer made({.n_tokens = 600});
  RankedCounts trace;
  read(made.view(), Question(made.shape, 33, 0, 1), 1, &trace);
  EXPECT_EQ(trace.rows, 33);
  EXPECT_EQ(trace.passes, 3);
  const Bytes bytes = made.layer->bytes();
  EXPECT_EQ(trace.exact_bytes + trace.coded_bytes, 3 * static_cast<int64_t>(bytes.payload));
  EXPECT_EQ(trace.metadata_bytes, 3 * static_cast<int64_t>(bytes.metadata));
  EXPECT_EQ(trace.basis_bytes, 3 * 64 * 64 * 4);
}

TEST(RankedKeys, NormsAreUpperBounds) {
  const RankedTestLayer made({.n_tokens = 400});
  ThreadPool pool(2);
  const std::vector<float> norms = measure_residuals(made.view(), pool);
  const RankedCode code = made.layer->decode(made.sigma.data());
  for (size_t i = 0; i < code.coded.size(); ++i)
    for (int head = 0; head < made.shape.kv_heads; ++head) {
      double sum = 0;
      for (int c = 0; c < made.shape.head_dim; ++c) {
        double x = 0;
        const auto y = code.coefficients_of(i);
        for (size_t j = 0; j < y.size(); ++j)
          x += double{y[j]} *
               double{made.basis.row(static_cast<int>(j))[head * made.shape.head_dim + c]};
        sum += x * x;
      }
      const double norm =
          double{norms[i * static_cast<size_t>(made.shape.kv_heads) + static_cast<size_t>(head)]};
      EXPECT_GE(norm, std::sqrt(sum));
      EXPECT_LE(norm, std::sqrt(sum) * 1.0001 + 1e-6);
    }
}

}  // namespace
}  // namespace kvist
