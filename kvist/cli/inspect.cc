// SPDX-License-Identifier: MIT
// kvist inspect: what a method left of a document, or what one query reads of it, per layer and
// head, word by word, and as a picture.
#include <CLI/Option.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kvist/cli/command.h"
#include "kvist/cli/document.h"
#include "kvist/cli/inputs.h"
#include "kvist/cli/inspect_ranks.h"
#include "kvist/cli/inspect_read.h"
#include "kvist/cli/interrupt.h"
#include "kvist/cli/report.h"
#include "kvist/cli/survival.h"
#include "kvist/cli/survival_svg.h"
#include "kvist/cli/terminal.h"
#include "kvist/cli/utf8.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

struct InspectOptions {
  Inputs inputs;
  ReadInspection read;  // its pictures are those of any method
};

constexpr int kWideHeads = 4;  // up to so many heads have columns of their own
constexpr int kBarWidth = 20;

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

std::string bar(double share) {
  std::string text;
  for (int i = 0; i < kBarWidth; ++i) text += i < share * kBarWidth - 0.5 ? "█" : "·";
  return text;
}

// Mean of what the method counted per token of a head; absent where it counts nothing.
std::optional<double> mean_count(const Session::Explanation& explanation, size_t layer,
                                 size_t head) {
  if (layer >= explanation.layers.size() || head >= explanation.layers[layer].counts.size())
    return std::nullopt;
  const std::vector<int32_t>& counts = explanation.layers[layer].counts[head];
  if (counts.empty()) return std::nullopt;
  return static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0})) /
         static_cast<double>(counts.size());
}

std::string count_text(std::optional<double> count) {
  return count ? fmt::format("{:.1f}", *count) : "–";
}

// A line a layer, three columns a head.
Table wide_table(const Survival& s, const Session::Explanation& explanation) {
  std::vector<std::string> head{"layer"};
  for (int h = 0; h < s.kv_heads(); ++h)
    head.insert(head.end(), {str("head ", h), "share", "count"});
  head.insert(head.end(), {"layer", std::string(kBarWidth, ' ')});
  Table table(head);
  for (size_t layer = 0; layer < s.kept.size(); ++layer) {
    std::vector<std::string> row{str(layer)};
    for (size_t h = 0; h < s.kept[layer].size(); ++h) {
      const size_t n = s.kept[layer][h].size();
      row.insert(row.end(), {str(n), percent(static_cast<double>(n) / s.n_tokens),
                             count_text(mean_count(explanation, layer, h))});
    }
    const double share = s.share_of_layer(static_cast<int>(layer));
    row.insert(row.end(), {percent(share), bar(share)});
    table.add(row);
  }
  return table;
}

// A line a head.
Table long_table(const Survival& s, const Session::Explanation& explanation) {
  Table table({"layer", "head", "kept", "share", "count", std::string(kBarWidth, ' ')});
  for (size_t layer = 0; layer < s.kept.size(); ++layer) {
    for (size_t h = 0; h < s.kept[layer].size(); ++h) {
      const size_t n = s.kept[layer][h].size();
      const double share = static_cast<double>(n) / s.n_tokens;
      table.add({h == 0 ? str(layer) : "", str(h), str(n), percent(share),
                 count_text(mean_count(explanation, layer, h)), bar(share)});
    }
  }
  return table;
}

// The document in five shades, from what nearly no head keeps to what nearly all keep.
std::string shaded_document(const Survival& s) {
  static constexpr std::array<const char*, 5> kShades = {"\x1b[38;5;238m", "\x1b[38;5;242m",
                                                         "\x1b[38;5;247m", "\x1b[0m", "\x1b[1m"};
  static constexpr std::array<const char*, 5> kNames = {"under 20 %", "40", "60", "80",
                                                        "up to 100 % of heads keep it"};
  std::string out = "\n";
  for (size_t i = 0; i < kShades.size(); ++i)
    out += str(kShades[i], kNames[i], "\x1b[0m", i + 1 < kShades.size() ? " · " : "\n\n");
  const std::vector<double> share = s.share_by_position();
  Utf8Stream stream;
  size_t shade = kShades.size();
  for (size_t i = 0; i < s.pieces.size(); ++i) {
    const std::string piece = stream.push(s.pieces[i]);
    if (piece.empty()) continue;
    const size_t now = std::min<size_t>(4, static_cast<size_t>(share[i] * 5));
    if (now != shade) out += str("\x1b[0m", kShades[now]);
    shade = now;
    for (char c : piece) {  // a document must not steer the terminal
      if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') out += c;
    }
  }
  return out + "\x1b[0m\n";
}

Survival survival_of(const Loaded& loaded) {
  const PrefixCache& prefix = loaded.session->prefix();
  Survival s;
  s.n_tokens = loaded.session->n_prompt();
  s.kept.resize(static_cast<size_t>(prefix.n_layers()));
  for (int layer = 0; layer < prefix.n_layers(); ++layer) {
    for (int head = 0; head < prefix.shape().kv_heads; ++head) {
      s.kept[static_cast<size_t>(layer)].push_back(prefix.kept(layer, head));
    }
  }
  for (int32_t id : loaded.ids) s.pieces.push_back(loaded.tokenizer->piece(id));
  return s;
}

