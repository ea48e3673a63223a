// SPDX-License-Identifier: MIT
// Where `kvist apply` takes means and scales from: a file, arrays beside the dump, or the dump
// itself.
#pragma once

#include <string>

#include "kvist/cli/decode_queries.h"
#include "kvist/cli/dump.h"
#include "kvist/methods/read/calibration.h"
#include "kvist/methods/read/reading.h"

namespace kvist {

struct ArrayCalibration {
  ReadCalibration calibration;  // of n_model_layers(); those without arrays mean nothing
  std::string origin;           // "prompt", "arrays", or the file's path
};

// From the dump's own numbers where `reading` says so, else from `file`, else, where that is "",
// from mu_k, sigma_k, mu_v, sigma_v .npy [layers, kv_heads, head_dim] and, optional, m2q.npy
// [layers, heads, head_dim] in the dump's folder: float32 that 16 bits hold. Throws naming what was
// found and expected; a file's model and rope are not compared with anything.
ArrayCalibration calibration_of(Dump& dump, DecodeQueries& queries, const Reading& reading,
                                const std::string& file, ThreadPool& pool);

}  // namespace kvist
