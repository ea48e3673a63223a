// SPDX-License-Identifier: MIT
// Checks the two files against k.npy, and turns heads outermost into rows outermost.
#include "kvist/cli/decode_queries.h"

#include <algorithm>
#include <filesystem>

#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr int64_t kMost = 1 << 16;  // heads, queries

}  // namespace

DecodeQueries::DecodeQueries(const Dump& dump, const std::string& name)
    : head_dim_(dump.head_dim()) {
  const std::filesystem::path folder(dump.folder());
  file_ = std::make_unique<NpyFile>((folder / name).string(), NpyType::float32);
  std::vector<int64_t> shape = file_->shape();
  if (!dump.has_layer_axis()) shape.insert(shape.begin(), 1);
  const bool fits = shape.size() == 4 && shape[0] == dump.n_layers() && shape[1] >= 1 &&
                    shape[1] <= kMost && shape[1] % dump.kv_heads() == 0 && shape[2] >= 1 &&
                    shape[2] <= kMost && shape[3] == dump.head_dim();
  if (!fits) {
    refuse_array(file_->path(), str("shape ", shape_text(file_->shape())),
                 str(dump.has_layer_axis() ? str("[", dump.n_layers(), ", ") : "[", "heads, n, ",
                     dump.head_dim(), "], heads a multiple of ", dump.kv_heads()));
  }
  heads_ = static_cast<int>(shape[1]);
  positions_.assign(static_cast<size_t>(shape[2]), dump.tokens() - 1);
  const std::filesystem::path q_pos = folder / "q_pos.npy";
  if (name != "q.npy" || !std::filesystem::exists(q_pos)) return;
  NpyFile file(q_pos.string(), NpyType::int32);
  if (file.shape() != std::vector<int64_t>{n()}) {
    refuse_array(file.path(), str("shape ", shape_text(file.shape())),
                 str("[", n(), "], one position for each query of q.npy"));
  }
  const Buffer<int32_t> positions = file.read_all<int32_t>();
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || positions[i] >= dump.tokens())
      refuse_array(file.path(), str("position ", positions[i], " at [", i, "]"),
                   str("0 to ", dump.tokens() - 1));
    positions_[i] = positions[i];
  }
}

std::vector<float> DecodeQueries::load(int layer) {
  const size_t rows = positions_.size(), d = static_cast<size_t>(head_dim_);
  const size_t heads = static_cast<size_t>(heads_), size = heads * rows * d;
  Buffer<float> stored(size);
  file_->read(int64_t{layer} * static_cast<int64_t>(size), stored.span());
  require_finite_layer(*file_, layer, "[layer, head, query, channel]", stored, n(), head_dim_);
  std::vector<float> out(size);
  for (size_t h = 0; h < heads; ++h) {
    for (size_t i = 0; i < rows; ++i)
      std::copy_n(stored.data() + (h * rows + i) * d, d, out.data() + (i * heads + h) * d);
  }
  return out;
}

}  // namespace kvist
