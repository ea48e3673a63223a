// SPDX-License-Identifier: MIT
// Groups of rows that share their context's ids, and the order in which they are asked.
#include "kvist/eval/runner.h"

#include <chrono>
#include <map>

#include "kvist/core/error.h"
#include "kvist/core/sha256.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;

// A row as it is put to the subject.
struct Asked {
  const EvalRow* row;
  PromptIds ids;
  Prediction stub;  // all but the method and what comes out
};

struct Group {
  std::vector<Asked> rows;  // of one context
  std::vector<Spec> methods;
  bool floor = false;
};

class Run {
 public:
  Run(Subject& subject, const RunPlan& plan, PredictionLog& log, const RunHooks& hooks)
      : subject_(subject), plan_(plan), log_(log), hooks_(hooks), hash_(subject.model_hash()) {}

  void add(std::span<const EvalRow> rows, std::vector<Spec> methods, bool floor) {
    std::map<std::string, size_t> at;
    const size_t first = groups_.size();
    for (const EvalRow& row : rows) {
      Asked asked = prepare(row, floor);
      const auto [found, fresh] = at.emplace(asked.stub.context_hash, first + at.size());
      if (fresh) groups_.push_back({{}, methods, floor});
      groups_[found->second].rows.push_back(std::move(asked));
    }
    total_ += static_cast<int>(rows.size() * methods.size());
  }

