// SPDX-License-Identifier: MIT
// Layers with a plain encoder of their own, for tests of the store and the readers.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "kvist/cache/ranked_keys.h"
#include "kvist/core/rng.h"
#include "kvist/methods/rank/rotation_table.h"

namespace kvist::testing {

struct RankedCase {
  int kv_heads = 2, heads = 6, head_dim = 16;
  int n_tokens = 300;
  int stride = 16, window = 64, neighbours = 4;  // 0 neighbours: the first token and the window are
                                                 // exact, nothing is an anchor
  int basis_rows = 64;                           // at most 2 kv_heads head_dim
  Scalar type = Scalar::f16;
  bool adjacent = false;
  double value_scale = 1;
  CoefficientFormat format = {};
  std::function<int(int)> rank = [](int i) { return i * 37 % 65; };  // of coded token i
  uint64_t seed = 1;
};

// Random keys and values that drift along the document, so that anchors are worth something.
class RankedTestLayer {
 public:
  explicit RankedTestLayer(const RankedCase& of)
      : shape{of.kv_heads, of.heads, of.head_dim, of.type},
        dense(shape),
        rotations(rope(of), of.n_tokens + 64),
        value_scale(of.value_scale) {
    const int half = of.kv_heads * of.head_dim;
    Rng rng(of.seed);
    dense.reserve(of.n_tokens);
    dense.resize(of.n_tokens);
    std::vector<float> z(static_cast<size_t>(2 * half)), drift(z.size());
    for (int t = 0; t < of.n_tokens; ++t) {
      for (size_t i = 0; i < z.size(); ++i) {
        drift[i] = 0.95f * drift[i] + 0.3f * static_cast<float>(rng.gaussian());
        z[i] = drift[i] + 0.3f * static_cast<float>(rng.gaussian());
      }
      for (int h = 0; h < of.kv_heads; ++h)
        rotations.turn(t, &z[static_cast<size_t>(h * of.head_dim)]);
      dense.write(t, z.data(), z.data() + half);
    }
    for (int h = 0; h < of.kv_heads; ++h) runs.push_back(dense.run(h));
    make_basis(2 * half, of.basis_rows, rng);
    encode(of);
    sigma = row_sigmas(basis.eigenvalues);
    tiles = key_tiles_of(basis, shape);
    tokens = std::make_shared<const RankedTokens>(code);
    ThreadPool pool(1);
    layer = std::make_unique<RankedLayer>(shape, tokens, runs, code, of.format, sigma.data(), pool);
  }

  RankedView view() const {
    return {.layer = layer.get(),
            .basis = &basis,
            .sigma = sigma.data(),
            .rotations = &rotations,
            .key_tiles = tiles.data(),
            .value_scale = value_scale};
  }
  // Rows z of all tokens, values times value_scale, in double; [tokens][D].
  std::vector<double> joint() const {
    const int d = shape.head_dim, half = shape.kv_heads * d, n = dense.size();
    std::vector<double> z(static_cast<size_t>(n * 2 * half));
    std::vector<float> k(static_cast<size_t>(n * d)), v(k.size());
    for (int h = 0; h < shape.kv_heads; ++h) {
      kernels::load_keys(dense.run(h), 0, n, k.data());
      kernels::load_values(dense.run(h), 0, n, v.data());
      for (int t = 0; t < n; ++t) {
        rotations.turn_back(t, &k[static_cast<size_t>(t * d)]);
        for (int c = 0; c < d; ++c) {
          double* row = &z[static_cast<size_t>(t * 2 * half)];
          row[h * d + c] = static_cast<double>(k[static_cast<size_t>(t * d + c)]);
          row[half + h * d + c] =
              value_scale * static_cast<double>(v[static_cast<size_t>(t * d + c)]);
        }
      }
    }
    return z;
  }

  KvShape shape;
  DenseLayer dense;
  RotationTable rotations;
  double value_scale;
  std::vector<kernels::KvRun> runs;
  RankBasisLayer basis;
  RankedCode code;
  std::vector<float> sigma;
  Buffer<std::byte> tiles;
  std::shared_ptr<const RankedTokens> tokens;
  std::unique_ptr<RankedLayer> layer;

 private:
  static Rope rope(const RankedCase& of) {
    Rope rope;
    rope.adjacent = of.adjacent;
    for (int f = 0; f < of.head_dim / 2; ++f)
      rope.frequencies.push_back(std::pow(1e4, -2.0 * f / of.head_dim));
    return rope;
  }

  // Random orthonormal rows.
  void make_basis(int width, int n_rows, Rng& rng) {
    basis.width = width;
    basis.n_rows = std::min(n_rows, width);
    std::vector<std::vector<double>> rows;
    while (std::ssize(rows) < basis.n_rows) {
      std::vector<double> row(static_cast<size_t>(width));
      for (double& x : row) x = rng.gaussian();
      for (int twice = 0; twice < 2; ++twice)
        for (const auto& other : rows) {
          const double dot = std::inner_product(row.begin(), row.end(), other.begin(), 0.0);
          for (size_t i = 0; i < row.size(); ++i) row[i] -= dot * other[i];
        }
      const double norm = std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0));
      for (double& x : row) x /= norm;
      rows.push_back(row);
      for (const double x : row) basis.rows.push_back(static_cast<float>(x));
      basis.eigenvalues.push_back(static_cast<float>(std::pow(0.98, std::ssize(rows))));
    }
  }

  void encode(const RankedCase& of) {
    code.n_tokens = of.n_tokens;
    for (int t = 0; t < of.n_tokens; ++t) {
      const bool anchor = of.neighbours > 0 && t % of.stride == 0;
      if (anchor) code.anchors.push_back(t);
      (anchor || t == 0 || t >= of.n_tokens - of.window ? code.exact : code.coded).push_back(t);
    }
    const int c = std::min(of.neighbours, static_cast<int>(code.anchors.size()));
    code.n_neighbours = c;
    const size_t width = static_cast<size_t>(basis.width);
    const std::vector<double> z = joint();
    code.offset.push_back(0);
    for (size_t i = 0; i < code.coded.size(); ++i) {
      const double* x = &z[static_cast<size_t>(code.coded[i]) * width];
      std::vector<std::pair<double, int>> near;
      for (size_t a = 0; a < code.anchors.size(); ++a) {
        double distance = 0;
        for (size_t k = 0; k < width; ++k) {
          const double e = x[k] - z[static_cast<size_t>(code.anchors[a]) * width + k];
          distance += e * e;
        }
        near.emplace_back(distance, static_cast<int>(a));
      }
      std::sort(near.begin(), near.end());
      std::vector<double> residual(x, x + width);
      for (int n = 0; n < c; ++n) {
        const int a = near[static_cast<size_t>(n)].second;
        code.neighbours.push_back(static_cast<uint16_t>(a));
        const size_t row = static_cast<size_t>(code.anchors[static_cast<size_t>(a)]) * width;
        for (size_t k = 0; k < width; ++k) residual[k] -= z[row + k] / c;
      }
      const int rank = std::min(of.rank(static_cast<int>(i)), basis.n_rows);
      code.rank.push_back(static_cast<uint16_t>(rank));
      for (int j = 0; j < rank; ++j) {
        double sum = 0;
        for (size_t k = 0; k < width; ++k)
          sum += residual[k] * static_cast<double>(basis.row(j)[k]);
        code.coefficients.push_back(static_cast<float>(sum));
      }
      code.offset.push_back(code.coefficients.size());
    }
  }
};

}  // namespace kvist::testing
