// SPDX-License-Identifier: MIT
// Pivoted QR of a second moment, by Eigen, in fp64.
#include "kvist/kernels/leading.h"

#include <Eigen/QR>

namespace kvist::kernels {

void leading_basis(const float* moment, int d, int stride, float* basis) {
  using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::Map<const Rows> m(moment, d, stride);
  const Eigen::ColPivHouseholderQR<Eigen::MatrixXd> qr(m.leftCols(d).cast<double>());
  const Eigen::MatrixXd q = qr.householderQ();
  Eigen::Map<Rows> out(basis, d, stride);
  out.setZero();
  out.leftCols(d) = q.cast<float>();
}

}  // namespace kvist::kernels