PictureText picture_text(const Loaded& loaded, const Survival& s) {
  const ModelInfo& info = loaded.model->info();
  const uint64_t stored = loaded.session->prefix().bytes().stored();
  const std::string method = loaded.recipe.spec.none() ? "none" : loaded.recipe.spec.text;
  return {str(method, " keeps ", fmt::format("{:.0f} %", 100 * s.share()), " of ",
              human_count(static_cast<uint64_t>(s.n_tokens)), " tokens"),
          str(info.name.empty() ? info.architecture : info.name, "; ", human_bytes(stored),
              " of keys and values instead of ", human_bytes(reference_bytes(info, s.n_tokens)))};
}

nlohmann::json survival_json(const Loaded& loaded, const Context& context, const Survival& s,
                             const Session::Explanation& explanation, const Timings& timings) {
  nlohmann::json out = inspection_json(loaded, context, timings, loaded.session->prefix().bytes());
  auto shares = nlohmann::json::array(), counts = nlohmann::json::array();
  for (size_t layer = 0; layer < s.kept.size(); ++layer) {
    auto layer_shares = nlohmann::json::array(), layer_counts = nlohmann::json::array();
    for (size_t h = 0; h < s.kept[layer].size(); ++h) {
      layer_shares.push_back(static_cast<double>(s.kept[layer][h].size()) / s.n_tokens);
      const auto count = mean_count(explanation, layer, h);
      layer_counts.push_back(count ? nlohmann::json(*count) : nlohmann::json());
    }
    shares.push_back(layer_shares);
    counts.push_back(layer_counts);
  }
  out["share"] = shares;
  out["mean_count"] = counts;
  out["position_share"] = s.share_by_position();
  return out;
}

// Whether one query's reading is shown, not which entries are left.
bool shows_reading(const InspectOptions& options) {
  const Spec spec = parse_spec(options.inputs.method);
  const bool reads = spec.reading() && spec.make_selector() == nullptr;
  const char* flag = options.read.certificate         ? "--certificate"
                     : !options.read.question.empty() ? "--question"
                                                      : nullptr;
  if (!reads && flag != nullptr) {
    throw Error(ErrorKind::invalid_argument,
                str(flag, " is for methods that only read, as readkv(read=2), not for ",
                    spec.none() ? "none" : spec.text));
  }
  require_utf8(options.read.question, "--question");
  return reads;
}

int inspect(const InspectOptions& options, const Context& context) {
  const bool reading = shows_reading(options);
  for (const std::string& path : options.read.pictures) {  // before minutes of work, not after
    if (!std::ofstream(path, std::ios::app))
      throw Error(ErrorKind::io, str(path, ": cannot write the picture there"));
  }
  Loaded loaded = load(options.inputs, context);
  if (reading) return inspect_reading(options.read, loaded, context);
  if (loaded.recipe.ranked) return inspect_ranks(options.read.pictures, loaded, context);
  const auto selector = loaded.recipe.spec.make_selector();
  Timings timings;
  Session::Explanation explanation;
  prefill(loaded, selector.get(), &timings);
  compress(loaded, selector.get(), &explanation, &timings);
  const Survival survival = survival_of(loaded);
  const PictureText text = picture_text(loaded, survival);
  if (context.json) {
    std::printf("%s\n",
                survival_json(loaded, context, survival, explanation, timings).dump(2).c_str());
  } else {
    std::printf("%s\n%s\n\n", paint(1, Shade::strong, text.title).c_str(), text.subtitle.c_str());
    const Table table = survival.kv_heads() <= kWideHeads ? wide_table(survival, explanation)
                                                          : long_table(survival, explanation);
    std::fputs(table.text().c_str(), stdout);
    if (has_colour(1)) std::fputs(shaded_document(survival).c_str(), stdout);
  }
  for (const std::string& path : options.read.pictures)
    write_picture(path,
                  is_html(path) ? survival_html(survival, text) : survival_svg(survival, text));
  return kDone;
}

Action add(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  add_inputs(app, &options->inputs);
  app.add_option("--svg", options->read.pictures,
                 "write the picture; .html adds the document, word by word")
      ->type_name("FILE")
      ->allow_extra_args(false);
  app.add_option("-q,--question", options->read.question,
                 "for readkv: asked of the document, and its last token is the query whose reading "
                 "is shown; without it, the last token of the document is")
      ->type_name("TEXT");
  app.add_flag("--certificate", options->read.certificate,
               "for readkv: per layer the certified bound on |o - o_hat|^2 of that query, and the "
               "true error. Prompt and query run uncompressed, then each layer is coded and read "
               "by itself, so that errors do not add up from layer to layer; exit code 3 where a "
               "bound does not hold");
  return [options](const Context& context) { return inspect(*options, context); };
}

}  // namespace

extern constinit const Command inspect_command = {
    "inspect", "show what a method leaves of a document, or one query reads", add};

}  // namespace kvist
