// SPDX-License-Identifier: MIT
// Makes each transform once: layers share those that are equal.
#include "kvist/cache/calibrated_code.h"

namespace kvist {

CalibratedCode::CalibratedCode(ReadCalibration calibration) : calibration_(std::move(calibration)) {
  const ReadBasis& basis = calibration_.basis;
  const int kv_heads = calibration_.source.shape.kv_heads;
  const auto keep = [&](HeadTransform transform) {
    transforms_.push_back(std::make_unique<HeadTransform>(std::move(transform)));
    return transforms_.back().get();
  };
  const HeadTransform *u_k = nullptr, *u_v = nullptr;
  for (int layer = 0; layer < static_cast<int>(calibration_.layers.size()); ++layer) {
    const ReadCalibration::Layer& from = calibration_.layers[static_cast<size_t>(layer)];
    LayerCode code;
    const bool first = layer == 0 || basis.layer_signs;
    if (first) u_v = keep(calibration_.value_transform(layer));
    for (int head = 0; head < kv_heads; ++head) {
      if (basis.klt || (first && head == 0)) u_k = keep(calibration_.key_transform(layer, head));
      code.u_k.push_back(u_k);
      code.u_v.push_back(u_v);
    }
    code.mu_k = from.mu_k.data();
    code.sigma_k = from.sigma_k.data();
    code.mu_v = from.mu_v.data();
    code.sigma_v = from.sigma_v.data();
    code.m2q = from.m2q.empty() ? nullptr : from.m2q.data();
    layers_.push_back(code);
  }
}

}  // namespace kvist
