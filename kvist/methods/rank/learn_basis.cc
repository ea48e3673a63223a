// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/learn_basis.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/kernels/products.h"
#include "kvist/methods/rank/anchors.h"

namespace kvist {
namespace {

constexpr int kBlock = 256;    // vectors whose products are summed in fp32
constexpr int kLargest = 512;  // widest vectors whose rows are kept in f32

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

float rounded(double x, Scalar format) {
  const auto f = static_cast<float>(x);
  return format == Scalar::f16 ? to_float(to_f16(f)) : f;
}

// Least eigenvalue first, as Eigen has them.
Eigen::SelfAdjointEigenSolver<Matrix> solve(const Matrix& mean, bool vectors) {
  Eigen::SelfAdjointEigenSolver<Matrix> solver(
      mean, vectors ? Eigen::ComputeEigenvectors : Eigen::EigenvaluesOnly);
  if (solver.info() != Eigen::Success)
    throw Error(ErrorKind::corrupt, "a second moment has no eigenvectors that can be found");
  return solver;
}

Matrix mean_of(const SecondMoment& moment) {
  return Eigen::Map<const Matrix>(moment.sum.data(), moment.width, moment.width) /
         static_cast<double>(moment.count);
}

void require_orthonormal(const RankBasisLayer& basis, Scalar format) {
  const Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> v(
      basis.rows.data(), basis.n_rows, basis.width);
  const Matrix wide = v.cast<double>();
  const double error = (wide * wide.transpose() - Matrix::Identity(basis.n_rows, basis.n_rows))
                           .cwiseAbs()
                           .maxCoeff();
  const double most = format == Scalar::f32 ? 1e-5 : 1e-3;
  if (!(error < most)) {
    throw Error(ErrorKind::corrupt,
                str("rows of a basis are orthonormal to ", error, "; expected less than ", most));
  }
}

}  // namespace

void SecondMoment::add(const float* rows, int64_t n, ThreadPool& pool) {
  constexpr int kTile = 48;
  const auto w = static_cast<size_t>(width);
  std::vector<float> columns(w * kBlock);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const auto length = static_cast<size_t>(std::min<int64_t>(kBlock, n - begin));
    std::fill(columns.begin(), columns.end(), 0.0f);
    for (size_t t = 0; t < length; ++t)
      for (size_t c = 0; c < w; ++c)
        columns[c * kBlock + t] = rows[(static_cast<size_t>(begin) + t) * w + c];
    const kernels::PackedRows packed(columns.data(), width, kBlock, kBlock);
    pool.parallel_for((width + kTile - 1) / kTile, [&](int64_t tile) {
      const auto first = static_cast<int>(tile) * kTile, last = std::min(first + kTile, width);
      const auto padded = static_cast<size_t>(packed.padded());
      std::vector<float> products(static_cast<size_t>(last - first) * padded);
      kernels::DotProducts dot(packed);
      dot(columns.data() + int64_t{first} * kBlock, last - first, kBlock, width, products.data(),
          packed.padded());
      for (int i = first; i < last; ++i)
        for (size_t j = 0; j < w; ++j)
          sum[static_cast<size_t>(i) * w + j] +=
              static_cast<double>(products[static_cast<size_t>(i - first) * padded + j]);
    });
  }
  count += n;
}

RankBasisLayer principal_rows(const SecondMoment& moment, int n_rows, Scalar format) {
  const auto solver = solve(mean_of(moment), true);
  RankBasisLayer basis;
  basis.width = moment.width;
  basis.n_rows = std::min(n_rows, moment.width);
  for (int j = 0; j < basis.n_rows; ++j) {
    const Eigen::VectorXd v = solver.eigenvectors().col(moment.width - 1 - j);
    Eigen::Index largest = 0;
    v.cwiseAbs().maxCoeff(&largest);
    const double sign = v[largest] < 0 ? -1 : 1;
    for (const double x : v) basis.rows.push_back(rounded(sign * x, format));
    const double value = std::max(0.0, solver.eigenvalues()[moment.width - 1 - j]);
    basis.eigenvalues.push_back(static_cast<float>(value));
  }
  require_orthonormal(basis, format);
  return basis;
}

