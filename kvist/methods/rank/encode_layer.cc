// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/encode_layer.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/kernels/products.h"
#include "kvist/kernels/ranked.h"
#include "kvist/methods/rank/anchors.h"
#include "kvist/methods/rank/budget.h"
#include "kvist/methods/rank/salience.h"
#include "kvist/methods/rank/water_fill.h"

namespace kvist {
namespace {

constexpr int64_t kTile = 64;  // tokens whose residuals are projected together

// What tokens differ by from the mean of their anchors.
class Residuals {
 public:
  // z [tokens][width]
  Residuals(const float* z, int width, const RankedCode& code)
      : z_(z),
        width_(width),
        code_(&code),
        anchors_(code.anchors.size() * static_cast<size_t>(width)) {
    float* to = anchors_.data();
    for (const int32_t anchor : code.anchors)
      to = std::copy_n(z + static_cast<int64_t>(anchor) * width, width, to);
  }
  int width() const { return width_; }

  // Of at most kTile coded tokens: out [tokens][width].
  void read(std::span<const uint32_t> tokens, float* out) const {
    const auto most = static_cast<size_t>(code_->n_neighbours);
    std::vector<uint16_t> index(tokens.size() * most);
    uint8_t count[kTile];
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto near = code_->neighbours_of(tokens[i]);
      std::copy(near.begin(), near.end(), index.begin() + static_cast<int64_t>(i * most));
      count[i] = static_cast<uint8_t>(near.size());
    }
    kernels::mean_rows(anchors_.data(), {index.data(), count, code_->n_neighbours},
                       static_cast<int>(tokens.size()), width_, out);
    for (const uint32_t token : tokens) {
      const float* x = z_ + static_cast<int64_t>(code_->coded[token]) * width_;
      for (int c = 0; c < width_; ++c) out[c] = x[c] - out[c];
      out += width_;
    }
  }

 private:
  const float* z_;
  int width_;
  const RankedCode* code_;
  Buffer<float> anchors_;  // [anchors][width]
};

// Calls use(order position, coefficients) for the coded tokens order[0 ..): of tiles of kTile
// tokens, each projected to columns(first of the tile) rows of the basis.
template <typename Columns, typename Use>
void project(const Residuals& residuals, const kernels::PackedRows& rows,
             std::span<const uint32_t> order, ThreadPool& pool, const Columns& columns,
             const Use& use) {
  const auto n = static_cast<int64_t>(order.size());
  const int width = residuals.width(), padded = rows.padded();
  std::atomic<int64_t> next{0};
  pool.run([&](Worker) {
    kernels::DotProducts products(rows);
    std::vector<float> e(static_cast<size_t>(kTile) * static_cast<size_t>(width));
    std::vector<float> out(static_cast<size_t>(kTile) * static_cast<size_t>(padded));
    for (int64_t begin = kTile * next++; begin < n; begin = kTile * next++) {
      const int64_t end = std::min(begin + kTile, n);
      residuals.read(order.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                     e.data());
      products(e.data(), static_cast<int>(end - begin), width,
               columns(order[static_cast<size_t>(begin)]), out.data(), padded);
      for (int64_t i = begin; i < end; ++i)
        use(order[static_cast<size_t>(i)], out.data() + (i - begin) * padded);
    }
  });
}

std::vector<double> energies(const Residuals& residuals, size_t n, ThreadPool& pool) {
  std::vector<double> out(n);
  pool.parallel_for(static_cast<int64_t>(n), [&](int64_t i) {
    std::vector<float> e(static_cast<size_t>(residuals.width()));
    const auto token = static_cast<uint32_t>(i);
    residuals.read({&token, 1}, e.data());
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
  code->rank = energy_fill(all.data(), static_cast<int64_t>(stride), weights, limits, pool);
  set_offsets(code);
  pool.parallel_for(static_cast<int64_t>(n), [&](int64_t token) {
    const auto i = static_cast<size_t>(token);
    std::copy_n(all.data() + i * stride, code->rank[i],
                code->coefficients.data() + code->offset[i]);
  });
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
                        const RotationTable& rotation, ThreadPool& pool, EncodeScratch* scratch) {
  const int width = 2 * layer.kv_heads * layer.head_dim;
  if (plan.basis == RankPlan::Basis::heads && basis.portions.empty()) {
    throw Error(ErrorKind::invalid_argument,
                "varrate: basis=heads needs a basis of that kind, as calibrate --basis makes it");
  }
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
  const int window = budget.coded == 0 ? layer.n_tokens : plan.window;
  const AnchorSets sets = plan.anchored() ? anchor_sets(layer.n_tokens, budget.stride, window)
                                          : no_anchors(layer.n_tokens, window);
  code.exact = sets.exact;
  code.anchors = sets.anchors;
  code.coded = sets.coded;
  code.causal = plan.anchored() && plan.causal_anchors;
  code.n_neighbours = std::min(plan.neighbours, static_cast<int>(sets.anchors.size()));
  if (code.coded.empty()) return code;

  EncodeScratch own;
  Buffer<float>& z = (scratch != nullptr ? scratch : &own)->z;
  joint_rows(layer, rotation, plan.value_scale, &z);
  if (plan.anchored())
    code.neighbours = nearest_anchors(z.data(), width, sets, code.n_neighbours, code.causal, pool);
  const Residuals residuals(z.data(), width, code);
  std::vector<double> residual_energy;
  if (plan.salience == RankPlan::Salience::norm)
    residual_energy = energies(residuals, code.coded.size(), pool);
  const std::vector<double> shat = salience(layer, plan, code.coded, residual_energy);
  // Steps of the codes hide what bf16 parts lose; f16 would show it in its last bits.
  const auto products =
      plan.bits < 16 ? kernels::PackedRows::Products::fast : kernels::PackedRows::Products::fp32;
  const kernels::PackedRows rows(basis.rows.data(), basis.n_rows, width, width, products);
  const FillLimits limits{.total = budget.spendable,
                          .least = budget.least_rank,
                          .most = basis.n_rows,
                          .granule = plan.granule,
                          .round_up = plan.round_up};
  if (plan.basis == RankPlan::Basis::heads) {
    // The budget is one for all layers, which have as many tokens each.
    const int64_t all = budget.total / budget.coded * layer.n_layers +
                        budget.total % budget.coded * layer.n_layers / budget.coded;
    code.rank.assign(code.coded.size(), static_cast<uint16_t>(basis.rows_within(all)));
    code_by_rank(residuals, rows, pool, &code);
  } else if (plan.allocation == RankPlan::Allocation::energy) {
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
