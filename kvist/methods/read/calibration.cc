// SPDX-License-Identifier: MIT
// What a calibration answers: its transforms, its fixed weights, and whether it fits a model.
#include "kvist/methods/read/calibration.h"

#include "kvist/core/error.h"

namespace kvist {
namespace {

// out = a b^T for rows of a and b, [d][d].
void products(const std::vector<double>& a, const std::vector<double>& b, int d,
              std::vector<double>& out) {
  const auto n = static_cast<size_t>(d);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t c = 0; c < n; ++c) sum += a[i * n + c] * b[j * n + c];
      out[i * n + j] = sum;
    }
  }
}

}  // namespace

std::vector<float> orthonormalized(std::span<const float> rows, int d) {
  const auto n = static_cast<size_t>(d);
  KVIST_ASSERT(rows.size() == n * n);
  std::vector<double> u(rows.begin(), rows.end()), gram(n * n);
  for (int step = 0; step < 2; ++step) {  // U <- (3 - U U^T) U / 2; errors of 1e-3 become 1e-12
    products(u, u, d, gram);
    std::vector<double> next(n * n, 0.0);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        const double factor = ((i == j ? 3.0 : 0.0) - gram[i * n + j]) / 2;
        for (size_t c = 0; c < n; ++c) next[i * n + c] += factor * u[j * n + c];
      }
    }
    u = next;
  }
  std::vector<float> out(n * n);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(u[i]);
  return out;
}

std::string name_of(const ReadSource& s) {
  return str("model ", s.model, " (", s.shape.layers, " layers, ", s.shape.kv_heads, " of ",
             s.shape.heads, " heads, ", s.shape.head_dim, " channels), rope '", s.rope, "'");
}

std::string name_of(const ReadBasis& basis) {
  return str(basis.klt ? "klt" : "hadamard", ", seed ", basis.seed, ", ",
             basis.layer_signs ? "signs per layer" : "shared signs");
}

HeadTransform ReadCalibration::key_transform(int layer, int kv_head) const {
  const int d = source.shape.head_dim;
  if (!basis.klt) {
    return HeadTransform::hadamard(d, basis.seed, HeadTransform::Kind::key,
                                   basis.layer_signs ? static_cast<uint32_t>(layer) : 0);
  }
  const auto size = static_cast<size_t>(d) * static_cast<size_t>(d);
  const std::span<const float> all = layers[static_cast<size_t>(layer)].klt;
  return HeadTransform::matrix(
      d, orthonormalized(all.subspan(static_cast<size_t>(kv_head) * size, size), d));
}

HeadTransform ReadCalibration::value_transform(int layer) const {
  return HeadTransform::hadamard(source.shape.head_dim, basis.seed, HeadTransform::Kind::value,
                                 basis.layer_signs ? static_cast<uint32_t>(layer) : 0);
}

uint64_t ReadCalibration::charged_bytes() const {
  uint64_t numbers = 0;
  for (const Layer& layer : layers) numbers += 4 * layer.mu_k.size() + layer.klt.size();
  return 2 * numbers;
}

void ReadCalibration::check_fits(const ReadSource& other) const {
  if (source == other) return;
  throw Error(ErrorKind::invalid_argument, str("the calibration was measured on ", name_of(source),
                                               "; it is to be used on ", name_of(other)));
}

void calibration_fixed_keys(const ReadCalibration& calibration, int layer, std::span<float> out) {
  const ReadShape& shape = calibration.source.shape;
  const ReadCalibration::Layer& from = calibration.layers[static_cast<size_t>(layer)];
  const auto d = static_cast<size_t>(shape.head_dim);
  const auto group = static_cast<size_t>(shape.heads / shape.kv_heads);
  KVIST_ASSERT(out.size() == from.sigma_k.size());
  for (size_t at = 0; at < out.size(); ++at) {
    const size_t g = at / d, c = at % d;
    const auto sigma = static_cast<double>(from.sigma_k[at]);
    double sum = 0;
    for (size_t h = g * group; h < (g + 1) * group; ++h)
      sum += static_cast<double>(from.m2q[h * d + c]) * sigma * sigma;
    out[at] = static_cast<float>(sum);
  }
}

}  // namespace kvist
