// SPDX-License-Identifier: MIT
// Basis files. After magic and version: the kind, the source, stride, neighbours, scale of values,
// residuals, rows a layer, format; then layer by layer rows in that format, eigenvalues of
// residuals and of z as float32, the two energies, and of the kind `heads` portions: their number,
// and rows, worth and rows reached of each.
#include "kvist/methods/rank/basis.h"

#include <cmath>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/methods/fields.h"

namespace kvist {
namespace {

constexpr std::string_view kMagic = "KVISTRKB";
constexpr uint32_t kVersion = 2;
constexpr int kMostRows = 65535;

std::vector<RankBasisLayer::Portion> read_portions(FieldReader& in, int rows) {
  std::vector<RankBasisLayer::Portion> portions(
      static_cast<size_t>(in.integer("portions", 1, rows)));
  int left = rows;
  int64_t before = 0;
  for (RankBasisLayer::Portion& portion : portions) {
    portion.rows = in.integer("rows of a portion", 1, left);
    left -= portion.rows;
    portion.worth = in.get<double>("worth of a portion");
    if (!(portion.worth >= 0 && portion.worth <= 1))
      in.refuse("worth of a portion", str(portion.worth), "0 to 1");
    portion.reached = in.get<int64_t>("rows reached");
    if (portion.reached <= before)
      in.refuse("rows reached", str(portion.reached), str("more than ", before));
    before = portion.reached;
  }
  if (left > 0) in.refuse("rows of portions", str(rows - left), str(rows));
  return portions;
}

RankBasisLayer read_layer(FieldReader& in, int rows, int width, Scalar format,
                          RankPlan::Basis kind) {
  RankBasisLayer layer;
  layer.n_rows = rows;
  layer.width = width;
  const auto wide = static_cast<uint64_t>(width), high = static_cast<uint64_t>(rows);
  layer.rows = in.numbers("rows", high * wide, format, FieldReader::kAny);
  layer.eigenvalues = in.numbers("eigenvalues", high, Scalar::f32, 0);
  layer.raw_eigenvalues = in.numbers("eigenvalues of whole tokens", wide, Scalar::f32, 0);
  for (auto [field, energy] : {std::pair{"energy of residuals", &layer.residual_energy},
                               {"energy of tokens", &layer.total_energy}}) {
    *energy = in.get<double>(field);
    if (!std::isfinite(*energy) || *energy < 0)
      in.refuse(field, str(*energy), "a finite number of at least 0");
  }
  if (kind == RankPlan::Basis::heads) layer.portions = read_portions(in, rows);
  return layer;
}

}  // namespace

int RankBasisLayer::rows_within(int64_t total) const {
  int n = 0;
  for (const Portion& portion : portions)
    if (portion.reached <= total) n += portion.rows;
  return n;
}

const char* name(RankPlan::Basis kind) {
  switch (kind) {
    case RankPlan::Basis::residual:
      return "residual";
    case RankPlan::Basis::token:
      return "token";
    case RankPlan::Basis::heads:
      return "heads";
  }
  KVIST_ASSERT(false);
  return "";
}

void RankBasis::check_fits(const ReadSource& other, const RankPlan& plan) const {
  if (!(source == other)) {
    throw Error(ErrorKind::invalid_argument, str("the basis was measured on ", name_of(source),
                                                 "; it is to be used on ", name_of(other)));
  }
  if (value_scale != plan.value_scale) {
    throw Error(ErrorKind::invalid_argument,
                str("the basis was measured with values times ", value_scale,
                    "; it is to be used with value_scale=", plan.value_scale));
  }
  if (kind != plan.basis) {
    throw Error(ErrorKind::invalid_argument,
                str("the basis is of the kind ", name(kind),
                    "; it is to be used with basis=", name(plan.basis)));
  }
}

uint64_t RankBasis::charged_bytes() const {
  uint64_t bytes = 0;
  for (const RankBasisLayer& layer : layers) {
    bytes += layer.rows.size() * static_cast<uint64_t>(size_of(format)) +
             layer.eigenvalues.size() * sizeof(float);
  }
  return bytes;
}

int rank_of_energy(std::span<const float> eigenvalues, double share) {
  const double total = std::accumulate(eigenvalues.begin(), eigenvalues.end(), 0.0);
  double sum = 0;
  int rank = 0;
  while (sum < share * total && static_cast<size_t>(rank) < eigenvalues.size())
    sum += static_cast<double>(eigenvalues[static_cast<size_t>(rank++)]);
  return rank;
}

std::vector<uint8_t> encode(const RankBasis& basis) {
  KVIST_ASSERT(!basis.layers.empty());
  FieldWriter out(kMagic, kVersion);
  out.put(static_cast<uint8_t>(basis.kind));
  put_source(out, basis.source);
  out.put(static_cast<int32_t>(basis.stride));
  out.put(static_cast<int32_t>(basis.neighbours));
  out.put(basis.value_scale);
  out.put(basis.residuals);
  out.put(static_cast<int32_t>(basis.layers.front().n_rows));
  out.put(static_cast<uint8_t>(basis.format == Scalar::f32 ? 0 : 1));
  for (const RankBasisLayer& layer : basis.layers) {
    out.numbers(layer.rows, basis.format);
    out.numbers(layer.eigenvalues, Scalar::f32);
    out.numbers(layer.raw_eigenvalues, Scalar::f32);
    out.put(layer.residual_energy);
    out.put(layer.total_energy);
    if (basis.kind != RankPlan::Basis::heads) continue;
    out.put(static_cast<int32_t>(layer.portions.size()));
    for (const RankBasisLayer::Portion& portion : layer.portions) {
      out.put(static_cast<int32_t>(portion.rows));
      out.put(portion.worth);
      out.put(portion.reached);
    }
  }
  return out.take();
}

RankBasis decode_basis(std::span<const uint8_t> bytes, const std::string& name) {
  FieldReader in(bytes, name, kMagic, kVersion);
  RankBasis basis;
  basis.kind = static_cast<RankPlan::Basis>(in.get_at_most("kind", 2));
  basis.source = get_source(in);
  const ReadShape& shape = basis.source.shape;
  basis.stride = in.integer("stride", 1, 1 << 20);
  basis.neighbours = in.integer("neighbours", 1, 64);
  basis.value_scale = in.get<double>("scale of values");
  if (!std::isfinite(basis.value_scale) || basis.value_scale <= 0)
    in.refuse("scale of values", str(basis.value_scale), "a finite number above 0");
  basis.residuals = in.get<int64_t>("residuals");
  if (basis.residuals < 1) in.refuse("residuals", str(basis.residuals), "at least 1");
  const int width = 2 * shape.kv_heads * shape.head_dim;
  const int rows = in.integer("rows", 1, std::min(width, kMostRows));
  basis.format = in.get_at_most("format", 1) == 0 ? Scalar::f32 : Scalar::f16;
  for (int layer = 0; layer < shape.layers; ++layer)
    basis.layers.push_back(read_layer(in, rows, width, basis.format, basis.kind));
  in.end();
  return basis;
}

void save(const RankBasis& basis, const std::string& path) { write_file(path, encode(basis)); }

RankBasis load_basis(const std::string& path) { return decode_basis(read_file(path), path); }

}  // namespace kvist
