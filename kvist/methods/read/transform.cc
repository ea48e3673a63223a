// SPDX-License-Identifier: MIT
// Walsh-Hadamard butterflies over the outer index, one small dense product over the inner one.
#include "kvist/methods/read/transform.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/kernels/columns.h"

namespace kvist {
namespace {

void check_head_dim(int d) {
  if (d < 1 || d > HeadTransform::kMaxHeadDim)
    throw Error(ErrorKind::unsupported, str("head dimension ", d, ": the transform takes 1 to ",
                                            HeadTransform::kMaxHeadDim));
}

bool is_prime(int n) {
  if (n < 2) return false;
  for (int f = 2; f * f <= n; ++f) {
    if (n % f == 0) return false;
  }
  return true;
}

// The quadratic character of i - j modulo the prime q: 0, 1 for a square, -1 otherwise.
class Character {
 public:
  explicit Character(int q) : q_(q), value_(static_cast<size_t>(q), -1) {
    for (int x = 1; x < q; ++x) value_[static_cast<size_t>(x * x % q)] = 1;
    value_[0] = 0;
  }
  int operator()(int i, int j) const {
    return value_[static_cast<size_t>(((i - j) % q_ + q_) % q_)];
  }

 private:
  int q_;
  std::vector<int> value_;
};

// Order q + 1 for a prime q = 3 mod 4.
std::vector<float> paley_one(int q) {
  const Character chi(q);
  const int n = q + 1;
  std::vector<float> out(static_cast<size_t>(n) * static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      const int entry = i == 0 ? 1 : j == 0 ? -1 : chi(i, j) + (i == j ? 1 : 0);
      out[static_cast<size_t>(i * n + j)] = static_cast<float>(entry);
    }
  }
  return out;
}

// Order 2 (q + 1) for a prime q = 1 mod 4: the conference matrix C with x != 0 replaced by
// x [[1, 1], [1, -1]] and 0 by [[1, -1], [-1, -1]].
std::vector<float> paley_two(int q) {
  const Character chi(q);
  const int n = 2 * (q + 1);
  std::vector<float> out(static_cast<size_t>(n) * static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      const int row = i / 2, column = j / 2;
      const bool lower = i % 2 == 1, right = j % 2 == 1;
      const int c = row == column ? 0 : row == 0 || column == 0 ? 1 : chi(row, column);
      const int entry = c == 0 ? (lower || right ? -1 : 1) : (lower && right ? -c : c);
      out[static_cast<size_t>(i * n + j)] = static_cast<float>(entry);
    }
  }
  return out;
}

// A Hadamard matrix of order 4 o that is not a Kronecker power, or nothing.
std::vector<float> paley(int o) {
  if (is_prime(4 * o - 1)) return paley_one(4 * o - 1);
  if (is_prime(2 * o - 1)) return paley_two(2 * o - 1);
  return {};
}

std::vector<float> transposed(const std::vector<float>& m, int n) {
  std::vector<float> out(m.size());
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j)
      out[static_cast<size_t>(j * n + i)] = m[static_cast<size_t>(i * n + j)];
  }
  return out;
}

std::vector<float> random_signs(int d, uint64_t seed, HeadTransform::Kind kind, uint32_t salt) {
  std::vector<float> out(static_cast<size_t>(d));
  const uint64_t stream = (static_cast<uint64_t>(kind) << 20) + (uint64_t{salt} << 24);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t bits = splitmix(seed + 0x9E3779B97F4A7C15ull * (i + stream));
    out[i] = bits >> 63 != 0 ? -1.0f : 1.0f;
  }
  return out;
}

