// SPDX-License-Identifier: MIT
// A line a layer: ranks and bytes.
#include "kvist/cli/inspect_ranks.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kvist/cli/report.h"
#include "kvist/cli/terminal.h"

namespace kvist {
namespace {

struct LayerRanks {
  std::vector<int> sorted;  // of coded tokens, ascending
  int at_floor = 0, at_cap = 0;
  double share_of_scalars = 0;  // of the numbers of the same tokens; metadata is free
  double share_of_bytes = 0;    // of their bytes in f16, with all that is stored

  int quantile(double q) const {
    if (sorted.empty()) return 0;
    return sorted[std::min(sorted.size() - 1,
                           static_cast<size_t>(q * static_cast<double>(sorted.size())))];
  }
};

// Exact tokens and coefficients, beside all numbers of the layer.
double share_of_scalars(const RankedLayer& layer) {
  const double width = 2.0 * layer.shape().kv_heads * layer.shape().head_dim;
  return (static_cast<double>(layer.tokens().exact.size()) * width +
          static_cast<double>(layer.rank_sum())) /
         (layer.tokens().n_tokens * width);
}

LayerRanks summed_up(const Ranks& ranks, const RankedPrefix& prefix, int layer,
                     uint64_t reference) {
  LayerRanks out;
  for (const int rank : ranks.layers[static_cast<size_t>(layer)])
    if (rank != Ranks::kExact) out.sorted.push_back(rank);
  std::sort(out.sorted.begin(), out.sorted.end());
  if (!out.sorted.empty())
    out.at_floor = static_cast<int>(
        std::upper_bound(out.sorted.begin(), out.sorted.end(), out.sorted.front()) -
        out.sorted.begin());
  out.at_cap = static_cast<int>(std::count(out.sorted.begin(), out.sorted.end(), ranks.most));
  out.share_of_scalars = share_of_scalars(prefix.layer(layer));
  out.share_of_bytes =
      static_cast<double>(prefix.bytes(layer).stored()) / static_cast<double>(reference);
  return out;
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

}  // namespace

Ranks ranks_of(const Loaded& loaded) {
  const RankedPrefix& prefix = *loaded.session->ranked();
  Ranks ranks{.n_tokens = prefix.next_position(), .layers = {}, .anchors = {}};
  for (int i = 0; i < prefix.n_layers(); ++i) {
    const RankedLayer& layer = prefix.layer(i);
    ranks.most = std::max(ranks.most, prefix.model().layer(i).n_rows);
    std::vector<int>& row =
        ranks.layers.emplace_back(static_cast<size_t>(ranks.n_tokens), Ranks::kExact);
    for (int block = 0; block < layer.n_blocks(); ++block)
      for (int t = 0; t < layer.block_tokens(block); ++t)
        row[static_cast<size_t>(layer.position(block, t))] = layer.ranks(block)[t];
    ranks.anchors.emplace_back(layer.tokens().anchors.begin(), layer.tokens().anchors.end());
  }
  for (const int32_t id : loaded.ids) ranks.pieces.push_back(loaded.tokenizer->piece(id));
  return ranks;
}

int inspect_ranks(const std::vector<std::string>& pictures, Loaded& loaded,
                  const Context& context) {
  Timings timings;
  prefill(loaded, nullptr, &timings);
  compress(loaded, nullptr, nullptr, &timings);
  const RankedPrefix& prefix = *loaded.session->ranked();
  const Ranks ranks = ranks_of(loaded);
  const ModelInfo& info = loaded.model->info();
  const uint64_t reference = reference_bytes(info, ranks.n_tokens);
  const Bytes bytes = prefix.bytes();
  const auto coded = prefix.n_layers() == 0 ? 0 : prefix.layer(0).n_coded();
  const PictureText text{
      str(loaded.recipe.spec.text, ": ", human_count(static_cast<uint64_t>(ranks.n_tokens)),
          " tokens, ", human_count(static_cast<uint64_t>(ranks.n_tokens - coded)), " exact, ",
          human_count(static_cast<uint64_t>(coded)), " coded"),
      str(info.name.empty() ? info.architecture : info.name, "; ", human_bytes(bytes.stored()),
          " of keys and values instead of ", human_bytes(reference), ", and a basis of ",
          human_bytes(bytes.shared), " for all prompts")};
  Table table({"layer", "mean rank", "least", "median", "90 %", "most", "at least", "at cap",
               "scalars", "bytes"});
  auto rows = nlohmann::ordered_json::array();
  for (int i = 0; i < prefix.n_layers(); ++i) {
    const LayerRanks layer =
        summed_up(ranks, prefix, i, reference / static_cast<uint64_t>(prefix.n_layers()));
    table.add({str(i), fmt::format("{:.1f}", ranks.mean(i)), str(layer.quantile(0)),
               str(layer.quantile(0.5)), str(layer.quantile(0.9)), str(layer.quantile(1)),
               str(layer.at_floor), str(layer.at_cap), percent(layer.share_of_scalars),
               percent(layer.share_of_bytes)});
    rows.push_back({{"layer", i},
                    {"mean_rank", ranks.mean(i)},
                    {"ranks", ranks.layers[static_cast<size_t>(i)]},
                    {"anchors", ranks.anchors[static_cast<size_t>(i)]},
                    {"share_of_scalars", layer.share_of_scalars},
                    {"share_of_bytes", layer.share_of_bytes}});
  }
  if (context.json) {
    nlohmann::json out = inspection_json(loaded, context, timings, bytes);
    out["basis_rows"] = ranks.most;
    out["exact_rank"] = Ranks::kExact;
    out["layers"] = rows;
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    std::printf(
        "%s\n%s\n\n%sscalars: exact tokens and coefficients of all numbers; bytes: of f16, with "
        "metadata\n",
        paint(1, Shade::strong, text.title).c_str(), text.subtitle.c_str(), table.text().c_str());
  }
  for (const std::string& path : pictures)
    write_picture(path, is_html(path) ? ranks_html(ranks, text) : ranks_svg(ranks, text));
  return kDone;
}

}  // namespace kvist
