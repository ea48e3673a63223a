// SPDX-License-Identifier: MIT
// Pairs first, then means and intervals over units: contexts with all their questions.
#include "kvist/eval/summary.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "kvist/core/error.h"
#include "kvist/eval/logit_stats.h"
#include "kvist/eval/runner.h"
#include "kvist/eval/score.h"

namespace kvist {
namespace {

constexpr size_t kMostListed = 5;
constexpr size_t kLeastStratum = 4;

using CellKey = std::tuple<std::string, std::string, std::optional<int>>;
// Of one method, by the row's name.
using ByRow = std::map<std::string, const Prediction*>;

CellKey cell_of(const EvalRow& row) { return {row.suite, row.task, row.length}; }

// What is wrong, gathered so that the message can list rows.
class Complaints {
 public:
  void add(const std::string& row, const std::string& what) {
    if (listed_.size() < kMostListed) listed_.push_back(str(row, ": ", what));
    ++count_;
  }
  void raise() const {
    if (count_ == 0) return;
    std::string text = str(count_, " rows do not pair with those of another method");
    for (const std::string& one : listed_) text += str("\n  ", one);
    if (count_ > listed_.size()) text += str("\n  and ", count_ - listed_.size(), " more");
    throw Error(ErrorKind::corrupt, text);
  }

 private:
  std::vector<std::string> listed_;
  size_t count_ = 0;
};

class Summarizer {
 public:
  Summarizer(std::span<const EvalRow> rows, std::span<const Prediction> predictions,
             const SummaryOptions& options)
      : rows_(rows), options_(options) {
    order_ = {kUncompressed, kFloor};
    for (const std::string& method : options.methods)
      if (method != kUncompressed) order_.push_back(method);
    same_.insert(options.same.begin(), options.same.end());
    collect(predictions);
    check();
    for (const EvalRow& row : rows) {
      auto& cell = cells_[cell_of(row)];
      if (cell.empty()) cell_order_.push_back(cell_of(row));
      cell.push_back(&row);
    }
  }

  Summary make() {
    Summary out;
    for (const CellKey& key : cell_order_) out.cells.push_back(cell(cells_[key]));
    if (out.cells.size() > 1) add_overall(&out);
    for (const std::string& method : order_) {
      for (const EvalRow& row : rows_) {
        const Prediction& p = *found_[method][row.name()];
        Scored& scored = out.scored.emplace_back(Scored{&row, &p, score(row, p), {}});
        const auto names = row.metrics();
        for (size_t i = 1; i < names.size(); ++i)
          scored.other.push_back(find_metric(names[i]).score(p.text, row));
      }
    }
    return out;
  }

 private:
  void collect(std::span<const Prediction> predictions) {
    std::map<std::string, bool> wanted;
    for (const EvalRow& row : rows_) wanted[row.name()] = true;
    for (const Prediction& p : predictions) {
      if (p.mode != options_.mode || p.boundary != options_.boundary) continue;
      const std::string row =
          str(p.suite, "/", p.task, "/", p.length ? str(*p.length) : "-", "/", p.id);
      if (!wanted.contains(row)) continue;
      const auto [before, fresh] = found_[p.method].emplace(row, &p);
      if (!fresh)
        throw Error(ErrorKind::corrupt, str(p.name(),
                                            " was predicted twice: by two models, or "
                                            "with two seeds; report them apart"));
    }
  }

  void check() {
    Complaints complaints;
    for (const EvalRow& row : rows_) {
      const std::string wanted = fingerprint(row);
      const Prediction* first = nullptr;
      for (const std::string& method : order_) {
        const auto found = found_[method].find(row.name());
        if (found == found_[method].end()) {
          complaints.add(row.name(), str("no prediction by ", method));
          continue;
        }
        const Prediction& p = *found->second;
        if (p.answer_fingerprint != wanted)
          complaints.add(row.name(), str("asked otherwise of ", method, ": another fingerprint"));
        if (method == kFloor) continue;  // has no context
        if (first == nullptr) first = &p;
        if (same_.contains(method) && p.token_ids != first->token_ids)
          complaints.add(row.name(), str(method, " removes nothing and answers otherwise than ",
                                         first->method));
        if (p.context_hash != first->context_hash || p.question_hash != first->question_hash)
          complaints.add(row.name(),
                         str("other token ids for ", method, " than for ", first->method));
      }
    }
    complaints.raise();
  }

  static double score(const EvalRow& row, const Prediction& p) {
    return find_metric(row.metrics().front()).score(p.text, row);
  }

  // Differences of two methods, one a context, by what meta.stratum says: rows that were balanced
  // over something are resampled within it, unless so few are alike that hardly anything could
  // vary.
  Strata differences(const std::vector<const EvalRow*>& rows, const std::string& a,
                     const std::string& b) {
    struct Unit {
      size_t stratum;
      double sum = 0;
      int n = 0;
    };
    std::map<std::string, size_t> at, stratum_at;
    std::vector<Unit> units;
    for (const EvalRow* row : rows) {
      const auto [unit, fresh] = at.emplace(row->group, units.size());
      if (fresh) {
        const auto stratum = row->meta.find("stratum");
        const std::string name = stratum == row->meta.end() ? "" : stratum->dump();
        units.push_back({stratum_at.emplace(name, stratum_at.size()).first->second});
      }
      Unit& one = units[unit->second];
      one.sum += score(*row, *found_[a][row->name()]) - score(*row, *found_[b][row->name()]);
      ++one.n;
    }
    Strata out(stratum_at.size());
    for (const Unit& one : units) out[one.stratum].push_back(one.sum / one.n);
    const bool few = std::any_of(
        out.begin(), out.end(), [](const auto& stratum) { return stratum.size() < kLeastStratum; });
    if (!few) return out;
    Strata pooled(1);
    for (const Unit& one : units) pooled[0].push_back(one.sum / one.n);
    return pooled;
  }

