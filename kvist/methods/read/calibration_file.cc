// SPDX-License-Identifier: MIT
// Calibration files. After magic and version: model and rope as length and bytes, shape, basis,
// tokens, positions, checksum of the code's tables; then layer by layer format, mu_k, sigma_k,
// mu_v, sigma_v as 16 bits, m2q as float32, bases as 16 bits; at the end XXH64 of all before it.
#include <xxhash.h>

#include <string_view>

#include "kvist/core/error.h"
#include "kvist/kernels/tree_code.h"
#include "kvist/methods/fields.h"
#include "kvist/methods/read/calibration.h"

namespace kvist {
namespace {

constexpr std::string_view kMagic = "KVISTRKC";
constexpr uint32_t kVersion = 2;
constexpr int kMostLayers = 4096, kMostHeads = 4096;

uint64_t table_checksum() {
  using kernels::kTreeCentroids, kernels::kTreeThresholds;
  return XXH64(kTreeThresholds, sizeof(kTreeThresholds),
               XXH64(kTreeCentroids, sizeof(kTreeCentroids), 0));
}

ReadCalibration::Layer read_layer(FieldReader& in, const ReadShape& shape, bool klt) {
  const auto d = static_cast<uint64_t>(shape.head_dim);
  const uint64_t wide = static_cast<uint64_t>(shape.kv_heads) * d;
  ReadCalibration::Layer out;
  out.format = in.get_at_most("format of a layer", 1) == 0 ? Scalar::f16 : Scalar::bf16;
  const float least = out.format == Scalar::f16 ? 0x1p-14f : 0x1p-126f;
  out.mu_k = in.numbers("means of keys", wide, out.format, FieldReader::kAny);
  out.sigma_k = in.numbers("scales of keys", wide, out.format, least);
  out.mu_v = in.numbers("means of values", wide, out.format, FieldReader::kAny);
  out.sigma_v = in.numbers("scales of values", wide, out.format, least);
  out.m2q =
      in.numbers("squares of queries", static_cast<uint64_t>(shape.heads) * d, Scalar::f32, 0);
  if (klt) out.klt = in.numbers("bases of keys", wide * d, Scalar::f16, FieldReader::kAny);
  return out;
}

}  // namespace

void put_source(FieldWriter& out, const ReadSource& source) {
  out.text(source.model);
  out.text(source.rope);
  const ReadShape& shape = source.shape;
  for (int size : {shape.layers, shape.kv_heads, shape.heads, shape.head_dim})
    out.put(static_cast<int32_t>(size));
}

ReadSource get_source(FieldReader& in) {
  ReadSource source;
  source.model = in.text("model");
  source.rope = in.text("rope");
  ReadShape& shape = source.shape;
  shape.layers = in.integer("layers", 1, kMostLayers);
  shape.kv_heads = in.integer("KV heads", 1, kMostHeads);
  shape.heads = in.integer("heads", shape.kv_heads, kMostHeads);
  if (shape.heads % shape.kv_heads != 0)
    in.refuse("heads", str(shape.heads), str("a multiple of ", shape.kv_heads));
  shape.head_dim = in.integer("head dimension", 1, HeadTransform::kMaxHeadDim);
  return source;
}

std::vector<uint8_t> encode(const ReadCalibration& c) {
  FieldWriter out(kMagic, kVersion);
  put_source(out, c.source);
  out.put(c.basis.seed);
  out.put(static_cast<uint8_t>(c.basis.layer_signs));
  out.put(static_cast<uint8_t>(c.basis.klt));
  out.put(c.tokens);
  out.put(c.positions);
  out.put(table_checksum());
  for (const auto& layer : c.layers) {
    out.put(static_cast<uint8_t>(layer.format == Scalar::f16 ? 0 : 1));
    for (const auto* array : {&layer.mu_k, &layer.sigma_k, &layer.mu_v, &layer.sigma_v})
      out.numbers(*array, layer.format);
    out.numbers(layer.m2q, Scalar::f32);
    out.numbers(layer.klt, Scalar::f16);
  }
  return out.take();
}

ReadCalibration decode_calibration(std::span<const uint8_t> bytes, const std::string& name) {
  FieldReader in(bytes, name, kMagic, kVersion);
  ReadCalibration out;
  out.source = get_source(in);
  const ReadShape& shape = out.source.shape;
  out.basis.seed = in.get<uint64_t>("seed");
  out.basis.layer_signs = in.boolean("signs by layer");
  out.basis.klt = in.boolean("klt");
  out.tokens = in.get<int64_t>("tokens");
  if (out.tokens < 1) in.refuse("tokens", str(out.tokens), "at least 1");
  out.positions = in.get<int64_t>("positions");
  if (out.positions < 1) in.refuse("positions", str(out.positions), "at least 1");
  const auto tables = in.get<uint64_t>("tables");
  if (tables != table_checksum())
    in.refuse("tables", fmt::format("{:016x}", tables), fmt::format("{:016x}", table_checksum()));
  for (int layer = 0; layer < shape.layers; ++layer)
    out.layers.push_back(read_layer(in, shape, out.basis.klt));
  in.end();
  return out;
}

void save(const ReadCalibration& calibration, const std::string& path) {
  write_file(path, encode(calibration));
}

ReadCalibration load_calibration(const std::string& path) {
  return decode_calibration(read_file(path), path);
}

}  // namespace kvist
