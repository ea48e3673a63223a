// SPDX-License-Identifier: MIT
// What ReadKV (arXiv:2610.11245) learns once for a model: mean and spread of each transformed
// channel of keys and values, bound to the model and the transforms it was measured under.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvist/core/half.h"
#include "kvist/methods/read/transform.h"

namespace kvist {

struct ReadShape {
  int layers = 0;
  int kv_heads = 0;
  int heads = 0;  // of queries
  int head_dim = 0;
  friend bool operator==(const ReadShape&, const ReadShape&) = default;
};

// What a calibration belongs to; another model or another rotation of the keys makes it worthless.
struct ReadSource {
  std::string model;  // hash of the weights
  std::string rope;   // rotary and scaling settings, as text
  ReadShape shape;
  friend bool operator==(const ReadSource&, const ReadSource&) = default;
};

class FieldWriter;
class FieldReader;
// A source as the fields of a file.
void put_source(FieldWriter& out, const ReadSource& source);
ReadSource get_source(FieldReader& in);
// What a message says of it.
std::string name_of(const ReadSource& source);

// The transforms: signed Hadamard matrices for keys and values, or for keys the eigenvectors of
// each head's covariance.
struct ReadBasis {
  uint64_t seed = 20260801;
  bool layer_signs = false;  // signs of layer l are salted with l, else with 0
  bool klt = false;
  friend bool operator==(const ReadBasis&, const ReadBasis&) = default;
};
// "hadamard, seed 20260801, shared signs".
std::string name_of(const ReadBasis& basis);

struct ReadCalibration {
  // Means and scales are values of `format`, rounded once: encoder and decoder use the same.
  struct Layer {
    Scalar format = Scalar::f16;       // bf16 where a value leaves f16
    std::vector<float> mu_k, sigma_k;  // [kv_heads][head_dim], sigma > 0
    std::vector<float> mu_v, sigma_v;  // [kv_heads][head_dim]
    std::vector<float> m2q;            // [heads][head_dim] mean of q'^2, for fixed schedules
    std::vector<float> klt;            // [kv_heads][d][d] f16 values, rows by falling eigenvalue
  };

  ReadSource source;
  ReadBasis basis;
  int64_t tokens = 0;
  // Keys and queries of positions below this were looked at; RoPE takes those of others elsewhere.
  int64_t positions = 0;
  std::vector<Layer> layers;

  HeadTransform key_transform(int layer, int kv_head) const;
  HeadTransform value_transform(int layer) const;
  // Bytes as charged: four 16-bit arrays a layer, and the 16-bit bases.
  uint64_t charged_bytes() const;
  // Throws invalid_argument naming both sides where this was measured on something else.
  void check_fits(const ReadSource& other) const;
};

// Key weights that no query changes: a[g][c] = sum over the heads h of g of m2q[h][c] sigma^2, in
// double, rounded once. out [kv_heads][head_dim].
void calibration_fixed_keys(const ReadCalibration& calibration, int layer, std::span<float> out);

// A matrix whose rows are orthonormal up to 16-bit rounding, made orthonormal to float32: the polar
// factor, by two Newton-Schulz steps in double, the same bits everywhere. rows [d][d].
std::vector<float> orthonormalized(std::span<const float> rows, int d);

// Files: "KVISTRKC", version, header, layers, XXH64 of all before it; little endian. `save` throws
// io; `load` not_found or io, and corrupt naming file, field, found and expected.
void save(const ReadCalibration& calibration, const std::string& path);
ReadCalibration load_calibration(const std::string& path);
// The same on bytes; `name` stands for the file in messages.
std::vector<uint8_t> encode(const ReadCalibration& calibration);
ReadCalibration decode_calibration(std::span<const uint8_t> bytes, const std::string& name);

}  // namespace kvist
