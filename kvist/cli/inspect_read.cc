// SPDX-License-Identifier: MIT
// One layer at a time is coded, read, certified and forgotten.
#include "kvist/cli/inspect_read.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "kvist/cli/depths_svg.h"
#include "kvist/cli/query_row.h"
#include "kvist/cli/report.h"
#include "kvist/cli/terminal.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

using nlohmann::json;

// A layer as the query read it.
struct LayerView {
  bool coded = false;  // else it stays uncompressed
  ReadCounts trace;
  std::optional<LayerCertificate> certificate;
};

struct View {
  Depths depths;
  std::vector<LayerView> layers;
  Bytes bytes;

  double rate() const {
    ReadCounts sum;
    for (const LayerView& layer : layers) sum += layer.trace;
    return sum.bits_per_number();
  }
};

void view_layer(const ReadInspection& options, const Loaded& loaded, const LayerInput& input,
                ReadWorkspace& workspace, View& view) {
  const ReadPlan plan = at_layer(loaded.recipe.spec.reading()->plan, input.layer, input.n_layers);
  LayerView& seen = view.layers.emplace_back();
  Depths::Layer& depths = view.depths.layers.emplace_back();
  seen.coded = !is_protected(plan, input.layer, input.n_layers);
  if (!seen.coded) {
    view.bytes += loaded.session->prefix().bytes(input.layer);
    return;
  }
  CodedLayer coded = code_layer(input, input.heads, loaded.recipe.code->layer(input.layer), plan);
  RowReading row =
      read_row(coded, plan, input.q.data(), input.n_tokens, input.logit_scale, workspace);
  if (options.certificate) seen.certificate = certify_row(input, coded, plan, input.q.data(), row);
  seen.trace = row.trace;
  depths.keys = std::move(row.key_depths);
  depths.values = std::move(row.value_depths);
  coded.freeze();
  view.bytes += coded.bytes();
}

View view_of(const ReadInspection& options, Loaded& loaded) {
  const ModelInfo& info = loaded.model->info();
  View view;
  const ReadPlan plan = loaded.recipe.spec.reading()->plan;
  view.depths.width = plan.width;
  view.depths.n_tokens = loaded.session->n_prompt();
  view.depths.kv_heads = info.kv_heads;
  view.depths.head_dim = info.head_dim;
  for (int32_t id : loaded.ids) view.depths.pieces.push_back(loaded.tokenizer->piece(id));
  check_fits(loaded.session->prefix().shape(), info.n_layers, *loaded.recipe.code, plan);
  ReadWorkspace workspace;
  ProgressBar bar("reading layers", false);
  loaded.session->each_layer(
      [&](const LayerInput& input) { view_layer(options, loaded, input, workspace, view); },
      [&](const Progress& p) { bar.update(p.done, p.total, p.seconds, "layers"); });
  return view;
}

// The largest of a part's figure over the heads.
double largest(const LayerCertificate& layer, HeadCertificate::Part HeadCertificate::*part,
               double HeadCertificate::Part::*figure) {
  double most = 0;
  for (const HeadCertificate& head : layer.heads) most = std::max(most, head.*part.*figure);
  return most;
}

bool holds(const LayerCertificate& layer) {
  return layer.error <= layer.bound &&
         std::all_of(layer.heads.begin(), layer.heads.end(),
                     [](const HeadCertificate& head) { return head.error <= head.bound; });
}

std::vector<int> failures(const View& view) {
  std::vector<int> layers;
  for (size_t i = 0; i < view.layers.size(); ++i) {
    if (view.layers[i].certificate && !holds(*view.layers[i].certificate))
      layers.push_back(static_cast<int>(i));
  }
  return layers;
}

double ratio(const LayerCertificate& layer) { return layer.bound / layer.error; }

std::string figure(double x) { return fmt::format("{:.3g}", x); }

Table certificate_table(const View& view) {
  using Part = HeadCertificate::Part;
  Table table({"layer", "bound", "true error", "bound/error", "S_K", "S_V", "gamma_K", "gamma_V",
               "kappa_K", "kappa_V"});
  for (size_t i = 0; i < view.layers.size(); ++i) {
    if (!view.layers[i].coded) {
      table.add({str(i), "uncompressed", "", "", "", "", "", "", "", ""});
      continue;
    }
    const LayerCertificate& c = *view.layers[i].certificate;
    table.add({str(i), figure(c.bound), figure(c.error), figure(ratio(c)), figure(c.s_keys),
               figure(c.s_values), figure(largest(c, &HeadCertificate::keys, &Part::gamma)),
               figure(largest(c, &HeadCertificate::values, &Part::gamma)),
               figure(largest(c, &HeadCertificate::keys, &Part::kappa)),
               figure(largest(c, &HeadCertificate::values, &Part::kappa))});
  }
  return table;
}

// Bits of numbers that have a code: 0 where there are none.
double mean_keys(const View& view, size_t layer) {
  double sum = 0;
  for (int head = 0; head < view.depths.kv_heads; ++head)
    sum += view.depths.mean_keys(static_cast<int>(layer), head);
  return sum / view.depths.kv_heads;
}
double mean_values(const View& view, size_t layer) {
  double sum = 0;
  for (int head = 0; head < view.depths.kv_heads; ++head)
    sum += view.depths.mean_values(static_cast<int>(layer), head);
  return sum / view.depths.kv_heads;
}

