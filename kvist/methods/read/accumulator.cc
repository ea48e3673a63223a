// SPDX-License-Identifier: MIT
// Running moments of a layer, and from them the rounded arrays of a calibration.
#include "kvist/methods/read/accumulator.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <mutex>

#include "kvist/core/error.h"

namespace kvist {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Mean and centred second moment of a vector, coordinate by coordinate.
class Moments {
 public:
  explicit Moments(int size) : mean_(static_cast<size_t>(size), 0.0), m2_(mean_) {}
  void add(const float* x) {
    const double part = 1 / static_cast<double>(++n_);
    for (size_t i = 0; i < mean_.size(); ++i) {
      const auto value = static_cast<double>(x[i]);
      const double step = value - mean_[i];
      mean_[i] += step * part;
      m2_[i] += step * (value - mean_[i]);
    }
  }
  size_t size() const { return mean_.size(); }
  double mean(size_t i) const { return mean_[i]; }
  double variance(size_t i) const { return m2_[i] / static_cast<double>(n_); }

 private:
  int64_t n_ = 0;
  std::vector<double> mean_, m2_;
};

// The same with all products of coordinates, for a basis that is chosen at the end.
class Covariance {
 public:
  explicit Covariance(int d) : mean_(Eigen::VectorXd::Zero(d)), m2_(Matrix::Zero(d, d)) {}
  void add(const float* x) {
    const Eigen::VectorXd value = Eigen::Map<const Eigen::VectorXf>(x, mean_.size()).cast<double>();
    const Eigen::VectorXd step = value - mean_;
    mean_ += step / static_cast<double>(++n_);
    m2_.noalias() += step * (value - mean_).transpose();
  }
  const Eigen::VectorXd& mean() const { return mean_; }
  Matrix matrix() const { return (m2_ + m2_.transpose()) / (2.0 * static_cast<double>(n_)); }
  // Of E x x^T, not centred.
  Matrix second_moment() const { return matrix() + mean_ * mean_.transpose(); }

 private:
  int64_t n_ = 0;
  Eigen::VectorXd mean_;
  Matrix m2_;
};

float rounded(double x, Scalar format) {
  return format == Scalar::f16 ? to_float(to_f16(sticky(x))) : to_float(to_bf16(sticky(x)));
}

float least_normal(Scalar format) { return format == Scalar::f16 ? 0x1p-14f : 0x1p-126f; }

// A layer before rounding; arrays as in ReadCalibration::Layer.
struct Exact {
  std::vector<double> mu_k, sd_k, mu_v, sd_v, m2q;
  std::vector<float> klt;
};

ReadCalibration::Layer rounded(const Exact& exact) {
  constexpr double kMostF16 = 65504;
  ReadCalibration::Layer out;
  for (const auto* values : {&exact.mu_k, &exact.sd_k, &exact.mu_v, &exact.sd_v}) {
    for (double x : *values) {
      if (std::abs(x) > kMostF16) out.format = Scalar::bf16;
    }
  }
  const auto means = [&](const std::vector<double>& from, std::vector<float>& to) {
    for (double x : from) to.push_back(rounded(x, out.format));
  };
  const auto scales = [&](const std::vector<double>& from, std::vector<float>& to) {
    for (double x : from) to.push_back(std::max(rounded(x, out.format), least_normal(out.format)));
  };
  means(exact.mu_k, out.mu_k);
  scales(exact.sd_k, out.sigma_k);
  means(exact.mu_v, out.mu_v);
  scales(exact.sd_v, out.sigma_v);
  for (double x : exact.m2q) out.m2q.push_back(static_cast<float>(x));
  out.klt = exact.klt;
  return out;
}

// Eigenvectors as rows, largest eigenvalue first, each with its largest entry positive, rounded to
// f16.
std::vector<float> principal_rows(const Matrix& covariance) {
  const auto d = covariance.rows();
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(covariance);
  std::vector<float> out;
  for (Eigen::Index row = 0; row < d; ++row) {
    Eigen::VectorXd v = solver.eigenvectors().col(d - 1 - row);
    Eigen::Index largest = 0;
    v.cwiseAbs().maxCoeff(&largest);
    if (v[largest] < 0) v = -v;
    for (double x : v) out.push_back(rounded(x, Scalar::f16));
  }
  return out;
}

void take(const Moments& from, std::vector<double>& mean, std::vector<double>& sd) {
  for (size_t i = 0; i < from.size(); ++i) {
    mean.push_back(from.mean(i));
    sd.push_back(std::sqrt(from.variance(i)));
  }
}

Matrix widened(const std::vector<float>& rows, int d) {
  using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  return Eigen::Map<const Rows>(rows.data(), d, d).cast<double>();
}

bool all_finite(const float* x, int64_t n) {
  return std::all_of(x, x + n, [](float value) { return std::isfinite(value); });
}

}  // namespace

struct CalibrationAccumulator::LayerSums {
  LayerSums(const ReadShape& shape, const ReadBasis& basis, int layer)
      : k(shape.kv_heads * shape.head_dim),
        v(shape.kv_heads * shape.head_dim),
        m2q(static_cast<size_t>(shape.heads) * static_cast<size_t>(shape.head_dim), 0.0) {
    ReadCalibration plain;
    plain.source.shape = shape;
    plain.basis = basis;
    value_transform = std::make_unique<HeadTransform>(plain.value_transform(layer));
    if (!basis.klt) {
      key_transform = std::make_unique<HeadTransform>(plain.key_transform(layer, 0));
      return;
    }
    key_covariance.assign(static_cast<size_t>(shape.kv_heads), Covariance(shape.head_dim));
    query_covariance.assign(static_cast<size_t>(shape.heads), Covariance(shape.head_dim));
  }