BasisLearner::BasisLearner(const ReadSource& source, const RankPlan& plan)
    : source_(source), plan_(plan) {
  check(plan);
  const int width = 2 * source.shape.kv_heads * source.shape.head_dim;
  layers_.assign(static_cast<size_t>(source.shape.layers), Layer(width));
}

void BasisLearner::add(const LayerInput& layer, const RotationTable& rotation) {
  Layer& sums = layers_.at(static_cast<size_t>(layer.layer));
  const AnchorSets sets = anchor_sets(layer.n_tokens, plan_.stride, plan_.window);
  if (sets.coded.empty()) return;
  const int width = sums.residual.width;
  const int count = std::min(plan_.neighbours, static_cast<int>(sets.anchors.size()));
  const Buffer<float> z = joint_rows(layer, rotation, plan_.value_scale);
  const auto neighbours = nearest_anchors(z.data(), width, sets, count, false, *layer.pool);
  const auto n = static_cast<int64_t>(sets.coded.size()), w = int64_t{width};
  std::vector<float> raw(static_cast<size_t>(n * w)), e(raw.size());
  layer.pool->parallel_for(n, [&](int64_t i) {
    const float* x = z.data() + sets.coded[static_cast<size_t>(i)] * w;
    std::copy_n(x, width, raw.data() + i * w);
    float* out = e.data() + i * w;
    anchor_mean(z.data(), width, sets, {neighbours.data() + i * count, static_cast<size_t>(count)},
                out);
    for (int c = 0; c < width; ++c) out[c] = x[c] - out[c];
  });
  sums.residual.add(e.data(), n, *layer.pool);
  sums.raw.add(raw.data(), n, *layer.pool);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < w; ++c)
      sums.raw_sum[static_cast<size_t>(c)] +=
          static_cast<double>(raw[static_cast<size_t>(i * w + c)]);
}

int64_t BasisLearner::residuals() const { return layers_.front().residual.count; }

namespace {

constexpr int kGroupHeads = 4;  // as Palu joins them
constexpr int kPortion = 32;

// The square on the diagonal that begins at `first`.
SecondMoment part_of(const SecondMoment& moment, int first, int width) {
  SecondMoment part(width);
  part.count = moment.count;
  for (int i = 0; i < width; ++i)
    for (int j = 0; j < width; ++j)
      part.sum[static_cast<size_t>(i * width + j)] =
          moment.sum[static_cast<size_t>(first + i) * static_cast<size_t>(moment.width) +
                     static_cast<size_t>(first + j)];
  return part;
}

// Rows [from, from + n) of a group's own basis, and what part of its energy one of them holds.
struct PortionOf {
  double worth = 0;
  size_t group = 0;
  int from = 0, n = 0;
};

std::vector<PortionOf> portions_of(std::span<const float> eigenvalues, size_t group) {
  const auto sum = [](auto values) { return std::accumulate(values.begin(), values.end(), 0.0); };
  const double all = sum(eigenvalues);
  std::vector<PortionOf> out;
  const int n = static_cast<int>(eigenvalues.size());
  for (int from = 0; from < n; from += kPortion) {
    const int some = std::min(kPortion, n - from);
    const double energy =
        sum(eigenvalues.subspan(static_cast<size_t>(from), static_cast<size_t>(some)));
    out.push_back({all > 0 ? energy / all / some : 0, group, from, some});
  }
  return out;
}

// Fills in what portions of all layers reach: those of a layer are in the order of their worth.
void order_portions(std::vector<RankBasisLayer>& layers) {
  struct At {
    double worth;
    RankBasisLayer::Portion* portion;
  };
  std::vector<At> all;
  for (RankBasisLayer& layer : layers) {
    for (RankBasisLayer::Portion& portion : layer.portions)
      all.push_back({portion.worth, &portion});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const At& a, const At& b) { return a.worth > b.worth; });
  int64_t reached = 0;
  for (const At& at : all) at.portion->reached = reached += at.portion->rows;
}

}  // namespace