  Interval interval(const std::vector<Strata>& cells) const {
    return stratified_bootstrap(cells, options_.replicates, options_.seed);
  }

  MethodSummary of(const std::vector<const EvalRow*>& rows, const std::string& method) {
    MethodSummary m;
    m.method = method;
    m.rows = static_cast<int>(rows.size());
    const double n = m.rows;
    std::vector<double> ttft, decode, construct, equal;
    std::map<std::string, double> other;
    for (const EvalRow* row : rows) {
      const Prediction& p = *found_[method][row->name()];
      const Prediction& base = *found_[kUncompressed][row->name()];
      m.score += score(*row, p) / n;
      const auto names = row->metrics();
      for (size_t i = 1; i < names.size(); ++i)
        other[names[i]] += find_metric(names[i]).score(p.text, *row) / n;
      m.n_kept += p.n_kept / n;
      if (p.reference_bytes > 0) {
        m.retained +=
            static_cast<double>(p.stored_bytes) / static_cast<double>(p.reference_bytes) / n;
      }
      m.read_share += p.read_share / n;
      m.touched_share += p.touched_share / n;
      m.construct_bytes = std::max(m.construct_bytes, p.construct_bytes);
      m.answering_bytes = std::max(m.answering_bytes, p.answering_bytes);
      m.peak_rss_bytes = std::max(m.peak_rss_bytes, p.peak_rss_bytes);
      m.stored_bytes += static_cast<double>(p.stored_bytes) / n;
      m.allocated_bytes += static_cast<double>(p.allocated_bytes) / n;
      ttft.push_back(p.ttft_ms());
      decode.push_back(p.decode_ms);
      construct.push_back(p.construct_ms - p.prefill_ms);
      m.one_token += (p.token_ids.size() <= 1) / n;
      m.same_words += (p.token_ids == base.token_ids) / n;
      const auto end = std::mismatch(p.token_ids.begin(), p.token_ids.end(), base.token_ids.begin(),
                                     base.token_ids.end());
      equal.push_back(static_cast<double>(end.first - p.token_ids.begin()));
    }
    m.other.assign(other.begin(), other.end());
    m.ttft_ms = spread_of(ttft);
    m.decode_ms = spread_of(decode);
    m.construct_ms = spread_of(construct);
    m.first_difference = percentile(equal, 0.5);
    return m;
  }

  void compare(MethodSummary* m, const std::vector<Strata>& cells) const {
    m->change = interval(cells);
    for (const Strata& cell : cells) {
      for (const auto& stratum : cell) {
        for (double d : stratum) {
          m->wins += d > 0;
          m->losses += d < 0;
          m->ties += d == 0;
        }
      }
    }
    m->sign_p = sign_test(m->wins, m->losses);
  }

  CellSummary cell(const std::vector<const EvalRow*>& rows) {
    CellSummary out;
    out.suite = rows.front()->suite;
    out.task = rows.front()->task;
    out.length = rows.front()->length;
    out.metric = rows.front()->metrics().front();
    out.above_floor = interval({differences(rows, kUncompressed, kFloor)});
    out.measurable = out.above_floor.low > 0;
    for (const std::string& method : order_) {
      MethodSummary m = of(rows, method);
      if (method != kUncompressed) compare(&m, {differences(rows, method, kUncompressed)});
      out.methods.push_back(std::move(m));
    }
    if (out.measurable) set_quality(&out.methods);
    return out;
  }

  static void set_quality(std::vector<MethodSummary>* methods) {
    const double ceiling = (*methods)[0].score, floor = (*methods)[1].score;
    for (MethodSummary& m : *methods) m.kept_quality = (m.score - floor) / (ceiling - floor);
  }

  void add_overall(Summary* out) {
    std::vector<CellKey> measurable;
    for (const CellSummary& one : out->cells) {
      if (one.measurable) {
        measurable.emplace_back(one.suite, one.task, one.length);
      } else {
        out->left_out.push_back(one.name());
      }
    }
    if (measurable.empty()) return;
    std::vector<const EvalRow*> rows;
    for (const CellKey& key : measurable)
      rows.insert(rows.end(), cells_[key].begin(), cells_[key].end());
    for (const std::string& method : order_) {
      MethodSummary m = of(rows, method);
      m.score = 0;  // cells count alike, whatever their number of rows
      std::vector<Strata> cells;
      for (const CellKey& key : measurable) {
        m.score += of(cells_[key], method).score / static_cast<double>(measurable.size());
        cells.push_back(differences(cells_[key], method, kUncompressed));
      }
      if (method != kUncompressed) compare(&m, cells);
      out->overall.push_back(std::move(m));
    }
    set_quality(&out->overall);
  }

  std::span<const EvalRow> rows_;
  const SummaryOptions& options_;
  std::vector<std::string> order_;      // methods
  std::set<std::string> same_;          // methods that remove nothing
  std::map<std::string, ByRow> found_;  // by method
  std::map<CellKey, std::vector<const EvalRow*>> cells_;
  std::vector<CellKey> cell_order_;
};

}  // namespace

std::string CellSummary::name() const {
  return str(suite == task ? task : str(suite, "/", task), length ? str(" at ", *length) : "");
}

Summary summarize(std::span<const EvalRow> rows, std::span<const Prediction> predictions,
                  const SummaryOptions& options) {
  return Summarizer(rows, predictions, options).make();
}

}  // namespace kvist
