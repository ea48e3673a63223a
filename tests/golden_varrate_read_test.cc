// SPDX-License-Identifier: MIT
// VarRate's store and both its readers against reference arrays.
#include <gtest/gtest.h>

#include <cmath>

#include "kvist/cache/prefix.h"
#include "kvist/cache/ranked_reader.h"
#include "kvist/kernels/targets.h"
#include "tests/support/golden.h"

namespace kvist {
namespace {

using nlohmann::json;

constexpr int kHeads = 9, kKvHeads = 3, kHeadDim = 64, kWidth = 384;

Rope rope() {
  Rope rope;
  rope.adjacent = true;
  for (int f = 0; f < kHeadDim / 2; ++f)
    rope.frequencies.push_back(std::pow(1e5, -2.0 * f / kHeadDim));
  return rope;
}

// A case's prefix of N tokens and what follows it, coded with the ranks and neighbours it gives.
struct Layer {
  Layer(const golden::Suite& suite, const json& item, const CoefficientFormat& format)
      : k(suite.floats(item["inputs"]["k"])),
        v(suite.floats(item["inputs"]["v"])),
        q(suite.floats(item["inputs"]["q"])),
        n(item["params"]["N"]),
        prefix(shape),
        suffix(shape),
        rotations(rope(), n) {
    const int rows = static_cast<int>(k.shape[0]);
    for (auto* store : {&prefix, &suffix}) {
      const int begin = store == &prefix ? 0 : n, end = store == &prefix ? n : rows;
      store->reserve(end - begin);
      store->resize(end - begin);
      for (int t = begin; t < end; ++t)
        store->write(t - begin, &k.data[static_cast<size_t>(t * kWidth / 2)],
                     &v.data[static_cast<size_t>(t * kWidth / 2)]);
    }
    for (int head = 0; head < kKvHeads; ++head) runs.push_back(prefix.run(head));
    basis.n_rows = basis.width = kWidth;
    basis.rows = suite.floats(item["inputs"]["basis"]).data;
    basis.eigenvalues.assign(kWidth, 1.0f);
    encode(suite, item);
    sigma = row_sigmas(basis.eigenvalues);
    ThreadPool pool(1);
    layer = std::make_unique<RankedLayer>(shape, std::make_shared<RankedTokens>(code), runs, code,
                                          format, sigma.data(), pool);
    view = {.layer = layer.get(), .basis = &basis, .sigma = sigma.data(), .rotations = &rotations};
  }

  // Token t before RoPE.
  std::vector<float> joint(int t) const {
    std::vector<float> z(kWidth);
    for (int c = 0; c < kWidth / 2; ++c) {
      z[static_cast<size_t>(c)] = k.data[static_cast<size_t>(t * kWidth / 2 + c)];
      z[static_cast<size_t>(kWidth / 2 + c)] = v.data[static_cast<size_t>(t * kWidth / 2 + c)];
    }
    for (int head = 0; head < kKvHeads; ++head)
      rotations.turn_back(t, &z[static_cast<size_t>(head * kHeadDim)]);
    return z;
  }

  void encode(const golden::Suite& suite, const json& item) {
    const std::vector<int32_t> ranks = suite.ints(item["inputs"]["ranks"]).data;
    const std::vector<int32_t> near = suite.ints(item["inputs"]["neighbours"]).data;
    const int stride = item["params"]["stride"];
    code.n_tokens = n;
    for (int t = 0; t < n; ++t) {
      if (t % stride == 0) code.anchors.push_back(t);
      (t % stride == 0 || t >= n - 64 ? code.exact : code.coded).push_back(t);
    }
    code.n_neighbours = 4;
    code.offset.push_back(0);
    for (size_t i = 0; i < code.coded.size(); ++i) {
      std::vector<float> e = joint(code.coded[i]), sum(kWidth);
      for (size_t a = 4 * i; a < 4 * i + 4; ++a) {
        code.neighbours.push_back(static_cast<uint16_t>(near[a] / stride));
        const std::vector<float> z = joint(near[a]);
        for (size_t c = 0; c < kWidth; ++c) sum[c] += z[c];
      }
      for (size_t c = 0; c < kWidth; ++c) e[c] -= sum[c] / 4;
      code.rank.push_back(static_cast<uint16_t>(ranks[i]));
      for (int j = 0; j < ranks[i]; ++j) {
        double x = 0;
        for (size_t c = 0; c < kWidth; ++c)
          x += static_cast<double>(basis.row(j)[c]) * static_cast<double>(e[c]);
        code.coefficients.push_back(static_cast<float>(x));
      }
      code.offset.push_back(code.coefficients.size());
    }
  }

  std::vector<float> read(int workers) const {
    const int rows = suffix.size(), width = kHeads * kHeadDim;
    std::vector<float> out(static_cast<size_t>(rows * width));
    const SuffixRows own{.store = &suffix, .row = 0, .n_rows = rows, .first_token = 0};
    const AttendCall call{.q = q.data.data() + std::ssize(q.data) - rows * width,
                          .out = out.data(),
                          .n_rows = rows,
                          .logit_scale = 0.125f,
                          .suffixes = {&own, 1},
                          .precision = kernels::Precision::exact};
    RankedSizes sizes;
    sizes.cover(view);
    RankedWorkspace workspace;
    workspace.reserve(sizes, rows, workers);
    ThreadPool pool(workers);
    pool.run([&](Worker worker) { read_ranked(view, call, workspace, worker); });
    return out;
  }

