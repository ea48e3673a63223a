// SPDX-License-Identifier: MIT
// Tests of one row read from codes: what it sees, what stays exact, and that its certificate holds.
#include "kvist/cli/query_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kvist/cache/coded_prefix.h"
#include "kvist/core/error.h"
#include "kvist/methods/read/accumulator.h"
#include "kvist/methods/test_layer.h"

namespace kvist {
namespace {

constexpr int kHeads = 2, kGroup = 3, kDim = 16;

struct Coded {
  explicit Coded(int n_tokens, uint64_t seed = 3)
      : pool(2), layer(TestLayer::random(n_tokens, kHeads, kGroup, kDim, 2, seed)) {
    input = layer.input(pool);
    CalibrationAccumulator sums({"", "", {1, kHeads, kHeads * kGroup, kDim}}, {});
    sums.add(0, n_tokens, layer.k.data(), layer.v.data(), 2, layer.q.data());
    model = std::make_unique<CodedModel>(sums.finish());
  }
  CodedLayer code(const ReadPlan& plan) const {
    return code_layer(input, kHeads * kGroup, model->layer(0), plan);
  }

  ThreadPool pool;
  TestLayer layer;
  LayerInput input;
  std::unique_ptr<CodedModel> model;
};

const ReadPlan kPlans[] = {
    {.key_rate = {3, 1}, .value_rate = {1, 1}},
    {.width = 4, .key_rate = {1, 1}, .value_rate = {2, 1}, .per_head = true},
    {.key_rate = {2, 1}, .value_rate = {1, 1}, .sinks = 4, .recent = 3},
    {.key_rate = {0, 1}, .value_rate = {0, 1}},
    {.key_rate = {8, 1}, .value_rate = {8, 1}, .physical_values = true},
    {.key_rate = {2, 1}, .value_rate = {2, 1}, .pairs = true},
};

TEST(QueryRow, CertificatesHold) {
  for (int n_tokens : {1, 2, 70, 700}) {
    const Coded c(n_tokens);
    ReadWorkspace workspace;
    for (const ReadPlan& plan : kPlans) {
      const CodedLayer coded = c.code(plan);
      for (int seen : {n_tokens, (n_tokens + 1) / 2}) {
        SCOPED_TRACE(str(seen, " of ", n_tokens, ", plan ", &plan - kPlans));
        const RowReading row =
            read_row(coded, plan, c.layer.q.data(), seen, c.input.logit_scale, workspace);
        const LayerCertificate certificate =
            certify_row(c.input, coded, plan, c.layer.q.data(), row);
        ASSERT_EQ(certificate.heads.size(), size_t{kHeads * kGroup});
        EXPECT_LE(certificate.error, certificate.bound);
        for (const HeadCertificate& head : certificate.heads) EXPECT_LE(head.error, head.bound);
      }
    }
  }
}

// |o - o_hat|^2 of the certificate, whose output is made in double, is that of the reader's output
// up to the rounding of float32 sums.
TEST(QueryRow, TheCertificatesErrorIsThatOfTheOutput) {
  const int n = 600;
  const Coded c(n);
  ReadWorkspace workspace;
  for (const ReadPlan& plan : kPlans) {
    SCOPED_TRACE(&plan - kPlans);
    const CodedLayer coded = c.code(plan);
    const RowReading row =
        read_row(coded, plan, c.layer.q.data(), n, c.input.logit_scale, workspace);
    const LayerCertificate certificate = certify_row(c.input, coded, plan, c.layer.q.data(), row);
    for (int h = 0; h < kHeads * kGroup; ++h) {
      std::vector<double> z, exact(kDim, 0.0);
      for (int t = 0; t < n; ++t) {
        double sum = 0;
        for (int i = 0; i < kDim; ++i)
          sum += double{c.layer.q[static_cast<size_t>(h * kDim + i)]} *
                 double{c.layer.k[static_cast<size_t>((t * kHeads + h / kGroup) * kDim + i)]};
        z.push_back(std::exp(sum / std::sqrt(double{kDim})));
      }
      double total = 0, error = 0;
      for (double x : z) total += x;
      for (int i = 0; i < kDim; ++i) {
        for (int t = 0; t < n; ++t)
          exact[static_cast<size_t>(i)] +=
              z[static_cast<size_t>(t)] / total *
              double{c.layer.v[static_cast<size_t>((t * kHeads + h / kGroup) * kDim + i)]};
        error += std::pow(
            exact[static_cast<size_t>(i)] - double{row.out[static_cast<size_t>(h * kDim + i)]}, 2);
      }
      const double got = std::sqrt(certificate.heads[static_cast<size_t>(h)].error);
      EXPECT_NEAR(got, std::sqrt(error), 1e-4 * (1 + std::sqrt(error))) << h;
    }
  }
}

TEST(QueryRow, TokensBehindTheRowChangeNothing) {
  const Coded c(700);
  ReadWorkspace workspace;
  for (const ReadPlan& plan : kPlans) {
    SCOPED_TRACE(&plan - kPlans);
    const CodedLayer all = c.code(plan);
    LayerInput some = c.input;
    some.n_tokens = 530;
    const CodedLayer part = code_layer(some, kHeads * kGroup, c.model->layer(0), plan);
    const RowReading a = read_row(all, plan, c.layer.q.data(), 530, c.input.logit_scale, workspace);
    const RowReading b =
        read_row(part, plan, c.layer.q.data(), 530, c.input.logit_scale, workspace);
    EXPECT_EQ(a.key_depths, b.key_depths);
    EXPECT_EQ(a.value_depths, b.value_depths);
    EXPECT_EQ(a.out, b.out);
  }
}

TEST(QueryRow, SinksAndRecentTokensAreExact) {
  const Coded c(100);
  const ReadPlan plan{.key_rate = {1, 1}, .value_rate = {1, 1}, .sinks = 4, .recent = 3};
  ReadWorkspace workspace;
  const RowReading row =
      read_row(c.code(plan), plan, c.layer.q.data(), 90, c.input.logit_scale, workspace);
  for (size_t g = 0; g < kHeads; ++g) {
    for (size_t t = 0; t < 90; ++t)
      EXPECT_EQ(row.value_depths[g * 90 + t] == kExactDepth, t < 4 || t >= 87) << t;
  }
  EXPECT_EQ(row.trace.dense_bytes, 7 * 4 * kHeads * kDim);
  EXPECT_GT(row.trace.key_lines, 0);
  EXPECT_GT(row.trace.lines, row.trace.key_lines);
}

TEST(QueryRow, NumbersThatCannotBeCodedAreRefused) {
  Coded c(80);
  c.layer.v[5] = NAN;
  try {
    c.code({});
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::corrupt);
    EXPECT_NE(std::string(error.what()).find("layer 0"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kvist