  RunSeconds all() {
    for (const Group& group : groups_) {
      for (const Asked& asked : group.rows)
        for (const Spec& spec : group.methods)
          skipped_ += log_.finished(stub(group, asked, spec)) != nullptr;
    }
    begin_ = Clock::now();
    for (const Group& group : groups_) {
      try {
        ask(group);
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::interrupted || error.kind() == ErrorKind::io) throw;
        throw Error(error.kind(), str(group.rows.front().row->name(), ": ", error.what()));
      }
    }
    return spent_;
  }

 private:
  Asked prepare(const EvalRow& row, bool floor) const {
    Asked asked{&row, {}, {}};
    if (floor) {
      EvalRow empty = row;
      empty.context.clear();
      asked.ids = subject_.prompt(empty, plan_.mode);
    } else {
      asked.ids = subject_.prompt(row, plan_.mode);
    }
    if (plan_.boundary == Boundary::dense_prefill) {
      auto& [context, question] = asked.ids;
      context.insert(context.end(), question.begin(), question.end());
      question.clear();
    }
    Prediction& p = asked.stub;
    p.model = hash_;
    p.suite = row.suite;
    p.task = row.task;
    p.id = row.id;
    p.length = row.length;
    p.mode = mode_text(plan_);
    p.boundary = name(plan_.boundary);
    p.seed = plan_.seed;
    p.n_context = static_cast<int>(asked.ids.context.size());
    p.n_prompt = p.n_context + static_cast<int>(asked.ids.question.size());
    p.context_hash = sha256_hex(asked.ids.context);
    p.question_hash = sha256_hex(asked.ids.question);
    p.answer_fingerprint = fingerprint(row);
    return asked;
  }

  static std::string method_name(const Group& group, const Spec& spec) {
    return group.floor ? kFloor : spec.none() ? kUncompressed : spec.text;
  }

  Prediction stub(const Group& group, const Asked& asked, const Spec& spec) const {
    Prediction p = asked.stub;
    p.method = method_name(group, spec);
    return p;
  }

  void ask(const Group& group) {
    std::vector<Spec> open;  // methods that some row still lacks
    for (const Spec& spec : group.methods) {
      bool lacks = false;
      for (const Asked& asked : group.rows)
        lacks |= log_.finished(stub(group, asked, spec)) == nullptr;
      if (lacks) open.push_back(spec);
    }
    if (open.empty()) return;
    auto begin = Clock::now();
    const double prefill_ms = subject_.read(group.rows.front().ids.context, open, hooks_.stop);
    spent_.prefills += prefill_ms / 1e3;
    spent_.methods += seconds_since(begin) - prefill_ms / 1e3;
    for (size_t i = 0; i < open.size(); ++i) {
      check_stop();
      begin = Clock::now();
      const Placed placed = subject_.place(i);
      spent_.methods += seconds_since(begin);
      require_budget(open[i], placed, static_cast<int>(group.rows.front().ids.context.size()));
      const uint64_t digest = subject_.digest();
      for (const Asked& asked : group.rows) {
        check_stop();
        Prediction p = stub(group, asked, open[i]);
        if (log_.finished(p) != nullptr) continue;
        begin = Clock::now();
        fill(&p, placed, prefill_ms,
             subject_.ask(asked.ids.question, asked.row->max_new_tokens, hooks_.stop));
        spent_.answers += seconds_since(begin);
        ++spent_.n_answers;
        if (subject_.digest() != digest) {
          throw Error(ErrorKind::corrupt, str("the cache of ", p.method, " changed while ",
                                              asked.row->name(), " was asked"));
        }
        log_.append(std::move(p));
        ++done_;
        tell();
      }
      subject_.restore();
    }
  }

  // A method keeps exactly what its budget says.
  static void require_budget(const Spec& spec, const Placed& placed, int n_tokens) {
    int64_t kept = 0;
    for (const auto& layer : placed.kept)
      for (int n : layer) kept += n;
    const PromptShape shape{static_cast<int>(placed.kept.size()),
                            placed.kept.empty() ? 0 : static_cast<int>(placed.kept[0].size()),
                            n_tokens};
    const int64_t expected = spec.kept(shape);
    if (kept != expected) {
      throw Error(ErrorKind::corrupt, str(spec.text, " left ", kept, " entries of ",
                                          shape.entries(), ", but its budget is ", expected));
    }
  }

  void fill(Prediction* p, const Placed& placed, double prefill_ms, Reply reply) const {
    p->text = std::move(reply.text);
    p->token_ids = std::move(reply.token_ids);
    p->stop = std::move(reply.stop);
    p->kept = placed.kept;
    double sum = 0, heads = 0;
    for (const auto& layer : placed.kept) {
      for (int n : layer) sum += n;
      heads += static_cast<double>(layer.size());
    }
    p->n_kept = heads == 0 ? 0 : sum / heads;
    p->stored_bytes = placed.bytes.stored();
    p->allocated_bytes = placed.bytes.allocated;
    p->reference_bytes = subject_.reference_bytes(p->n_context);
    p->read_share = reply.read_share;
    p->touched_share = reply.touched_share;
    p->construct_bytes = placed.construct_bytes;
    p->answering_bytes = reply.answering_bytes;
    p->peak_rss_bytes = reply.peak_rss_bytes;
    p->prefill_ms = prefill_ms;
    p->construct_ms = prefill_ms + placed.construct_ms;
    p->first_ms = reply.first_ms;
    p->decode_ms = reply.decode_ms;
  }

  void check_stop() const {
    if (hooks_.stop != nullptr && hooks_.stop->load()) {
      throw Error(ErrorKind::interrupted, str("stopped after ", done_ + skipped_, " of ", total_,
                                              " answers; the same command goes on from there"));
    }
  }

  // The rate is that of this run: what was finished before took no time.
  void tell() const {
    if (!hooks_.on_progress) return;
    hooks_.on_progress(done_, total_ - skipped_, seconds_since(begin_));
  }

  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  Subject& subject_;
  const RunPlan& plan_;
  PredictionLog& log_;
  const RunHooks& hooks_;
  std::string hash_;
  std::vector<Group> groups_;
  int total_ = 0, done_ = 0, skipped_ = 0;  // answers; skipped: finished by an earlier run
  Clock::time_point begin_;
  RunSeconds spent_;
};

}  // namespace

const char* name(Mode mode) { return mode == Mode::aware ? "aware" : "agnostic"; }
const char* name(Boundary boundary) {
  return boundary == Boundary::dense_prefill ? "dense-prefill" : "compressed-question";
}
std::string mode_text(const RunPlan& plan) {
  return plan.pin_tail == 0 ? name(plan.mode) : str(name(plan.mode), ", tail of ", plan.pin_tail);
}

RunSeconds run_rows(std::span<const EvalRow> rows, Subject& subject, const RunPlan& plan,
                    PredictionLog& log, const RunHooks& hooks) {
  std::vector<Spec> methods{parse_spec(kUncompressed)};
  for (const Spec& spec : plan.methods)
    if (!spec.none()) methods.push_back(spec);
  Run run(subject, plan, log, hooks);
  run.add(rows, methods, false);
  run.add(rows, {parse_spec(kUncompressed)}, true);
  return run.all();
}

}  // namespace kvist
