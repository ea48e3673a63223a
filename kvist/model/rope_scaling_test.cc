// SPDX-License-Identifier: MIT
// The table of rotations against ggml's own rope, for every kind of scaling.
#include "kvist/model/rope_scaling.h"

#include <ggml-cpu.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

namespace kvist {
namespace {

constexpr int kDims = 16;

// What ggml makes of (1, 0) in every pair at `position`: [dims / 2] cosines, then sines.
std::vector<float> turned(const RopeParams& r, std::vector<float> factors, int position) {
  std::vector<uint8_t> memory(1 << 20);
  const std::unique_ptr<ggml_context, void (*)(ggml_context*)> c(
      ggml_init({memory.size(), memory.data(), false}), ggml_free);
  ggml_tensor* x = ggml_new_tensor_3d(c.get(), GGML_TYPE_F32, kDims, 1, 1);
  for (int i = 0; i < kDims; ++i) static_cast<float*>(x->data)[i] = i < kDims / 2 ? 1.0f : 0.0f;
  ggml_tensor* positions = ggml_new_tensor_1d(c.get(), GGML_TYPE_I32, 1);
  static_cast<int32_t*>(positions->data)[0] = position;
  ggml_tensor* f = nullptr;
  if (!factors.empty()) {
    f = ggml_new_tensor_1d(c.get(), GGML_TYPE_F32, kDims / 2);
    std::copy(factors.begin(), factors.end(), static_cast<float*>(f->data));
  }
  ggml_tensor* y =
      ggml_rope_ext(c.get(), x, positions, f, r.dims, GGML_ROPE_TYPE_NEOX, r.original_context,
                    r.theta, r.freq_scale, r.ext_factor, r.attn_factor, r.beta_fast, r.beta_slow);
  ggml_cgraph* graph = ggml_new_graph(c.get());
  ggml_build_forward_expand(graph, y);
  ggml_graph_compute_with_ctx(c.get(), graph, 1);
  const float* data = static_cast<const float*>(y->data);
  return {data, data + kDims};
}

TEST(RopeTable, TurnsAsGgmlDoes) {
  RopeParams plain{.dims = kDims, .original_context = 512};
  RopeParams linear = plain, yarn = plain, steep = plain;
  linear.freq_scale = 0.25f;
  yarn.freq_scale = 0.25f;
  yarn.ext_factor = 1;
  steep = yarn;
  steep.theta = 1e6f;
  steep.attn_factor = 0.8f;
  const std::vector<float> factors{1, 1, 2, 3, 4, 8, 8, 8};
  for (const RopeParams& params : {plain, linear, yarn, steep}) {
    for (const auto& own : {std::vector<float>(), factors}) {
      const RopeTable table = rope_table(params, own);
      ASSERT_EQ(table.frequencies.size(), kDims / 2u);
      for (int position : {0, 1, 7, 300}) {
        const std::vector<float> want = turned(params, own, position);
        for (size_t f = 0; f < kDims / 2; ++f) {
          const double angle = position * table.frequencies[f];
          const double bound = 1e-6 * (1 + position);  // ggml's angle is a float
          EXPECT_NEAR(table.magnitude * std::cos(angle), static_cast<double>(want[f]), bound);
          EXPECT_NEAR(table.magnitude * std::sin(angle), static_cast<double>(want[f + kDims / 2]),
                      bound);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvist
