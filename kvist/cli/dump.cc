// SPDX-License-Identifier: MIT
// Opening, checking and reading a folder of plain arrays.
#include "kvist/cli/dump.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kvist/core/error.h"
#include "kvist/methods/array_rows.h"
#include "kvist/methods/rope.h"

namespace kvist {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 28;
constexpr int64_t kMostSmall = 1 << 16;  // layers, heads, channels
constexpr uintmax_t kMostMeta = 1 << 20;

std::unique_ptr<NpyFile> open(const std::string& folder, const char* file, NpyType type) {
  return std::make_unique<NpyFile>((std::filesystem::path(folder) / file).string(), type);
}

// The shape with a layer axis, which is 1 where the file has none.
std::vector<int64_t> with_layers(const NpyFile& file, bool has_layer_axis) {
  std::vector<int64_t> shape = file.shape();
  if (!has_layer_axis) shape.insert(shape.begin(), 1);
  return shape;
}

int checked(const NpyFile& file, const char* axis, int64_t found, int64_t most) {
  if (found < 1 || found > most)
    refuse_array(file.path(), str(axis, " = ", found, " in shape ", shape_text(file.shape())),
                 str("1 to ", most));
  return static_cast<int>(found);
}

}  // namespace

void refuse_array(const std::string& file, const std::string& found, const std::string& expected) {
  throw Error(ErrorKind::corrupt, str(file, ": found ", found, "; expected ", expected));
}

void require_finite_layer(const NpyFile& file, int layer, const char* axes,
                          const Buffer<float>& data, int64_t rows, int64_t columns) {
  for (size_t i = 0; i < data.size(); ++i) {
    if (data[i] - data[i] == 0.0f) continue;
    const auto at = static_cast<int64_t>(i);
    refuse_array(file.path(),
                 str(data[i], " at ", axes, " = [", layer, ", ", at / columns / rows, ", ",
                     at / columns % rows, ", ", at % columns, "]"),
                 "finite numbers");
  }
}

Dump::Dump(const std::string& folder, const Needs& needs)
    : folder_(folder), pre_rope_(needs.pre_rope) {
  if (!std::filesystem::is_directory(folder))
    throw Error(ErrorKind::not_found, str(folder, ": not a folder"));
  turns_keys_ = !std::filesystem::exists(std::filesystem::path(folder) / "k.npy") &&
                std::filesystem::exists(std::filesystem::path(folder) / "k_pre.npy");
  k_ = open(folder, turns_keys_ ? "k_pre.npy" : "k.npy", NpyType::float32);
  v_ = open(folder, "v.npy", NpyType::float32);
  const size_t rank = k_->shape().size();
  if (rank != 3 && rank != 4) {
    refuse_array(k_->path(), str("rank ", rank, ", shape ", shape_text(k_->shape())),
                 "[layers, tokens, kv_heads, head_dim], or the same without layers");
  }
  has_layer_axis_ = rank == 4;
  const std::vector<int64_t> shape = with_layers(*k_, has_layer_axis_);
  checked(*k_, "layers", shape[0], kMostSmall);
  tokens_ = checked(*k_, "tokens", shape[1], kMostTokens);
  kv_heads_ = heads_ = checked(*k_, "kv_heads", shape[2], kMostSmall);
  head_dim_ = checked(*k_, "head_dim", shape[3], kMostSmall);
  if (v_->shape() != k_->shape()) {
    refuse_array(
        v_->path(), str("shape ", shape_text(v_->shape())),
        str("that of ", turns_keys_ ? "k_pre.npy" : "k.npy", ", ", shape_text(k_->shape())));
  }
  read_meta(folder, shape[0]);
  window_ = needs.every_query ? tokens_ : std::min(needs.window_queries, tokens_);
  if (window_ > 0) open_queries(folder, pre_rope_ ? "q_pre.npy" : "q.npy");
  if (pre_rope_ || turns_keys_) require_rope();
}

void Dump::require_rope() const {
  if (rope_) return;
  refuse_array((std::filesystem::path(folder_) / "meta.json").string(), "no rope",
               turns_keys_ ? R"({"rope": {"theta": ...}}, by which k_pre.npy is turned)"
                           : R"({"rope": {"theta": ...}} or {"rope": {"inv_freq": [...]}}, )"
                             "which the method needs");
}