RankBasisLayer BasisLearner::grouped_rows(const SecondMoment& moment, int n_rows,
                                          Scalar format) const {
  const int heads = source_.shape.kv_heads, d = source_.shape.head_dim;
  struct Group {
    int first = 0;  // coordinate
    RankBasisLayer basis;
  };
  std::vector<Group> groups;
  std::vector<PortionOf> order;
  for (const int half : {0, heads * d}) {
    for (int head = 0; head < heads; head += kGroupHeads) {
      const int first = half + head * d, width = std::min(kGroupHeads, heads - head) * d;
      groups.push_back({first, principal_rows(part_of(moment, first, width), width, format)});
      for (const PortionOf& portion :
           portions_of(groups.back().basis.eigenvalues, groups.size() - 1))
        order.push_back(portion);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const PortionOf& a, const PortionOf& b) { return a.worth > b.worth; });
  RankBasisLayer out;
  out.width = moment.width;
  for (const PortionOf& portion : order) {
    const Group& group = groups[portion.group];
    const int rows = std::min(portion.n, n_rows - out.n_rows);
    if (rows <= 0) break;
    for (int j = portion.from; j < portion.from + rows; ++j) {
      out.rows.resize(out.rows.size() + static_cast<size_t>(out.width));
      std::copy_n(group.basis.row(j), group.basis.width, out.rows.end() - out.width + group.first);
      out.eigenvalues.push_back(group.basis.eigenvalues[static_cast<size_t>(j)]);
    }
    out.n_rows += rows;
    out.portions.push_back({.rows = rows, .worth = portion.worth});
  }
  return out;
}

RankBasis BasisLearner::finish(RankPlan::Basis kind, int n_rows, ThreadPool& pool) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].residual.count > 0) continue;
    throw Error(ErrorKind::invalid_argument, str("layer ", i, ": no text is longer than the ",
                                                 plan_.window, " tokens that stay exact"));
  }
  RankBasis basis;
  basis.kind = kind;
  basis.source = source_;
  basis.stride = plan_.stride;
  basis.neighbours = plan_.neighbours;
  basis.value_scale = plan_.value_scale;
  basis.residuals = residuals();
  const int width = layers_.front().residual.width;
  basis.format = width <= kLargest ? Scalar::f32 : Scalar::f16;
  basis.layers.resize(layers_.size());
  pool.parallel_for(static_cast<int64_t>(layers_.size()), [&](int64_t i) {
    const Layer& sums = layers_[static_cast<size_t>(i)];
    RankBasisLayer& out = basis.layers[static_cast<size_t>(i)];
    out = kind == RankPlan::Basis::heads
              ? grouped_rows(sums.raw, n_rows, basis.format)
              : principal_rows(kind == RankPlan::Basis::token ? sums.raw : sums.residual, n_rows,
                               basis.format);
    const Matrix raw = mean_of(sums.raw);
    const Eigen::VectorXd mean = Eigen::Map<const Eigen::VectorXd>(sums.raw_sum.data(), width) /
                                 static_cast<double>(sums.raw.count);
    const auto values = solve(raw - mean * mean.transpose(), false);
    for (int j = width - 1; j >= 0; --j) {
      out.raw_eigenvalues.push_back(static_cast<float>(std::max(0.0, values.eigenvalues()[j])));
    }
    out.residual_energy = mean_of(sums.residual).trace();
    out.total_energy = raw.trace();
  });
  order_portions(basis.layers);
  return basis;
}

}  // namespace kvist
