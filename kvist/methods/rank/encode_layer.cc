// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/encode_layer.h"

#include <algorithm>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/kernels/products.h"
#include "kvist/methods/rank/anchors.h"
#include "kvist/methods/rank/budget.h"
#include "kvist/methods/rank/salience.h"
#include "kvist/methods/rank/water_fill.h"

namespace kvist {
namespace {

constexpr int kTile = 48;  // tokens whose residuals are projected together

struct Residuals {
  const float* z = nullptr;  // [tokens][width]
  int width = 0;
  const RankedCode* code = nullptr;
  const AnchorSets* sets = nullptr;

  // Of coded token i: out [width].
  void read(size_t i, float* out) const {
    anchor_mean(z, width, *sets, code->neighbours_of(i), out);
    const float* x = z + static_cast<int64_t>(code->coded[i]) * width;
    for (int c = 0; c < width; ++c) out[c] = x[c] - out[c];
  }
};

// Calls use(order position, coefficients) for the coded tokens order[0 ..): of tiles of kTile
// tokens, each projected to columns(first of the tile) rows of the basis.
template <typename Columns, typename Use>
void project(const Residuals& residuals, const kernels::PackedRows& rows,
             std::span<const uint32_t> order, ThreadPool& pool, const Columns& columns,
             const Use& use) {
  const auto n = static_cast<int64_t>(order.size());
  pool.parallel_for((n + kTile - 1) / kTile, [&](int64_t tile) {
    const int64_t begin = tile * kTile, end = std::min(begin + kTile, n);
    const int width = residuals.width, padded = rows.padded();
    const int n_columns = columns(order[static_cast<size_t>(begin)]);
    std::vector<float> e(static_cast<size_t>(end - begin) * static_cast<size_t>(width));
    std::vector<float> out(static_cast<size_t>(end - begin) * static_cast<size_t>(padded));
    for (int64_t i = begin; i < end; ++i)
      residuals.read(order[static_cast<size_t>(i)], e.data() + (i - begin) * width);
    kernels::dot_products(e.data(), static_cast<int>(end - begin), width, rows, n_columns,
                          out.data(), padded);
    for (int64_t i = begin; i < end; ++i)
      use(order[static_cast<size_t>(i)], out.data() + (i - begin) * padded);
  });
}

std::vector<double> energies(const Residuals& residuals, size_t n, ThreadPool& pool) {
  std::vector<double> out(n);
  pool.parallel_for(static_cast<int64_t>(n), [&](int64_t i) {
    std::vector<float> e(static_cast<size_t>(residuals.width));
    residuals.read(static_cast<size_t>(i), e.data());
    double sum = 0;
    for (const float x : e) sum += static_cast<double>(x) * static_cast<double>(x);
    out[static_cast<size_t>(i)] = sum;
  });
  return out;
}

std::vector<uint32_t> all_tokens(const RankedCode& code) {
  std::vector<uint32_t> order(code.coded.size());
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

void set_offsets(RankedCode* code) {
  code->offset.assign(1, 0);
  for (const uint16_t r : code->rank) code->offset.push_back(code->offset.back() + r);
  code->coefficients.resize(code->offset.back());
}

// Every token projected to all rows; ranks by what they hold.
void code_by_energy(const Residuals& residuals, const kernels::PackedRows& rows,
                    std::span<const double> salience, const FillLimits& limits, ThreadPool& pool,
                    RankedCode* code) {
  constexpr double kUnseen = 1.0 / 20;  // weight of a token that nothing attended to
  const auto n = code->coded.size(), stride = static_cast<size_t>(rows.size());
  Buffer<float> all(n * stride);
  project(
      residuals, rows, all_tokens(*code), pool, [&](uint32_t) { return rows.size(); },
      [&](uint32_t i, const float* x) { std::copy_n(x, stride, all.data() + i * stride); });
  std::vector<double> weights(salience.begin(), salience.end());
  for (double& w : weights) w += kUnseen;
  code->rank = energy_fill(all.data(), static_cast<int64_t>(stride), weights, limits);
  set_offsets(code);
  for (size_t i = 0; i < n; ++i) {
    std::copy_n(all.data() + i * stride, code->rank[i],
                code->coefficients.data() + code->offset[i]);
  }
}

// Tokens of similar rank share a tile, so that little is projected in vain.
void code_by_rank(const Residuals& residuals, const kernels::PackedRows& rows, ThreadPool& pool,
                  RankedCode* code) {
  set_offsets(code);
  std::vector<uint32_t> order = all_tokens(*code);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return code->rank[a] > code->rank[b]; });
  project(
      residuals, rows, order, pool, [&](uint32_t i) { return int{code->rank[i]}; },
      [&](uint32_t i, const float* x) {
        std::copy_n(x, code->rank[i], code->coefficients.data() + code->offset[i]);
      });
}

}  // namespace

RankedCode encode_layer(const LayerInput& layer, const RankBasisLayer& basis, const RankPlan& plan,
                        const RotationTable& rotation, ThreadPool& pool) {
  const int width = 2 * layer.kv_heads * layer.head_dim;
  if (basis.width != width) {
    throw Error(ErrorKind::invalid_argument, str("varrate, layer ", layer.layer, ": the basis is ",
                                                 basis.width, " numbers wide, a token ", width));
  }
  const RankBudget budget = rank_budget(plan, layer.n_tokens, width, basis.n_rows, layer.kv_heads);
  RankedCode code;
  code.n_tokens = layer.n_tokens;
  code.stride = budget.stride;
  code.least_rank = budget.least_rank;
  code.offset = {0};
  const AnchorSets sets =
      anchor_sets(layer.n_tokens, budget.stride, budget.coded == 0 ? layer.n_tokens : plan.window);
  code.exact = sets.exact;
  code.anchors = sets.anchors;
  code.coded = sets.coded;
  code.causal = plan.causal_anchors;
  code.n_neighbours = std::min(plan.neighbours, static_cast<int>(sets.anchors.size()));
  if (code.coded.empty()) return code;

  const Buffer<float> z = joint_rows(layer, rotation, plan.value_scale);
  code.neighbours = nearest_anchors(z.data(), width, sets, code.n_neighbours, code.causal, pool);
  const Residuals residuals{z.data(), width, &code, &sets};
  std::vector<double> residual_energy;
  if (plan.salience == RankPlan::Salience::norm)
    residual_energy = energies(residuals, code.coded.size(), pool);
  const std::vector<double> shat = salience(layer, plan, code.coded, residual_energy);
  const kernels::PackedRows rows(basis.rows.data(), basis.n_rows, width, width);
  const FillLimits limits{.total = budget.spendable,
                          .least = budget.least_rank,
                          .most = basis.n_rows,
                          .granule = plan.granule,
                          .round_up = plan.round_up};
  if (plan.allocation == RankPlan::Allocation::energy) {
    code_by_energy(residuals, rows, shat, limits, pool, &code);
  } else {
    const std::vector<uint32_t> q = quantized_salience(shat);
    code.rank = plan.allocation == RankPlan::Allocation::split ? split_fill(q, limits)
                                                               : water_fill(q, limits);
    code_by_rank(residuals, rows, pool, &code);
  }
  code.unspent = budget.total - static_cast<int64_t>(code.offset.back());
  return code;
}

}  // namespace kvist
