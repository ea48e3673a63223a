// SPDX-License-Identifier: MIT
// The terms of Theorem 3, each as the definition has it.
#include "kvist/methods/read/certificate.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

#include "kvist/core/error.h"
#include "kvist/kernels/tree_code.h"

namespace kvist {
namespace {

using Matrix = Eigen::MatrixXd;
using Vector = Eigen::VectorXd;
using Part = HeadCertificate::Part;

double largest_eigenvalue(const Matrix& symmetric) {
  if (symmetric.size() == 0) return 0;
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(symmetric, Eigen::EigenvaluesOnly);
  return solver.eigenvalues().maxCoeff();
}

// The tokens of one head of [T][kv_heads][d].
Matrix rows_of(std::span<const float> x, const CertificateInput& in, int g) {
  Matrix out(in.tokens, in.head_dim);
  for (int64_t j = 0; j < in.tokens; ++j) {
    for (int c = 0; c < in.head_dim; ++c)
      out(j, c) =
          static_cast<double>(x[static_cast<size_t>((j * in.kv_heads + g) * in.head_dim + c)]);
  }
  return out;
}

// What the heads of a KV head share.
struct Shared {
  Shared(const CertificateInput& in, int g)
      : k(rows_of(in.k, in, g)),
        v(rows_of(in.v, in, g)),
        v_hat(rows_of(in.v_hat, in, g)),
        e_k(k - rows_of(in.k_hat, in, g)),
        e_v(v - v_hat),
        gram_k(e_k.transpose() * e_k) {
    const Matrix centred = v.rowwise() - v.colwise().mean();
    spread_v = largest_eigenvalue(centred.transpose() * centred);
  }
  Matrix k, v, v_hat, e_k, e_v, gram_k;
  double spread_v;  // squared spectral norm of the values about their mean
};

// The largest eigenvalue of the key residuals' Gram matrix, unit diagonal, over channels that both
// the query and the residuals touch.
double key_correlation(const Matrix& gram, const Vector& q) {
  std::vector<Eigen::Index> active;
  for (Eigen::Index c = 0; c < q.size(); ++c) {
    if (q[c] != 0 && gram(c, c) > 0) active.push_back(c);
  }
  const auto n = static_cast<Eigen::Index>(active.size());
  Matrix normal(n, n);
  for (Eigen::Index i = 0; i < n; ++i) {
    for (Eigen::Index j = 0; j < n; ++j) {
      const Eigen::Index a = active[static_cast<size_t>(i)], b = active[static_cast<size_t>(j)];
      normal(i, j) = gram(a, b) / std::sqrt(gram(a, a) * gram(b, b));
    }
  }
  return largest_eigenvalue(normal);
}

// The same of the value residuals over tokens with weight. U U^T and U^T U share it, U the unit
// residuals [T][d].
double value_correlation(const Matrix& residuals, const Vector& alpha) {
  Matrix unit = residuals;
  for (Eigen::Index j = 0; j < unit.rows(); ++j) {
    const double norm = unit.row(j).norm();
    const bool active = alpha[j] > 0 && norm > 0;
    unit.row(j) *= active ? 1 / norm : 0.0;
  }
  return largest_eigenvalue(unit.transpose() * unit);
}

Part part(double a, double s, double kappa, double coefficient) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Part out{a, s, a == 0 && s == 0 ? 0 : s == 0 ? kInfinity : a / s, kappa, 0};
  out.beta = kappa == 0 ? 0 : coefficient * kappa * out.gamma;
  return out;
}

Vector softmax(const Vector& logits) {
  const Vector e = (logits.array() - logits.maxCoeff()).exp();
  return e / e.sum();
}

HeadCertificate certify_head(const CertificateInput& in, const Shared& shared, int h, int g) {
  const int d = in.head_dim;
  const auto T = static_cast<Eigen::Index>(in.tokens);
  const double scale2 = in.logit_scale * in.logit_scale;
  const Vector q = Eigen::Map<const Eigen::VectorXf>(in.q.data() + h * d, d).cast<double>();
  const Vector alpha = Eigen::Map<const Vector>(in.alpha_hat.data() + h * in.tokens, T);

  double s_k = 0, s_v = 0;
  for (int c = 0; c < d; ++c) {
    const auto at = static_cast<size_t>(g * d + c);
    const double weight = q[c] * static_cast<double>(in.sigma_k[at]);
    s_k += weight * weight * kernels::tree_distortion(in.t_k[at]);
  }
  for (Eigen::Index j = 0; j < T; ++j) {
    const auto at = static_cast<size_t>(g * in.tokens + j);
    s_v += alpha[j] * alpha[j] * kernels::tree_distortion(in.t_v[at]);
  }
  const double a_k = scale2 * q.cwiseAbs2().dot(shared.gram_k.diagonal());
  const double a_v = alpha.cwiseAbs2().dot(shared.e_v.rowwise().squaredNorm());

  HeadCertificate out;
  const double key_factor = shared.spread_v / 2;
  out.keys = part(a_k, scale2 * static_cast<double>(in.tokens) * s_k,
                  key_correlation(shared.gram_k, q), key_factor);
  out.values =
      part(a_v, in.s[static_cast<size_t>(g)] * s_v, value_correlation(shared.e_v, alpha), 2);
  // coefficient kappa A is beta S without the 0 * infinity of S = 0.
  out.bound = key_factor * out.keys.kappa * a_k + 2 * out.values.kappa * a_v;
  const Vector exact = shared.v.transpose() * softmax(in.logit_scale * (shared.k * q));
  out.error = (exact - shared.v_hat.transpose() * alpha).squaredNorm();
  return out;
}

}  // namespace

LayerCertificate certify(const CertificateInput& in) {
  const auto d = static_cast<size_t>(in.head_dim), T = static_cast<size_t>(in.tokens);
  const auto kv_heads = static_cast<size_t>(in.kv_heads), heads = static_cast<size_t>(in.heads);
  KVIST_ASSERT(in.tokens >= 1 && in.kv_heads >= 1 && in.heads % in.kv_heads == 0);
  KVIST_ASSERT(in.q.size() == heads * d && in.alpha_hat.size() == heads * T);
  for (const auto& array : {in.k, in.v, in.k_hat, in.v_hat})
    KVIST_ASSERT(array.size() == T * kv_heads * d);
  KVIST_ASSERT(in.sigma_k.size() == kv_heads * d && in.t_k.size() == kv_heads * d &&
               in.t_v.size() == kv_heads * T && in.s.size() == kv_heads);
  const int group = in.heads / in.kv_heads;
  LayerCertificate out;
  double beta_k = 0, beta_v = 0, sum = 0;
  for (int g = 0; g < in.kv_heads; ++g) {
    const Shared shared(in, g);
    for (int h = g * group; h < (g + 1) * group; ++h) {
      const HeadCertificate head = certify_head(in, shared, h, g);
      beta_k = std::max(beta_k, head.keys.beta);
      beta_v = std::max(beta_v, head.values.beta);
      out.s_keys += head.keys.s;
      out.s_values += head.values.s;
      out.error += head.error;
      sum += head.bound;
      out.heads.push_back(head);
    }
  }
  const bool finite = std::isfinite(beta_k) && std::isfinite(beta_v);
  out.bound = finite ? beta_k * out.s_keys + beta_v * out.s_values : sum;
  return out;
}

}  // namespace kvist