  void add_keys(const float* row, int d) {
    for (auto& head : key_covariance) {
      head.add(row);
      row += d;
    }
  }

  void principal_moments(const ReadShape& shape, Exact& out) const;

  std::mutex mutex;
  std::unique_ptr<HeadTransform> key_transform, value_transform;
  Moments k, v;             // transformed; k unused with klt
  std::vector<double> m2q;  // sum of q'^2
  int64_t tokens = 0, queries = 0;
  std::vector<Covariance> key_covariance, query_covariance;  // with klt
};

// Bases of the heads, and moments under them: these follow from those of the keys and queries, U
// being the basis as it will be read back.
void CalibrationAccumulator::LayerSums::principal_moments(const ReadShape& shape,
                                                          Exact& out) const {
  const int d = shape.head_dim, group = shape.heads / shape.kv_heads;
  for (size_t g = 0; g < key_covariance.size(); ++g) {
    const Covariance& keys = key_covariance[g];
    const std::vector<float> rows = principal_rows(keys.matrix());
    out.klt.insert(out.klt.end(), rows.begin(), rows.end());
    const Matrix u = widened(orthonormalized(rows, d), d);
    const Eigen::VectorXd mean = u * keys.mean();
    const Eigen::VectorXd variance = (u * keys.matrix() * u.transpose()).diagonal();
    for (Eigen::Index c = 0; c < d; ++c) {
      out.mu_k.push_back(mean[c]);
      out.sd_k.push_back(std::sqrt(std::max(0.0, variance[c])));
    }
    for (size_t h = g * static_cast<size_t>(group); h < (g + 1) * static_cast<size_t>(group); ++h) {
      if (queries == 0) continue;
      const Eigen::VectorXd square =
          (u * query_covariance[h].second_moment() * u.transpose()).diagonal();
      for (Eigen::Index c = 0; c < d; ++c)
        out.m2q[h * static_cast<size_t>(d) + static_cast<size_t>(c)] = std::max(0.0, square[c]);
    }
  }
}

CalibrationAccumulator::CalibrationAccumulator(const ReadSource& source, const ReadBasis& basis)
    : source_(source), basis_(basis) {
  const ReadShape& shape = source.shape;
  if (shape.layers < 1 || shape.kv_heads < 1 || shape.heads < 1 ||
      shape.heads % shape.kv_heads != 0)
    throw Error(ErrorKind::invalid_argument,
                str("calibration of ", shape.layers, " layers, ", shape.heads, " heads over ",
                    shape.kv_heads, " KV heads; heads must be a multiple"));
  for (int layer = 0; layer < shape.layers; ++layer)
    layers_.push_back(std::make_unique<LayerSums>(shape, basis, layer));
}

CalibrationAccumulator::~CalibrationAccumulator() = default;

void CalibrationAccumulator::add(int layer, int64_t n, const float* k, const float* v,
                                 int64_t n_queries, const float* q) {
  const ReadShape& shape = source_.shape;
  KVIST_ASSERT(layer >= 0 && layer < shape.layers);
  const int d = shape.head_dim;
  const int64_t wide = static_cast<int64_t>(shape.kv_heads) * d;
  const int64_t wide_q = static_cast<int64_t>(shape.heads) * d;
  const auto check = [&](const char* name, const float* x, int64_t size) {
    if (!all_finite(x, size))
      throw Error(ErrorKind::corrupt, str("calibration, layer ", layer, ": ", name,
                                          " holds a number that is not finite"));
  };
  check("keys", k, n * wide);
  check("values", v, n * wide);
  check("queries", q, n_queries * wide_q);

  LayerSums& sums = *layers_[static_cast<size_t>(layer)];
  const std::lock_guard lock(sums.mutex);
  std::vector<float> row(static_cast<size_t>(std::max(wide, wide_q)));
  const auto transformed = [&](const HeadTransform& u, const float* from, int heads) {
    std::copy_n(from, static_cast<int64_t>(heads) * d, row.begin());
    u.apply(row.data(), heads);
    return row.data();
  };
  for (int64_t t = 0; t < n; ++t) {
    sums.v.add(transformed(*sums.value_transform, v + t * wide, shape.kv_heads));
    if (basis_.klt) {
      sums.add_keys(k + t * wide, d);
    } else {
      sums.k.add(transformed(*sums.key_transform, k + t * wide, shape.kv_heads));
    }
  }
  for (int64_t t = 0; t < n_queries; ++t) {
    const float* from = q + t * wide_q;
    for (auto& head : sums.query_covariance) {
      head.add(from);
      from += d;
    }
    if (basis_.klt) continue;
    const float* x = transformed(*sums.key_transform, from, shape.heads);
    for (size_t i = 0; i < sums.m2q.size(); ++i)
      sums.m2q[i] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  sums.tokens += n;
  sums.queries += n_queries;
}

ReadCalibration CalibrationAccumulator::finish() const {
  ReadCalibration out;
  out.source = source_;
  out.basis = basis_;
  out.tokens = layers_.front()->tokens;
  for (const auto& sums : layers_) {
    if (sums->tokens == 0)
      throw Error(ErrorKind::invalid_argument,
                  str("calibration: layer ", out.layers.size(), " has seen no token"));
    out.tokens = std::min(out.tokens, sums->tokens);
    Exact exact;
    exact.m2q = sums->m2q;
    for (double& x : exact.m2q) x /= static_cast<double>(std::max<int64_t>(1, sums->queries));
    take(sums->v, exact.mu_v, exact.sd_v);
    if (basis_.klt) {
      sums->principal_moments(source_.shape, exact);
    } else {
      take(sums->k, exact.mu_k, exact.sd_k);
    }
    out.layers.push_back(rounded(exact));
  }
  out.positions = out.tokens;
  return out;
}

}  // namespace kvist