void Dump::open_queries(const std::string& folder, const char* name) {
  q_ = open(folder, name, NpyType::float32);
  const std::string expected =
      str(has_layer_axis_ ? str("[", n_layers(), ", rows, heads, ") : "[rows, heads, ", head_dim_,
          "], heads a multiple of ", kv_heads_);
  if (q_->shape().size() != k_->shape().size())
    refuse_array(q_->path(), str("shape ", shape_text(q_->shape())), expected);
  const std::vector<int64_t> shape = with_layers(*q_, has_layer_axis_);
  if (shape[0] != n_layers() || shape[3] != head_dim_ || shape[2] < 1 || shape[2] > kMostSmall ||
      shape[2] % kv_heads_ != 0) {
    refuse_array(q_->path(), str("shape ", shape_text(q_->shape())), expected);
  }
  heads_ = static_cast<int>(shape[2]);
  q_rows_ = shape[1];
  // row_of[p]: the row of position tokens - window + p.
  std::vector<int64_t> row_of(static_cast<size_t>(window_), -1);
  const auto place = [&](int64_t position, int64_t row) {
    const int64_t slot = position - (tokens_ - window_);
    if (slot >= 0) std::swap(row_of[static_cast<size_t>(slot)], row);
    return slot < 0 || row == -1;  // false: the position had a row
  };
  const std::filesystem::path q_pos = std::filesystem::path(folder) / "q_pos.npy";
  if (std::filesystem::exists(q_pos)) {
    NpyFile file(q_pos.string(), NpyType::int32);
    if (file.shape() != std::vector<int64_t>{q_rows_}) {
      refuse_array(file.path(), str("shape ", shape_text(file.shape())),
                   str("[", q_rows_, "], one position for each row of ", name));
    }
    const Buffer<int32_t> positions = file.read_all<int32_t>();
    for (int64_t row = 0; row < q_rows_; ++row) {
      const int32_t position = positions[static_cast<size_t>(row)];
      if (position < 0 || position >= tokens_)
        refuse_array(file.path(), str("position ", position, " at [", row, "]"),
                     str("0 to ", tokens_ - 1));
      if (!place(position, row))
        refuse_array(file.path(), str("position ", position, " twice"), "each position once");
    }
  } else {
    if (q_rows_ > tokens_)
      refuse_array(q_->path(), str(q_rows_, " rows"),
                   str("at most the ", tokens_, " positions of k.npy"));
    for (int64_t row = 0; row < q_rows_; ++row) place(tokens_ - q_rows_ + row, row);
  }
  const auto missing = std::count(row_of.begin(), row_of.end(), -1);
  if (missing > 0) {
    refuse_array(q_->path(),
                 str("queries of ", window_ - missing, " of the last ", window_, " positions"),
                 str("all ", window_, ": the method needs them"));
  }
  rows_ = std::move(row_of);
}

void Dump::read_meta(const std::string& folder, int64_t array_layers) {
  for (int layer = 0; layer < array_layers; ++layer) model_layers_.push_back(layer);
  n_model_layers_ = static_cast<int>(array_layers);
  const std::string path = (std::filesystem::path(folder) / "meta.json").string();
  if (!std::filesystem::exists(path)) return;
  if (!std::filesystem::is_regular_file(path) || std::filesystem::file_size(path) > kMostMeta) {
    refuse_array(path, "something else", "a JSON file of at most 1 MiB");
  }
  std::ifstream file(path);
  const auto meta = nlohmann::json::parse(file, nullptr, false);
  if (!meta.is_object())
    refuse_array(path, "no JSON object", R"({"layers": [...], "n_layers": ..., "rope": {...}})");
  if (meta.contains("layers")) {
    const auto& layers = meta["layers"];
    const bool fits = layers.is_array() && static_cast<int64_t>(layers.size()) == array_layers &&
                      std::all_of(layers.begin(), layers.end(), [](const auto& l) {
                        return l.is_number_unsigned() &&
                               l.template get<uint64_t>() < static_cast<uint64_t>(kMostSmall);
                      });
    if (!fits)
      refuse_array(path, str("layers = ", layers.dump().substr(0, 80)),
                   str("the model layers of the ", array_layers, " layers of k.npy, ascending"));
    model_layers_ = layers.get<std::vector<int>>();
    if (std::adjacent_find(model_layers_.begin(), model_layers_.end(), std::greater_equal<>()) !=
        model_layers_.end()) {
      refuse_array(path, str("layers = ", layers.dump().substr(0, 80)),
                   "model layers in ascending order");
    }
    n_model_layers_ = model_layers_.back() + 1;
  }
  if (meta.contains("n_layers")) {
    const auto& n = meta["n_layers"];
    if (!n.is_number_unsigned() || n.get<uint64_t>() > static_cast<uint64_t>(kMostSmall) ||
        n.get<int>() <= model_layers_.back()) {
      refuse_array(path, str("n_layers = ", n.dump().substr(0, 80)),
                   str("an integer above layer ", model_layers_.back()));
    }
    n_model_layers_ = n.get<int>();
  }
  if (meta.contains("rope")) read_rope(path, meta["rope"]);
}

void Dump::read_rope(const std::string& path, const nlohmann::json& rope) {
  const auto wrong = [&](const char* key, const std::string& expected) {
    refuse_array(path,
                 str("rope.", key, " = ", rope.contains(key) ? rope[key].dump().substr(0, 80) : ""),
                 expected);
  };
  const auto positive = [](const nlohmann::json& x) {
    return x.is_number() && x.get<double>() > 0 && std::isfinite(x.get<double>());
  };
  if (!rope.is_object()) refuse_array(path, "rope that is no object", R"({"theta": ...})");
  const nlohmann::json dims = rope.value("dims", nlohmann::json(static_cast<unsigned>(head_dim_)));
  if (!dims.is_number_unsigned() || dims.get<uint64_t>() > static_cast<uint64_t>(head_dim_) ||
      dims.get<int>() % 2 != 0 || dims.get<int>() == 0)
    wrong("dims", str("an even number of channels, 2 to ", head_dim_));
  const nlohmann::json order = rope.value("pairs", nlohmann::json("half"));
  if (order != "half" && order != "adjacent")
    wrong("pairs", R"("half", (f, f + dims / 2), or "adjacent", (2f, 2f + 1))");
  const nlohmann::json factor = rope.value("attention_factor", nlohmann::json(1.0));
  if (!positive(factor)) wrong("attention_factor", "a number above 0");
  const int pairs = dims.get<int>() / 2;
  Rope read{.frequencies = {}, .magnitude = factor.get<double>(), .adjacent = order == "adjacent"};
  if (rope.contains("inv_freq")) {
    const auto& list = rope["inv_freq"];
    if (!list.is_array() || static_cast<int>(list.size()) != pairs ||
        !std::all_of(list.begin(), list.end(), positive))
      wrong("inv_freq", str(pairs, " numbers above 0, one for each pair of channels"));
    read.frequencies = list.get<std::vector<double>>();
  } else if (rope.contains("theta")) {
    if (!positive(rope["theta"])) wrong("theta", "a number above 0");
    const double theta = rope["theta"].get<double>();
    for (int f = 0; f < pairs; ++f)
      read.frequencies.push_back(std::pow(theta, -2.0 * f / dims.get<int>()));
  } else {
    return;  // says nothing of the rotation: taken as absent
  }
  rope_ = read;
}

Dump::Layer Dump::load(int layer, bool check_finite, ThreadPool& pool) {
  Layer out;
  const int64_t row = int64_t{kv_heads_} * head_dim_, size = tokens_ * row;
  out.k = Buffer<float>(static_cast<size_t>(size));
  out.v = Buffer<float>(static_cast<size_t>(size));
  k_->read(layer * size, out.k.span());
  v_->read(layer * size, out.v.span());
  if (check_finite) {
    require_finite_layer(*k_, layer, "[layer, token, head, channel]", out.k, kv_heads_, head_dim_);
    require_finite_layer(*v_, layer, "[layer, token, head, channel]", out.v, kv_heads_, head_dim_);
  }
  if (turns_keys_) {
    pool.parallel_for(tokens_, [&](int64_t t) {
      const PairRotation turn = PairRotation::at(*rope_, t);
      for (int head = 0; head < kv_heads_; ++head)
        turn.apply(out.k.data() + t * row + int64_t{head} * head_dim_);
    });
  }
  LayerInput& in = out.input;
  if (q_) {
    const int64_t q_row = int64_t{heads_} * head_dim_;
    if (check_finite) {
      Buffer<float> all(static_cast<size_t>(q_rows_ * q_row));
      q_->read(layer * q_rows_ * q_row, all.span());
      require_finite_layer(*q_, layer, "[layer, row, head, channel]", all, heads_, head_dim_);
    }
    out.q = Buffer<float>(static_cast<size_t>(window_ * q_row));
    for (int64_t t = 0; t < window_; ++t) {
      q_->read((layer * q_rows_ + rows_[static_cast<size_t>(t)]) * q_row,
               out.q.span().subspan(static_cast<size_t>(t * q_row), static_cast<size_t>(q_row)));
    }
    const TensorView<const float, 3> queries(out.q.data(), {window_, heads_, head_dim_});
    (pre_rope_ ? in.q_pre : in.q) = queries;
  }
  out.keys = std::make_unique<ArrayRows>(out.k.data(), kv_heads_, head_dim_);
  out.values = std::make_unique<ArrayRows>(out.v.data(), kv_heads_, head_dim_);
  in.layer = model_layers_[static_cast<size_t>(layer)];
  in.n_layers = n_model_layers_;
  in.n_tokens = tokens_;
  in.kv_heads = kv_heads_;
  in.heads = heads_;
  in.head_dim = head_dim_;
  if (rope_) in.rope = &*rope_;
  in.keys = out.keys.get();
  in.values = out.values.get();
  in.logit_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim_)));
  in.pool = &pool;
  return out;
}

}  // namespace kvist