// Every x [n] of x [outer][n] becomes M x, given the columns of M.
void multiply(float* x, int outer, int n, const float* columns) {
  std::array<float, HeadTransform::kMaxHeadDim> sum;
  for (int a = 0; a < outer; ++a, x += n) {
    std::fill_n(sum.begin(), n, 0.0f);
    for (int j = 0; j < n; ++j) {
      const float value = x[j];
      const float* column = columns + static_cast<ptrdiff_t>(j) * n;
      for (int i = 0; i < n; ++i) sum[static_cast<size_t>(i)] += value * column[i];
    }
    std::copy_n(sum.begin(), n, x);
  }
}

}  // namespace

HeadTransform HeadTransform::hadamard(int head_dim, uint64_t seed, Kind kind, uint32_t layer_salt) {
  check_head_dim(head_dim);
  const int p = head_dim & -head_dim, o = head_dim / p;
  std::vector<float> inner = o > 1 && p % 4 == 0 ? paley(o) : std::vector<float>{};
  HeadTransform out = inner.empty() ? HeadTransform(p, o) : HeadTransform(p / 4, 4 * o);
  out.scale_ = static_cast<float>(1 / std::sqrt(inner.empty() ? p : head_dim));
  out.transpose_ = transposed(inner, inner.empty() ? 0 : out.inner_);
  out.matrix_ = std::move(inner);
  out.signs_ = random_signs(head_dim, seed, kind, layer_salt);
  return out;
}

HeadTransform HeadTransform::matrix(int head_dim, std::span<const float> rows) {
  check_head_dim(head_dim);
  KVIST_ASSERT(rows.size() == static_cast<size_t>(head_dim) * static_cast<size_t>(head_dim));
  HeadTransform out(1, head_dim);
  out.matrix_.assign(rows.begin(), rows.end());
  out.transpose_ = transposed(out.matrix_, head_dim);
  return out;
}

std::string HeadTransform::recipe() const {
  if (signs_.empty()) return str("matrix ", inner_);
  if (inner_ == 1) return str("sylvester ", outer_);
  return str("sylvester ", outer_, " x ", matrix_.empty() ? "identity " : "paley ", inner_);
}

void HeadTransform::apply(float* rows, int64_t n) const noexcept {
  const int d = head_dim();
  for (int64_t row = 0; row < n; ++row, rows += d) {
    for (size_t i = 0; i < signs_.size(); ++i) rows[i] *= signs_[i];
    if (!matrix_.empty()) multiply(rows, outer_, inner_, transpose_.data());
    kernels::hadamard_columns(rows, outer_, inner_);
    for (int i = 0; i < d && scale_ != 1; ++i) rows[i] *= scale_;
  }
}

void HeadTransform::apply_columns(float* x, int n, float* scratch) const noexcept {
  const int d = head_dim();
  const auto scale = [n](float* row, float factor) {
    for (int t = 0; t < n; ++t) row[t] *= factor;
  };
  for (size_t i = 0; i < signs_.size(); ++i) scale(x + static_cast<ptrdiff_t>(i) * n, signs_[i]);
  if (!matrix_.empty()) {
    const ptrdiff_t size = static_cast<ptrdiff_t>(inner_) * n;
    for (int a = 0; a < outer_; ++a) {
      kernels::multiply_columns(matrix_.data(), inner_, inner_, x + a * size, n, scratch);
      std::copy_n(scratch, size, x + a * size);
    }
  }
  kernels::hadamard_columns(x, outer_, int64_t{inner_} * n);
  for (int i = 0; i < d && scale_ != 1; ++i) scale(x + static_cast<ptrdiff_t>(i) * n, scale_);
}

void HeadTransform::undo(float* rows, int64_t n) const noexcept {
  const int d = head_dim();
  for (int64_t row = 0; row < n; ++row, rows += d) {
    kernels::hadamard_columns(rows, outer_, inner_);
    if (!matrix_.empty()) multiply(rows, outer_, inner_, matrix_.data());
    for (size_t i = 0; i < signs_.size(); ++i) rows[i] *= signs_[i];
    for (int i = 0; i < d && scale_ != 1; ++i) rows[i] *= scale_;
  }
}

}  // namespace kvist
