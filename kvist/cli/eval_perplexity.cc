// SPDX-License-Identifier: MIT
// kvist eval perplexity: next-token distributions beside those of the uncompressed cache.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "kvist/cli/document.h"
#include "kvist/cli/equal_bytes.h"
#include "kvist/cli/eval.h"
#include "kvist/cli/eval_chart.h"
#include "kvist/cli/eval_report.h"
#include "kvist/cli/interrupt.h"
#include "kvist/cli/repeat.h"
#include "kvist/cli/report.h"
#include "kvist/cli/staged.h"
#include "kvist/cli/svg.h"
#include "kvist/cli/terminal.h"
#include "kvist/cli/texts.h"
#include "kvist/cli/version.h"
#include "kvist/core/error.h"
#include "kvist/core/sha256.h"
#include "kvist/eval/perplexity.h"
#include "kvist/kernels/targets.h"

namespace kvist {
namespace {

using Json = nlohmann::ordered_json;

struct Windows {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::string> names;  // of the documents; empty where they are one corpus
};

// Files in the order of their names, or of the SHA-256 of their names where the suite says so.
std::vector<std::string> files_of(const EvalOptions& options) {
  std::vector<std::string> files = text_files(options.texts);
  if (!options.hashed_order) return files;
  const auto hash = [](const std::string& file) {
    return sha256_hex(std::string_view(std::filesystem::path(file).stem().string()));
  };
  std::sort(files.begin(), files.end(),
            [&](const std::string& a, const std::string& b) { return hash(a) < hash(b); });
  return files;
}

// One window from the start of every document that is long enough, or the corpus cut into windows.
Windows windows_of(const EvalOptions& options, const Tokenizer& tokenizer) {
  Windows windows;
  const auto length = static_cast<size_t>(options.tokens);
  const auto most = static_cast<size_t>(options.documents);
  const std::vector<int32_t> bos = tokenizer.bos();
  std::vector<std::vector<int32_t>> corpus;
  for (const std::string& file : files_of(options)) {
    if (windows.tokens.size() == most) break;
    std::vector<int32_t> tokens = tokenizer.encode(read_document(file), false);
    if (options.protocol == "windowed") {
      corpus.push_back(std::move(tokens));
      continue;
    }
    tokens.insert(tokens.begin(), bos.begin(), bos.end());
    if (tokens.size() < length) continue;
    tokens.resize(length);
    windows.tokens.push_back(std::move(tokens));
    windows.names.push_back(std::filesystem::path(file).stem().string());
  }
  if (options.protocol == "windowed") {
    windows.tokens = corpus_windows(corpus, options.tokens, bos);
    windows.tokens.resize(std::min(windows.tokens.size(), most));
  }
  if (windows.tokens.empty()) {
    throw Error(ErrorKind::invalid_argument,
                str("no document of --text has ", options.tokens, " tokens (--tokens)"));
  }
  return windows;
}

// Of each window's token ids.
std::vector<std::string> hashes_of(const std::vector<std::vector<int32_t>>& windows) {
  std::vector<std::string> hashes;
  for (const auto& window : windows) hashes.push_back(sha256_hex(std::span<const int32_t>(window)));
  return hashes;
}

std::string name_of(const Recipe& contestant) {
  return contestant.spec.none() ? "none" : contestant.spec.text;
}

double factor(const PerplexityResult& r) {
  return static_cast<double>(r.plain_bytes) /
         static_cast<double>(std::max<uint64_t>(1, r.bytes.stored()));
}

Json json_of(const Mean& m) { return {{"mean", m.mean}, {"se", m.se}}; }
Json json_of(const Spread& s) { return {{"median", s.median}, {"min", s.least}, {"max", s.most}}; }

// Of all windows: times as medians, shares as means, bytes as the most.
struct Costs {
  Spread ttft_ms, construct_ms, decode_ms;
  ReadShare read;
  uint64_t construct_bytes = 0, answering_bytes = 0, peak_rss_bytes = 0;
};

Costs costs_of(const PerplexityResult& r) {
  Costs out;
  std::vector<double> ttft, construct, decode;
  const auto n = static_cast<double>(r.costs.size());
  for (const WindowCost& one : r.costs) {
    ttft.push_back(one.ttft_ms);
    construct.push_back(one.construct_ms);
    decode.push_back(one.decode_ms);
    out.read.logical += one.read.logical / n;
    out.read.touched += one.read.touched / n;
    out.construct_bytes = std::max(out.construct_bytes, one.construct_bytes);
    out.answering_bytes = std::max(out.answering_bytes, one.answering_bytes);
    out.peak_rss_bytes = std::max(out.peak_rss_bytes, one.peak_rss_bytes);
  }
  out.ttft_ms = spread_of(ttft);
  out.construct_ms = spread_of(construct);
  out.decode_ms = spread_of(decode);
  return out;
}

// Mean KL of targets that lie at about the same place in their window.
std::vector<double> kl_by_position(const PerplexityResult& r, size_t n_windows) {
  constexpr size_t kBins = 32;
  const auto values = r.stats.kl_values();
  const size_t per_window = values.size() / n_windows, bins = std::min(kBins, per_window);
  std::vector<double> sums(bins, 0.0), counts(bins, 0.0);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t bin = i % per_window * bins / per_window;
    sums[bin] += values[i];
    counts[bin] += 1;
  }
  for (size_t bin = 0; bin < bins; ++bin) sums[bin] /= counts[bin];
  return sums;
}

Json json_of(const Recipe& contestant, const PerplexityResult& r, const Interval& change,
             size_t n_windows) {
  const LogitStats& s = r.stats;
  const Costs costs = costs_of(r);
  Json kl = json_of(s.kl()), dp = json_of(s.dp());
  kl["median"] = s.kl_percentile(0.5);
  kl["min"] = s.kl_percentile(0);
  kl["max"] = s.kl_percentile(1);
  for (double q : {0.1, 1.0, 5.0, 10.0, 90.0, 95.0, 99.0, 99.9})
    kl[fmt::format("p{:g}", q)] = s.kl_percentile(q / 100);
  for (double q : {0.1, 1.0, 5.0, 10.0, 25.0, 75.0, 90.0, 95.0, 99.0, 99.9})
    dp[fmt::format("p{:g}", q)] = s.dp_percentile(q / 100);
  return {{"method", name_of(contestant)},
          {"targets", s.targets()},
          {"perplexity", s.perplexity()},
          {"base_perplexity", s.base_perplexity()},
          {"perplexity_change",
           {{"mean", change.mean},
            {"low", change.low},
            {"high", change.high},
            {"documents", change.units},
            {"replicates", change.replicates},
            {"seed", change.seed}}},
          {"log_ratio", json_of(s.log_ratio())},
          {"nll_correlation", s.nll_correlation()},
          {"kl", kl},
          {"kl_by_position", kl_by_position(r, n_windows)},
          {"dp", dp},
          {"dp_rms", json_of(s.dp_rms())},
          {"same_top", s.same_top().mean},
          {"same_top_se", s.same_top().se},
          {"same_sampled", s.same_sampled()},
          {"same_sampled_reference", s.base_same_sampled()},
          {"stored_bytes", r.bytes.stored()},
          {"allocated_bytes", r.bytes.allocated},
          {"plain_bytes", r.plain_bytes},
          {"retained", 1 / factor(r)},
          {"read_bits", r.reads.bits_per_number()},
          {"coefficient_bits", r.reads.ranked.bits()},
          {"read_share", costs.read.logical},
          {"touched_share", costs.read.touched},
          {"construct_bytes", costs.construct_bytes},
          {"answering_bytes", costs.answering_bytes},
          {"peak_rss_bytes", costs.peak_rss_bytes},
          {"ttft_ms", json_of(costs.ttft_ms)},
          {"compression_ms", json_of(costs.construct_ms)},
          {"decode_ms", json_of(costs.decode_ms)}};
}

// Of a number; where tokens have ranks, of a stored coefficient.
std::string bits_read(const ReadCounts& reads) {
  if (reads.ranked.coefficients > 0) return fmt::format("{:.2f} of a coef.", reads.ranked.bits());
  return reads.numbers == 0 ? "–" : fmt::format("{:.2f}", reads.bits_per_number());
}

// What was measured, for all ways to show it.
struct Measured {
  Json run;
  std::vector<Recipe> contestants;  // as the results: the first is uncompressed
  std::vector<PerplexityResult> results;
  std::vector<Interval> changes;
  size_t n_windows = 0;

