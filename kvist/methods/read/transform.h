// SPDX-License-Identifier: MIT
// Orthogonal changes of basis under which ReadKV (arXiv:2610.11245) codes keys and values: a signed
// Hadamard matrix, or any orthonormal matrix of a head.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvist {

// x' = U x and x = U^T x'. Hadamard: U = H diag(s) / sqrt(d), H of entries +-1, s random signs. Of
// d = p o, p a power of two and o odd:
//
//   o = 1               Sylvester's matrix of order d
//   4 | p, P exists     Sylvester of order p/4 (x) Paley's matrix P of order 4 o
//   otherwise           Sylvester of order p (x) identity of order o, scaled by 1/sqrt(p): channels
//                       mix with those equal to them modulo o only
//
// Immutable, so calls may run at once. float32 in a fixed order: the same bits on every machine.
class HeadTransform {
 public:
  enum class Kind : uint8_t { key = 0, value = 1 };
  static constexpr int kMaxHeadDim = 1024;

  // Throws unsupported where head_dim is not in 1..kMaxHeadDim.
  static HeadTransform hadamard(int head_dim, uint64_t seed, Kind kind, uint32_t layer_salt);
  // Row c of `rows` [d][d], orthonormal, is the new axis c. Throws as above.
  static HeadTransform matrix(int head_dim, std::span<const float> rows);

  int head_dim() const { return outer_ * inner_; }
  // "sylvester 64", "sylvester 4 x paley 20", "sylvester 8 x identity 13", "matrix 64".
  std::string recipe() const;
  std::span<const float> signs() const { return signs_; }  // [d] of +-1; empty for a matrix

  // In place on rows [n][d]; O(d log p + d o) a row, O(d^2) for a matrix.
  void apply(float* rows, int64_t n) const noexcept;
  void undo(float* rows, int64_t n) const noexcept;
  // apply() on columns, x [d][n]: the same bits, many tokens a vector. scratch [d][n].
  void apply_columns(float* x, int n, float* scratch) const noexcept;

 private:
  HeadTransform(int outer, int inner) : outer_(outer), inner_(inner) {}

  int outer_, inner_;             // U = H_outer (x) M_inner
  std::vector<float> matrix_;     // [inner][inner] M; empty: the identity
  std::vector<float> transpose_;  // its transpose
  std::vector<float> signs_;
  float scale_ = 1;
};

}  // namespace kvist