Table depth_table(const View& view) {
  Table table({"layer", "key bits", "value bits", "payload read", "lines touched", "f16 reads",
               "payload / f16"});
  for (size_t i = 0; i < view.layers.size(); ++i) {
    const ReadCounts& t = view.layers[i].trace;
    if (!view.layers[i].coded) {
      table.add({str(i), "16", "16", "", "", "", "uncompressed"});
      continue;
    }
    const auto payload = static_cast<uint64_t>((t.key_bits + t.value_bits + 7) / 8 + t.dense_bytes);
    const auto dense = static_cast<uint64_t>(2 * t.numbers);
    table.add(
        {str(i), fmt::format("{:.2f}", mean_keys(view, i)),
         fmt::format("{:.2f}", mean_values(view, i)), human_bytes(payload),
         human_bytes(static_cast<uint64_t>(t.lines * 64 + t.dense_bytes)), human_bytes(dense),
         fmt::format("{:.1f}%", 100 * static_cast<double>(payload) / static_cast<double>(dense))});
  }
  return table;
}

json certificate_json(const LayerCertificate& c) {
  using Part = HeadCertificate::Part;
  json out = {{"bound", c.bound},  {"error", c.error},   {"ratio", ratio(c)},
              {"holds", holds(c)}, {"s_keys", c.s_keys}, {"s_values", c.s_values}};
  out["gamma_keys"] = largest(c, &HeadCertificate::keys, &Part::gamma);
  out["gamma_values"] = largest(c, &HeadCertificate::values, &Part::gamma);
  out["kappa_keys"] = largest(c, &HeadCertificate::keys, &Part::kappa);
  out["kappa_values"] = largest(c, &HeadCertificate::values, &Part::kappa);
  return out;
}

json view_json(const Loaded& loaded, const Context& context, const ReadInspection& options,
               const View& view, const Timings& timings) {
  json out = inspection_json(loaded, context, timings, view.bytes);
  out.erase("construct_ms");
  out["question"] = options.question.empty() ? json() : json(options.question);
  out["query_position"] = view.depths.n_tokens - 1;
  out["rate"] = view.rate();
  out["layers"] = json::array();
  for (size_t i = 0; i < view.layers.size(); ++i) {
    const LayerView& layer = view.layers[i];
    json line = {{"layer", i}, {"coded", layer.coded}};
    if (layer.coded) {
      line["mean_key_bits"] = mean_keys(view, i);
      line["mean_value_bits"] = mean_values(view, i);
      line["key_bits"] = layer.trace.key_bits;
      line["key_bits_budget"] = layer.trace.key_budget;
      line["value_bits"] = layer.trace.value_bits;
      line["value_bits_budget"] = layer.trace.value_budget;
      line["dense_bytes"] = layer.trace.dense_bytes;
      line["key_lines"] = layer.trace.key_lines;
      line["value_lines"] = layer.trace.lines - layer.trace.key_lines;
      if (layer.certificate) line["certificate"] = certificate_json(*layer.certificate);
    }
    out["layers"].push_back(line);
  }
  out["position_value_bits"] = view.depths.by_position();
  if (options.certificate) out["certificate_holds"] = failures(view).empty();
  return out;
}

PictureText picture_text(const Loaded& loaded, const ReadInspection& options, const View& view) {
  const ModelInfo& info = loaded.model->info();
  const std::string query = options.question.empty()
                                ? "the last token of the document"
                                : str("the last token of the question “",
                                      options.question.size() > 90 ? "…" : options.question, "”");
  return {str(loaded.recipe.spec.text, " reads ", fmt::format("{:.2f}", view.rate()), " of ",
              view.depths.width, " bits for one query"),
          str(info.name.empty() ? info.architecture : info.name, ", ",
              human_count(static_cast<uint64_t>(view.depths.n_tokens)), " tokens; the query is ",
              query)};
}

void print_verdict(const View& view) {
  double least = 0, most = 0;
  size_t n = 0;
  for (const LayerView& layer : view.layers) {
    if (!layer.certificate) continue;
    const double r = ratio(*layer.certificate);
    least = n == 0 ? r : std::min(least, r);
    most = n == 0 ? r : std::max(most, r);
    ++n;
  }
  if (failures(view).empty()) {
    std::printf("\nthe bound holds in all %zu layers, at %s to %s times the true error\n", n,
                figure(least).c_str(), figure(most).c_str());
  }
}

}  // namespace

int inspect_reading(const ReadInspection& options, Loaded& loaded, const Context& context) {
  if (!options.question.empty()) {
    const std::vector<int32_t> question = loaded.prompt->question(options.question, "");
    loaded.ids.insert(loaded.ids.end(), question.begin(), question.end());
  }
  Timings timings;
  prefill(loaded, Needs{.window_queries = 1}, &timings);
  calibrate(loaded);
  const View view = view_of(options, loaded);
  const PictureText text = picture_text(loaded, options, view);
  if (context.json) {
    std::printf("%s\n", view_json(loaded, context, options, view, timings).dump(2).c_str());
  } else {
    std::printf("%s\n%s\n\n", paint(1, Shade::strong, text.title).c_str(), text.subtitle.c_str());
    const Table table = options.certificate ? certificate_table(view) : depth_table(view);
    std::fputs(table.text().c_str(), stdout);
    if (options.certificate) print_verdict(view);
  }
  for (const std::string& path : options.pictures)
    write_picture(path,
                  is_html(path) ? depths_html(view.depths, text) : depths_svg(view.depths, text));
  const std::vector<int> failed = failures(view);
  for (int layer : failed)
    std::fprintf(stderr, "layer %d: the certificate's bound is below the true error\n", layer);
  return failed.empty() ? kDone : kBoundNotMet;
}

}  // namespace kvist