  Json json() const {
    Json out = run;
    Json rows = Json::array();
    for (size_t i = 0; i < results.size(); ++i)
      rows.push_back(json_of(contestants[i], results[i], changes[i], n_windows));
    out["rows"] = rows;
    return out;
  }
  static std::vector<std::string> head() {
    return {"method", "perplexity", "change", "95 %",    "KL",          "±",
            "KL p99", "same top",   "factor", "read",    "touched",     "bits read",
            "bytes",  "answering",  "RSS",    "TTFT ms", "compress ms", "decode ms"};
  }
  // Those that fit a terminal.
  static std::vector<std::string> narrow(const std::vector<std::string>& row) {
    std::vector<std::string> out;
    for (size_t at : {0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 17}) out.push_back(row[at]);
    return out;
  }
  std::vector<std::string> row(size_t i) const {
    const PerplexityResult& r = results[i];
    const Costs costs = costs_of(r);
    const double change = r.stats.perplexity() / r.stats.base_perplexity() - 1;
    const std::string dash = "–";
    return {name_of(contestants[i]),
            fmt::format("{:.3f}", r.stats.perplexity()),
            i == 0 ? dash : fmt::format("{:+.2f} %", 100 * change),
            i == 0 ? dash
                   : fmt::format("[{:+.2f}, {:+.2f}]", 100 * changes[i].low, 100 * changes[i].high),
            fmt::format("{:.5f}", r.stats.kl().mean),
            fmt::format("{:.5f}", r.stats.kl().se),
            fmt::format("{:.4f}", r.stats.kl_percentile(0.99)),
            fmt::format("{:.1f} %", 100 * r.stats.same_top().mean),
            fmt::format("{:.2f}x", factor(r)),
            fmt::format("{:.1f} %", 100 * costs.read.logical),
            fmt::format("{:.1f} %", 100 * costs.read.touched),
            bits_read(r.reads),
            human_bytes(r.bytes.stored()),
            bytes_or_dash(costs.answering_bytes),
            bytes_or_dash(costs.peak_rss_bytes),
            ms_or_dash(costs.ttft_ms.median),
            i == 0 ? dash : ms_or_dash(costs.construct_ms.median),
            ms_or_dash(costs.decode_ms.median)};
  }
  std::string title() const {
    return str(run.at("suite").get<std::string>(), ", ", n_windows, " windows of ",
               run.at("tokens").get<int>(), " tokens, uncompressed perplexity ",
               fmt::format("{:.3f}", results.front().stats.base_perplexity()));
  }
};

constexpr const char* kNote =
    "KL: of the next token's distribution from the uncompressed one, in nats, mean ± standard "
    "error "
    "over tokens. Change: of perplexity, with the 95 % interval of a bootstrap over windows. The "
    "model "
    "may have read these texts: compare methods, not corpora. Read: bytes of keys and values "
    "fetched "
    "for the scored tokens over what f16 would have fetched; touched: the same of the 64-byte "
    "lines, "
    "metadata and tables that these lie in. Answering: cache, suffix and workspace as our "
    "allocators "
    "count them; RSS: the process from compression on, weights and uncompressed prefix included. "
    "TTFT: "
    "prefill, compression and one token after it; decode: up to 31 tokens one by one; medians.";

std::string markdown(const Measured& m) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string out = "|";
    for (const std::string& cell : cells) out += str(" ", cell, " |");
    return out + "\n";
  };
  std::string out = str("# ", m.title(), "\n\n");
  out += line(Measured::head()) + line(std::vector<std::string>(Measured::head().size(), "---"));
  for (size_t i = 0; i < m.results.size(); ++i) out += line(m.row(i));
  return out + "\n" + kNote + "\n";
}

