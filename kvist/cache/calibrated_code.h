// SPDX-License-Identifier: MIT
// A ReadKV calibration ready for use: the transforms made, and per layer what its store and its
// reader need.
#pragma once

#include <memory>
#include <vector>

#include "kvist/cache/coded_layer.h"
#include "kvist/methods/read/calibration.h"

namespace kvist {

// Immutable; prefix and suffixes of a session share one. layer(l) points into it.
class CalibratedCode {
 public:
  explicit CalibratedCode(ReadCalibration calibration);
  CalibratedCode(const CalibratedCode&) = delete;
  CalibratedCode& operator=(const CalibratedCode&) = delete;

  const LayerCode& layer(int layer) const { return layers_[static_cast<size_t>(layer)]; }
  const ReadCalibration& calibration() const { return calibration_; }
  uint64_t charged_bytes() const { return calibration_.charged_bytes(); }

 private:
  ReadCalibration calibration_;
  std::vector<std::unique_ptr<HeadTransform>> transforms_;
  std::vector<LayerCode> layers_;
};

}  // namespace kvist
