// SPDX-License-Identifier: MIT
// The two-stage reader: a worked example, outputs against doubles from codes and schedules, and the
// contract of what a query may depend on.
#include "kvist/cache/coded_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kvist/cache/coded_test_world.h"
#include "kvist/kernels/targets.h"
#include "kvist/kernels/tree_code.h"

namespace kvist {
namespace {

// Output of query head h of one row in double, from codes and the row's schedules.
std::vector<double> plain_output(const World& w, const ReadPlan& plan, const Row& row,
                                 const CodedLayer& all, int n_tokens, int r, int h) {
  const int d = w.shape.head_dim, kv = h / w.shape.group();
  const int first = std::min(plan.sinks, n_tokens);
  const int last = std::max(first, n_tokens - plan.recent);
  const auto dense = [&](int j) { return j < first || j >= last; };
  std::vector<float> q(w.q.begin() + (r * w.shape.heads + h) * d,
                       w.q.begin() + (r * w.shape.heads + h + 1) * d);
  w.u.front().apply(q.data(), 1);
  std::vector<double> alpha;
  double top = -INFINITY, sum = 0;
  for (int j = 0; j < n_tokens; ++j) {
    double dot = 0;
    for (int c = 0; c < d; ++c) {
      const size_t p = static_cast<size_t>(kv * d + c);
      const double key =
          dense(j) ? double{to_float(all.dense_key(kv, j)[c])}
                   : double{w.mu_k[p]} +
                         double{w.sigma_k[p]} *
                             double{kernels::tree_value(all.key_code(kv, j, c), row.t_k[p])};
      dot += double{q[static_cast<size_t>(c)]} * key;
    }
    alpha.push_back(dot * double{w.scale});
    top = std::max(top, alpha.back());
  }
  for (double& a : alpha) sum += a = std::exp(a - top);
  std::vector<float> out(static_cast<size_t>(d));
  for (int c = 0; c < d; ++c) {
    const size_t p = static_cast<size_t>(kv * d + c);
    double o = 0;
    for (int j = 0; j < n_tokens; ++j) {
      const int depth =
          dense(j) ? 0 : row.t_v[static_cast<size_t>(kv * (last - first) + j - first)];
      const double value = dense(j) ? double{to_float(all.dense_value(kv, j)[c])}
                                    : double{w.mu_v[p]} + double{w.sigma_v[p]} *
                                                              double{kernels::tree_value(
                                                                  all.value_code(kv, j, c), depth)};
      o += alpha[static_cast<size_t>(j)] / sum * value;
    }
    out[static_cast<size_t>(c)] = static_cast<float>(o);
  }
  w.u.back().undo(out.data(), 1);
  return {out.begin(), out.end()};
}

void expect_plain(const World& w, const ReadPlan& plan, const Row& row, const CodedLayer& all,
                  int n_tokens, int r, double tolerance) {
  for (int h = 0; h < w.shape.heads; ++h) {
    const auto want = plain_output(w, plan, row, all, n_tokens, r, h);
    for (int c = 0; c < w.shape.head_dim; ++c)
      ASSERT_NEAR(static_cast<double>(row.out[static_cast<size_t>(h * w.shape.head_dim + c)]),
                  want[static_cast<size_t>(c)], tolerance)
          << "row " << r << " head " << h << " channel " << c;
  }
}

World worked_example() {
  World w;
  w.shape = {.kv_heads = 1, .heads = 2, .head_dim = 4};
  std::vector<float> identity(16, 0.0f);
  for (size_t i = 0; i < 4; ++i) identity[5 * i] = 1;
  w.u.push_back(HeadTransform::matrix(4, identity));
  w.mu_k = {0, .5f, 0, -.25f}, w.sigma_k = {1, 2, .5f, 1};
  w.mu_v = {0, 0, .1f, 0}, w.sigma_v = {1, .5f, 1, 2};
  w.q = {1, .5f, -2, .25f, .5f, -.25f, 1, 0};
  w.k = {.3f, -1.5f, .2f, .75f, -1.2f, 2.5f, .9f, -1.25f, 2, .5f, -.6f, .05f};
  w.v = {1, -.25f, .1f, 3, -.4f, .6f, -1.1f, .5f, .05f, 0, 2.1f, -2.4f};
  w.n_tokens = 3;
  w.finish();
  return w;
}

TEST(CodedReader, WorkedExample) {  // numbers worked out by hand for ReadKV's algorithm 1
  const World w = worked_example();
  const ReadPlan plan{.width = 8, .key_rate = {3, 1}, .value_rate = {1, 1}};
  const CodedLayer layer = w.coded(plan, 0, 3);
  const int leaf_k[] = {148, 63, 155, 192, 53, 192, 227, 63, 233, 128, 53, 148};
  const int leaf_v[] = {192, 94, 128, 216, 100, 202, 53, 145, 131, 128, 233, 53};
  for (int j = 0; j < 3; ++j)
    for (int c = 0; c < 4; ++c) {
      EXPECT_EQ(layer.key_code(0, j, c), leaf_k[4 * j + c]);
      EXPECT_EQ(layer.value_code(0, j, c), leaf_v[4 * j + c]);
    }
  ReadTrace trace;
  const Row row = read(w, plan, {nullptr, &layer}, &trace)[0];
  EXPECT_EQ(row.t_k, (std::vector<uint8_t>{4, 4, 3, 1}));
  EXPECT_EQ(row.t_v, (std::vector<uint8_t>{1, 0, 2}));
  const float want[] = {.4654505f, .1549397f,  1.4709873f, -2.4308323f,
                        .4790710f, -.0973836f, .9111199f,  -.2745634f};
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(row.out[i], want[i], 2e-6f);
  EXPECT_EQ(trace.key_bits, 36);
  EXPECT_EQ(trace.value_bits, 12);

  const ReadPlan restricted{.width = 8, .per_head = true, .min_depth = 1, .pairs = true};
  const Row r = read(w, restricted, {nullptr, &layer}, &trace)[0];
  EXPECT_EQ(r.t_k, (std::vector<uint8_t>{3, 2, 2, 1}));
  EXPECT_EQ(r.t_v, (std::vector<uint8_t>{1, 1, 2}));
}

TEST(CodedReader, OutputIsWhatTheSchedulesSay) {
  for (const auto& [kv_heads, group, d, n_prefix, n] : {std::tuple{2, 3, 64, 1100, 1400},
                                                        {1, 7, 128, 512, 517},
                                                        {3, 1, 80, 0, 700},
                                                        {1, 2, 12, 70, 75}}) {
    const World w = make_world(kv_heads, group, d, n, 3, 40);
    for (ReadPlan plan :
         {ReadPlan{}, ReadPlan{.width = 4, .key_rate = {3, 1}, .value_rate = {1, 2}},
          ReadPlan{.sinks = 4, .recent = 5}, ReadPlan{.sinks = 3, .recent = n}}) {
      const CodedLayer all =
          w.coded(ReadPlan{.width = plan.width, .sinks = plan.sinks, .recent = plan.recent}, 0, n);
      const CodedLayer prefix = w.coded(plan, 0, n_prefix, true);
      const CodedLayer suffix = w.coded(plan, n_prefix, n);
      kernels::for_each_target([&](const std::string& target) {
        SCOPED_TRACE(target);
        for (Precision precision : {Precision::exact, Precision::fast}) {
          const auto rows = read(w, plan, {&prefix, &suffix, 3, precision, 2});
          for (int r = 0; r < 3; ++r)
            expect_plain(w, plan, rows[static_cast<size_t>(r)], all, n - 2 + r, r,
                         precision == Precision::exact ? 2e-5 : 0.15);
        }
      });
    }
  }
}

TEST(CodedReader, SameBytesForAnyNumberOfWorkersAndRowByRow) {
  const World w = make_world(2, 3, 64, 1300, 4, 50);
  const ReadPlan plan{.sinks = 4};
  const CodedLayer prefix = w.coded(plan, 0, 900, true), suffix = w.coded(plan, 900, 1300);
  for (Precision precision : {Precision::exact, Precision::fast}) {
    const auto rows = read(w, plan, {&prefix, &suffix, 4, precision, 1});
    for (int n : {2, 5}) {
      const auto other = read(w, plan, {&prefix, &suffix, 4, precision, n});
      for (size_t r = 0; r < 4; ++r) EXPECT_EQ(other[r].out, rows[r].out) << n << " workers";
    }
    // The first of the four rows, asked before the other three tokens came.
    const CodedLayer shorter = w.coded(plan, 900, 1297);
    EXPECT_EQ(read(w, plan, {&prefix, &shorter, 1, precision, 1})[0].out, rows[0].out);
  }
}

// Flips every stored bit beyond the chosen prefixes of the row's schedules.
void flip_unread(CodedLayer& layer, const Row& row) {
  const KvShape& s = layer.shape();
  const int n = layer.size(), d = s.head_dim;
  for (int kv = 0; kv < s.kv_heads; ++kv) {
    const auto* t_k = row.t_k.data() + kv * d;
    for (int page = 0; page < layer.sealed_tokens() / 512; ++page)
      for (int c = 0; c < d; ++c)
        for (int s2 = t_k[c]; s2 < layer.width(); ++s2)
          for (int b = 0; b < 64; ++b)
            const_cast<uint8_t*>(layer.key_page(kv, page))[(c * layer.width() + s2) * 64 + b] ^=
                0xFF;
    const int open = (n - layer.sealed_tokens() + 63) / 64;
    for (int block = 0; block < open; ++block)
      for (int c = 0; c < d; ++c)
        for (int j = 0; j < 64; ++j)
          const_cast<uint8_t*>(layer.open_keys(kv))[(block * d + c) * 64 + j] ^=
              static_cast<uint8_t>(0xFF >> t_k[c]);
    const auto& layout = layer.value_layout();
    for (int j = 0; j < n; ++j)
      for (int s2 = row.t_v[static_cast<size_t>(kv * n + j)]; s2 < layer.width(); ++s2)
        for (int b = 0; b < layout.run_bytes(); ++b)
          const_cast<uint8_t*>(
              layer.value_packets(kv))[layout.run(j) + s2 * layout.plane_bytes() + b] ^= 0xFF;
  }
}

TEST(CodedReader, UnreadBitsChangeNeitherOutputNorSchedules) {
  const World w = make_world(2, 4, 128, 1200, 1, 60);
  for (Precision precision : {Precision::exact, Precision::fast})
    for (const ReadPlan& plan :
         {ReadPlan{}, ReadPlan{.width = 4}, ReadPlan{.key_rate = {4, 1}, .value_rate = {1, 1}}}) {
      CodedLayer layer = w.coded(plan, 0, 1200);
      const Row before = read(w, plan, {nullptr, &layer, 1, precision})[0];
      flip_unread(layer, before);
      const Row after = read(w, plan, {nullptr, &layer, 1, precision})[0];
      EXPECT_EQ(after.out, before.out);
      EXPECT_EQ(after.t_k, before.t_k);
      EXPECT_EQ(after.t_v, before.t_v);
    }
}

TEST(CodedReader, KeyScheduleDependsOnTheQueryAlone) {
  World w = make_world(2, 3, 64, 600, 1, 70);
  const ReadPlan plan;
  const CodedLayer one = w.coded(plan, 0, 600);
  w.k = gaussians(w.k.size(), 99), w.v = gaussians(w.v.size(), 98);
  const CodedLayer other = w.coded(plan, 0, 600);
  EXPECT_EQ(read(w, plan, {nullptr, &one})[0].t_k, read(w, plan, {nullptr, &other})[0].t_k);
  EXPECT_NE(read(w, plan, {nullptr, &one})[0].t_v, read(w, plan, {nullptr, &other})[0].t_v);
}

TEST(CodedReader, WholeBudgetIsTheFullReader) {
  const World w = make_world(2, 3, 64, 700, 1, 80);
  for (int width : {8, 4}) {
    const ReadPlan rates{.width = width, .key_rate = {width, 1}, .value_rate = {width, 1}};
    ReadPlan full = rates;
    full.uniform_keys = full.uniform_values = true;
    const CodedLayer layer = w.coded(rates, 0, 700);
    for (Precision precision : {Precision::exact, Precision::fast})
      EXPECT_EQ(read(w, rates, {nullptr, &layer, 1, precision})[0].out,
                read(w, full, {nullptr, &layer, 1, precision})[0].out);
  }
}

TEST(CodedReader, NoBudgetIsTheMean) {
  const World w = make_world(2, 2, 64, 600, 1, 90);
  const ReadPlan plan{.key_rate = {0, 1}, .value_rate = {0, 1}};
  const CodedLayer layer = w.coded(plan, 0, 600);
  ReadTrace trace;
  const Row row = read(w, plan, {nullptr, &layer, 1, Precision::fast}, &trace)[0];
  EXPECT_EQ(trace.key_bits + trace.value_bits + trace.lines, 0);
  for (int h = 0; h < 4; ++h) {
    std::vector<float> mean(w.mu_v.begin() + h / 2 * 64, w.mu_v.begin() + (h / 2 + 1) * 64);
    w.u.back().undo(mean.data(), 1);
    for (size_t c = 0; c < 64; ++c)
      EXPECT_NEAR(row.out[static_cast<size_t>(h) * 64 + c], mean[c], 1e-5f);
  }
}

TEST(CodedReader, ChargesTheBitsOfItsSchedules) {
  const World w = make_world(2, 3, 64, 777, 1, 100);
  for (const ReadPlan& plan : {ReadPlan{}, ReadPlan{.key_rate = {5, 2}, .value_rate = {4, 3}},
                               ReadPlan{.key_rate = {8, 1}, .value_rate = {8, 1}}}) {
    const CodedLayer layer = w.coded(plan, 0, 777);
    ReadTrace trace;
    const Row row = read(w, plan, {nullptr, &layer}, &trace)[0];
    int64_t keys = 0, values = 0;
    for (int t : row.t_k) keys += t;
    for (int t : row.t_v) values += t;
    EXPECT_EQ(trace.key_bits, 777 * keys);
    EXPECT_EQ(trace.value_bits, 64 * values);
    EXPECT_EQ(trace.key_budget, 777 * floor_mul(2 * 64, plan.key_rate));
    EXPECT_EQ(trace.value_budget, 64 * floor_mul(2 * 777, plan.value_rate));
    EXPECT_LE(trace.key_bits, trace.key_budget);
    EXPECT_LE(trace.value_bits, trace.value_budget);
    // A bit is on a line, and a line has 512; open blocks have whole bytes.
    EXPECT_GE(trace.lines * 512, trace.key_bits * 512 / 777 + trace.value_bits);
  }
}

TEST(CodedReader, AppendingLeavesCodesAsTheyAre) {
  const World w = make_world(1, 2, 64, 1100, 1, 110);
  const ReadPlan plan;
  const CodedLayer shorter = w.coded(plan, 0, 1000), longer = w.coded(plan, 0, 1100);
  for (int j = 0; j < 1000; ++j)
    for (int c = 0; c < 64; ++c) {
      ASSERT_EQ(shorter.key_code(0, j, c), longer.key_code(0, j, c));
      ASSERT_EQ(shorter.value_code(0, j, c), longer.value_code(0, j, c));
    }
}

TEST(CodedReader, DoubledQueryHeadsChangeNoDepth) {
  const World one = make_world(2, 2, 64, 600, 1, 120);
  World two = make_world(2, 4, 64, 600, 1, 120);
  for (size_t h = 0; h < 8; ++h)
    std::copy_n(one.q.begin() + static_cast<std::ptrdiff_t>(h / 2 * 64), 64,
                two.q.begin() + static_cast<std::ptrdiff_t>(h * 64));
  const ReadPlan plan;
  const CodedLayer layer = one.coded(plan, 0, 600), same = two.coded(plan, 0, 600);
  ReadTrace trace1, trace2;
  const Row a = read(one, plan, {nullptr, &layer}, &trace1)[0];
  const Row b = read(two, plan, {nullptr, &same}, &trace2)[0];
  EXPECT_EQ(a.t_k, b.t_k);
  EXPECT_EQ(a.t_v, b.t_v);
  for (size_t i = 0; i < a.a_k.size(); ++i) EXPECT_FLOAT_EQ(2 * a.a_k[i], b.a_k[i]);
  for (size_t i = 0; i < a.a_v.size(); ++i) EXPECT_FLOAT_EQ(2 * a.a_v[i], b.a_v[i]);
  EXPECT_EQ(trace1.key_bits + trace1.value_bits, trace2.key_bits + trace2.value_bits);
}

}  // namespace
}  // namespace kvist