// A power of ten for charts; what is less lies at the edge.
double decimal_log(double kl) { return std::log10(std::max(kl, 1e-5)); }

std::string page(const Measured& m) {
  std::vector<std::string> names;
  Chart size, along;
  size.title = "divergence against size";
  size.x = {"bytes stored, of f16", 0, 1, true};
  along.title = "divergence along the text";
  along.x = {
      "tokens after the compressed half", 0,
      static_cast<double>(m.results.front().stats.targets()) / static_cast<double>(m.n_windows),
      false};
  along.dots = false;
  double low = 0, high = -5;
  for (size_t i = 0; i < m.results.size(); ++i) {
    const PerplexityResult& r = m.results[i];
    if (m.contestants[i].spec.none()) continue;
    const std::string family = family_of(name_of(m.contestants[i]));
    auto at = std::find(names.begin(), names.end(), family);
    if (at == names.end()) {
      size.lines.push_back({family, chart_colour(names.size()), {}});
      at = names.insert(names.end(), family);
    }
    ChartLine& line = size.lines[static_cast<size_t>(at - names.begin())];
    line.points.push_back(
        {1 / factor(r), decimal_log(r.stats.kl().mean),
         str(name_of(m.contestants[i]), ": KL ", fmt::format("{:.4f}", r.stats.kl().mean))});
    ChartLine path{name_of(m.contestants[i]), line.colour, {}};
    const auto bins = kl_by_position(r, m.n_windows);
    for (size_t b = 0; b < bins.size(); ++b) {
      const double y = decimal_log(bins[b]);
      path.points.push_back(
          {(static_cast<double>(b) + 0.5) * along.x.most / static_cast<double>(bins.size()), y,
           ""});
      low = std::min(low, std::floor(y));
      high = std::max(high, std::ceil(y));
    }
    along.lines.push_back(std::move(path));
  }
  size.y = along.y = {"", low, std::max(high, low + 1), false, true};
  for (ChartLine& line : size.lines) {
    std::sort(line.points.begin(), line.points.end(),
              [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
  }
  std::string out = page_open(m.title());
  out +=
      str("<h1>", svg::escaped(m.run.at("suite").get<std::string>()), "</h1>\n<p class=\"note\">",
          svg::escaped(m.title()), "</p>\n", legend(names), "<div class=\"charts\"><figure>",
          chart_svg(size), "</figure><figure>", chart_svg(along), "</figure></div>\n");
  out += "<div class=\"wide\"><table><tr>";
  for (const std::string& cell : Measured::head()) out += str("<th>", svg::escaped(cell), "</th>");
  out += "</tr>\n";
  for (size_t i = 0; i < m.results.size(); ++i) {
    out += "<tr>";
    for (const std::string& cell : m.row(i)) out += str("<td>", svg::escaped(cell), "</td>");
    out += "</tr>\n";
  }
  return out +
         str("</table></div>\n<p class=\"note\">", svg::escaped(kNote), "</p></body></html>\n");
}

void show(const Measured& m, const EvalOptions& options, const Context& context) {
  if (!options.folder.empty()) {
    Staged staged(options.folder);
    staged.text("results.json", m.json().dump(2) + "\n");
    staged.text("table.md", markdown(m));
    staged.text("report.html", page(m));
    staged.commit();
  }
  std::string text;
  if (context.json) {
    text = m.json().dump(2) + "\n";
  } else {
    Table table(Measured::narrow(Measured::head()));
    for (size_t i = 0; i < m.results.size(); ++i) table.add(Measured::narrow(m.row(i)));
    text = str(m.title(), "\n", table.text());
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

int eval_perplexity(const EvalOptions& options, const Context& context) {
  if (options.texts.empty())
    throw Error(ErrorKind::invalid_argument, "--text is missing: documents to measure on");
  if (!options.at_bytes.empty() && options.protocol == "causal") {
    throw Error(ErrorKind::invalid_argument,
                "--at-bytes compares what is stored of a prefix: it goes with --protocol prefix or "
                "windowed");
  }
  PerplexityHooks hooks;
  hooks.stop = &watch_interrupt();
  Measured m;
  std::vector<Spec> specs = specs_of(options);
  const std::string path = model_path(options.inputs);
  const auto model = Model::load(path, model_options(options.inputs, context));
  std::erase_if(specs, [](const Spec& spec) { return spec.none(); });
  const auto tokenizer = Tokenizer::load(path);
  const Prompt prompt(*tokenizer, true);
  hooks.repeats = [&](std::span<const int32_t> ids, int chunk) {
    return repeat_requests(*tokenizer, prompt, ids, chunk);
  };
  const Windows windows = windows_of(options, *tokenizer);
  m.n_windows = windows.tokens.size();
  std::optional<EqualBytes> equal;
  if (!options.at_bytes.empty()) {
    const std::span<const int32_t> window = windows.tokens.front();
    equal = at_equal_bytes(*model, *context.pool, options.inputs, specs, options.at_bytes,
                           window.first(window.size() / 2));
    specs = equal->specs;
  }
  std::vector<Recipe> compressed;
  for (const Spec& spec : specs)
    compressed.push_back(load_recipe(spec, options.inputs, model->info()));
  m.contestants = compressed;
  m.contestants.insert(m.contestants.begin(), {parse_spec("none"), nullptr, nullptr});
  {
    ProgressBar bar("measuring", false);
    hooks.on_progress = [&](const Progress& p) {
      bar.update(p.done, p.total, p.seconds, "tokens");
    };
    m.results = perplexity(*model, *context.pool, session_options(options.inputs),
                           options.protocol == "causal" ? Protocol::causal : Protocol::prefix,
                           compressed, windows.tokens, hooks);
  }
  if (equal) {
    std::vector<std::string> names;
    std::vector<uint64_t> bytes;
    for (size_t i = 1; i < m.results.size(); ++i) {
      names.push_back(name_of(m.contestants[i]));
      bytes.push_back(m.results[i].bytes.stored());
    }
    require_equal_bytes(equal->target, names, bytes);
  }
  for (const PerplexityResult& r : m.results)
    m.changes.push_back(bootstrap_perplexity_change(r.documents, options.replicates, 1));
  m.run = {{"suite", options.suite},
           {"protocol", options.protocol},
           {"kvist", version()},
           {"commit", commit()},
           {"model", path},
           {"model_hash", model->info().hash},
           {"threads", context.threads},
           {"simd_target", kernels::current_target()},
           {"documents", windows.tokens.size()},
           {"names", windows.names},
           {"windows_sha256", hashes_of(windows.tokens)},
           {"calibration_sha256", measured_hashes(options.inputs, specs, model->info())},
           {"cache_type", options.inputs.cache_type},
           {"precision", options.inputs.precision},
           {"tokens", options.tokens}};
  if (equal) m.run["at_bytes"] = {{"asked", options.at_bytes}, {"target", equal->target}};
  show(m, options, context);
  return kDone;
}

}  // namespace kvist
