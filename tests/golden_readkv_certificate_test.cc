// SPDX-License-Identifier: MIT
// ReadKV's certificate against reference arrays, the reading rebuilt from the stored codes and
// depths.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kvist/kernels/tree_code.h"
#include "kvist/methods/read/certificate.h"
#include "kvist/methods/read/transform.h"
#include "tests/support/golden.h"

namespace kvist {
namespace {

using nlohmann::json;
using Floats = std::vector<float>;
using Kind = HeadTransform::Kind;

struct Reading {
  Reading(const golden::Suite& suite, const json& item) {
    const json &params = item["params"], &inputs = item["inputs"];
    kv_heads = params["kv_heads"];
    heads = kv_heads * params["group"].get<int>();
    d = params["head_dim"];
    T = params["T"];
    const auto taken = [&](const char* role, Kind kind) {
      Floats x = suite.floats(inputs[role]).data;
      x.resize(static_cast<size_t>(T * kv_heads * d));
      HeadTransform::hadamard(d, 20260801, kind, 0).apply(x.data(), T * kv_heads);
      return x;
    };
    k = taken("k", Kind::key);
    v = taken("v", Kind::value);
    const auto positions = suite.ints(inputs["q_pos"]).data;
    const auto row = std::find(positions.begin(), positions.end(), params["q_pos"].get<int>()) -
                     positions.begin();
    const Floats all = suite.floats(inputs["q"]).data;
    q.assign(all.begin() + row * heads * d, all.begin() + (row + 1) * heads * d);
    HeadTransform::hadamard(d, 20260801, Kind::key, 0).apply(q.data(), heads);
    sigma_k = suite.floats(inputs["sigma_k"]).data;
    t_k = suite.bytes(item["expected"]["t_k"]["array"]).data;
    t_v = suite.bytes(item["expected"]["t_v"]["array"]).data;
    const auto decoded = [&](const char* leaf, const char* mean, const char* spread, auto depth) {
      const auto codes = suite.bytes(inputs[leaf]).data;
      const Floats mu = suite.floats(inputs[mean]).data, sigma = suite.floats(inputs[spread]).data;
      Floats x;
      for (int64_t j = 0; j < T; ++j) {
        for (int c = 0; c < kv_heads * d; ++c) {
          const uint8_t code = codes[static_cast<size_t>(j * kv_heads * d + c)];
          const auto at = static_cast<size_t>(c);
          x.push_back(mu[at] + sigma[at] * kernels::tree_value(code, depth(j, c)));
        }
      }
      return x;
    };
    k_hat = decoded("leaf_k", "mu_k", "sigma_k",
                    [&](int64_t, int c) { return t_k[static_cast<size_t>(c)]; });
    v_hat = decoded("leaf_v", "mu_v", "sigma_v",
                    [&](int64_t j, int c) { return t_v[static_cast<size_t>(c / d * T + j)]; });
    for (int h = 0; h < heads; ++h) attend(h);
  }

  void attend(int h) {
    std::vector<double> z;
    for (int64_t j = 0; j < T; ++j) {
      const float* key = k_hat.data() + (j * kv_heads + h / (heads / kv_heads)) * d;
      double sum = 0;
      for (int c = 0; c < d; ++c) sum += double{q[static_cast<size_t>(h * d + c)]} * double{key[c]};
      z.push_back(sum / std::sqrt(static_cast<double>(d)));
    }
    const double top = *std::max_element(z.begin(), z.end());
    double total = 0;
    for (double& x : z) total += x = std::exp(x - top);
    for (double x : z) alpha.push_back(x / total);
  }

  LayerCertificate certificate() const {
    const std::vector<double> s(static_cast<size_t>(kv_heads), 1.0);
    return certify({heads, kv_heads, d, T, 1 / std::sqrt(static_cast<double>(d)), q, k, v, k_hat,
                    v_hat, alpha, sigma_k, t_k, t_v, s});
  }

  int heads, kv_heads, d;
  int64_t T;
  Floats q, k, v, k_hat, v_hat, sigma_k;
  std::vector<uint8_t> t_k, t_v;
  std::vector<double> alpha;
};

TEST(GoldenReadKv, Certificates) {
  const std::string folder = golden::whole_suite("readkv");
  if (folder.empty()) GTEST_SKIP() << "the reference arrays are not here";
  const golden::Suite suite(folder);
  int seen = 0;
  for (const json& item : suite.cases()) {
    if (!item["expected"].contains("certificate")) continue;
    SCOPED_TRACE(item["name"].get<std::string>());
    const LayerCertificate c = Reading(suite, item).certificate();
    Floats rows;
    const auto add = [&](auto field) {
      for (const HeadCertificate& head : c.heads) rows.push_back(static_cast<float>(field(head)));
    };
    for (const auto part : {&HeadCertificate::keys, &HeadCertificate::values}) {
      for (auto field :
           {&HeadCertificate::Part::a, &HeadCertificate::Part::s, &HeadCertificate::Part::gamma,
            &HeadCertificate::Part::kappa, &HeadCertificate::Part::beta})
        add([&](const HeadCertificate& head) { return head.*part.*field; });
    }
    add([](const HeadCertificate& head) { return head.bound; });
    add([](const HeadCertificate& head) { return head.error; });
    EXPECT_TRUE(suite.expect(item, "certificate", rows));
    for (const HeadCertificate& head : c.heads) EXPECT_LE(head.error, head.bound);
    EXPECT_LE(c.error, c.bound);
    ++seen;
  }
  EXPECT_GE(seen, 16);
}

}  // namespace
}  // namespace kvist