  golden::Array<float> k, v, q;
  int n;
  KvShape shape{kKvHeads, kHeads, kHeadDim, Scalar::f16};
  DenseLayer prefix, suffix;
  RotationTable rotations;
  std::vector<kernels::KvRun> runs;
  RankBasisLayer basis;
  RankedCode code;
  std::vector<float> sigma;
  std::unique_ptr<RankedLayer> layer;
  RankedView view;
};

class GoldenVarRateRead : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = golden::whole_suite("varrate");
    if (folder.empty()) GTEST_SKIP() << "the reference arrays are not beside this checkout";
    suite = std::make_unique<golden::Suite>(folder);
  }
  template <typename Fn>
  int each(const char* stage, const Fn& fn) {
    int cases = 0;
    for (const json& item : suite->cases()) {
      if (item["stage"] != stage) continue;
      SCOPED_TRACE(item["name"].get<std::string>());
      fn(item);
      ++cases;
    }
    return cases;
  }
  std::unique_ptr<golden::Suite> suite;
};

TEST_F(GoldenVarRateRead, CodesReconstructionsAndAttention) {
  const auto check = [&](const json& item) {
    const Layer layer(*suite, item, {32});  // these cases round nothing
    suite->expect(item, "coef", layer.code.coefficients);
    std::vector<float> zhat(layer.code.coded.size() * kWidth), error, residual;
    for (int head = 0; head < kKvHeads; ++head) {
      std::vector<float> k, v;
      reconstruct_ranked(layer.view, head, &k, &v);
      for (size_t i = 0; i < layer.code.coded.size(); ++i) {
        const int t = layer.code.coded[i];
        layer.rotations.turn_back(t, &k[static_cast<size_t>(t * kHeadDim)]);
        for (int c = 0; c < kHeadDim; ++c) {
          float* row = &zhat[i * kWidth + static_cast<size_t>(head * kHeadDim + c)];
          row[0] = k[static_cast<size_t>(t * kHeadDim + c)];
          row[kWidth / 2] = v[static_cast<size_t>(t * kHeadDim + c)];
        }
      }
    }
    for (size_t i = 0; i < layer.code.coded.size(); ++i) {
      const std::vector<float> z = layer.joint(layer.code.coded[i]);
      double sum = 0;
      for (size_t c = 0; c < kWidth; ++c) {
        const double e = static_cast<double>(z[c]) - static_cast<double>(zhat[i * kWidth + c]);
        sum += e * e;
      }
      error.push_back(static_cast<float>(sum));
    }
    suite->expect(item, "zhat", zhat);
    EXPECT_TRUE(suite->expect(item, "err", error));
    kernels::for_each_target([&](const std::string& target) {
      SCOPED_TRACE(target);
      EXPECT_TRUE(suite->expect(item, "out", layer.read(2)));
    });
  };
  EXPECT_GE(each("coefficients, reconstruction, read", check), 6);
}

TEST_F(GoldenVarRateRead, BlocksOfCoefficients) {
  const auto check = [&](const json& item) {
    RankedCode code;
    const std::vector<int32_t> ranks = suite->ints(item["inputs"]["ranks"]).data;
    code.coefficients = suite->floats(item["inputs"]["coef"]).data;
    code.n_tokens = static_cast<int>(ranks.size());
    code.offset.push_back(0);
    for (size_t i = 0; i < ranks.size(); ++i) {
      code.coded.push_back(static_cast<int32_t>(i));
      code.rank.push_back(static_cast<uint16_t>(ranks[i]));
      code.offset.push_back(code.offset.back() + static_cast<uint64_t>(ranks[i]));
    }
    const KvShape shape{kKvHeads, kHeads, kHeadDim, Scalar::f16};
    DenseLayer dense(shape);
    dense.reserve(1);
    dense.resize(1);
    const std::vector<kernels::KvRun> runs(kKvHeads, dense.run(0));
    ThreadPool pool(2);
    const RankedLayer layer(shape, std::make_shared<RankedTokens>(code), runs, code, {}, nullptr,
                            pool);
    EXPECT_EQ(layer.shift(), item["params"]["scale_log2"]);
    std::vector<uint8_t> payload, order;
    std::vector<int32_t> offsets;
    for (int block = 0; block < layer.n_blocks(); ++block) {
      const auto bytes = layer.block_bytes(block);
      payload.insert(payload.end(), bytes.begin(), bytes.end());
      offsets.push_back(static_cast<int32_t>(layer.block_offset(block)));
      order.insert(order.end(), layer.order(block), layer.order(block) + layer.block_tokens(block));
    }
    EXPECT_TRUE(suite->expect(item, "payload", payload));
    EXPECT_TRUE(suite->expect(item, "block_off", offsets));
    EXPECT_TRUE(suite->expect(item, "perm", order));
  };
  EXPECT_GE(each("block layout", check), 1);
}

}  // namespace
}  // namespace kvist
