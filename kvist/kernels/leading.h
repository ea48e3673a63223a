// SPDX-License-Identifier: MIT
// An orthogonal change of basis that puts most of a head's energy into its leading coordinates.
#pragma once

namespace kvist::kernels {

// Column k of basis [d][stride] is the k-th new axis, orthonormal up to the rounding of each entry
// to fp32; 0 past d. moment [d][stride] is the sum of u u^T over some unit keys, as close as one
// likes: a poor one makes a poor basis, never a wrong one.
//
// Pivoted QR: on keys of a real model (d = 64) its leading 16 and 32 axes reject as many tiles as
// the eigenvectors, at half the time.
void leading_basis(const float* moment, int d, int stride, float* basis);

}  // namespace kvist::kernels
