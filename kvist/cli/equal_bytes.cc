// SPDX-License-Identifier: MIT
// Bisection over budgets; bytes are measured on a real prefix, with stand-ins for selectors.
#include "kvist/cli/equal_bytes.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "kvist/cli/report.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr int64_t kRankSteps = 4096;  // of a budget that no token count divides

// Keeps as many entries as a method would, whichever: bytes depend on counts alone.
class StandIn final : public Selector {
 public:
  StandIn(const Spec& spec, const PromptShape& shape) : left_(spec.kept(shape)), shape_(shape) {}
  Needs needs() const override { return {}; }

  Selection select(const LayerInput& layer, bool) override {
    const int64_t heads_left = int64_t{shape_.n_layers - layer.layer} * shape_.kv_heads;
    Selection selection;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const int64_t n = left_ / (heads_left - head);
      auto& kept = selection.kept.emplace_back(static_cast<size_t>(n));
      std::iota(kept.begin(), kept.end(), 0);
      left_ -= n;
    }
    return selection;
  }

 private:
  int64_t left_;
  PromptShape shape_;
};

class Finder {
 public:
  Finder(Model& model, ThreadPool& pool, const Inputs& inputs, std::span<const Spec> specs,
         std::span<const int32_t> probe)
      : inputs_(inputs),
        session_(model, pool, session_options(inputs)),
        shape_{model.info().n_layers, model.info().kv_heads, static_cast<int>(probe.size())} {
    Needs needs;
    for (const Spec& spec : specs)
      if (const auto plan = spec.ranking()) needs.also({.window_queries = plan->window_queries()});
    session_.prefill(probe, needs);
  }

  uint64_t bytes_of(const Spec& spec) {
    const Recipe& loaded = recipe(spec);
    session_.set_aside();
    std::optional<StandIn> stand_in;
    if (spec.make_selector() != nullptr) stand_in.emplace(spec, shape_);
    try {
      apply(session_, {spec, loaded.code, loaded.ranked}, stand_in ? &*stand_in : nullptr);
    } catch (...) {
      session_.restore();
      throw;
    }
    const uint64_t bytes = session_.prefix().bytes().stored();
    session_.restore();
    return bytes;
  }

  uint64_t target(const std::string& wanted) {
    if (wanted.starts_with(".") || (!wanted.empty() && wanted[0] >= '0' && wanted[0] <= '9')) {
      const Ratio share = Ratio::parse(wanted);
      const uint64_t all = reference_bytes(session_.model(), shape_.n_tokens);
      return static_cast<uint64_t>(floor_mul(static_cast<int64_t>(all), share));
    }
    return bytes_of(parse_spec(wanted));
  }

  // The largest budget that stores at most `target`, and its bytes.
  std::pair<Spec, uint64_t> fit(const Spec& open, uint64_t target) {
    const int64_t steps = open.ranking() ? kRankSteps : shape_.n_tokens;
    int64_t little = steps, much = -1;  // removed steps: `much` removes too little
    std::optional<std::pair<Spec, uint64_t>> best;
    while (little - much > 1) {
      const int64_t middle = much + (little - much) / 2;
      const auto bytes = try_at(open, {middle, steps});
      if (bytes && bytes->second > target) {
        much = middle;
      } else {
        little = middle;
        if (bytes) best = bytes;
      }
    }
    if (!best) {
      throw Error(ErrorKind::invalid_argument, str(open.text, " cannot store as little as ", target,
                                                   " bytes of ", shape_.n_tokens, " tokens"));
    }
    return *best;
  }

 private:
  // Nothing where a budget is too small for the method.
  std::optional<std::pair<Spec, uint64_t>> try_at(const Spec& open, Ratio removed) {
    const auto text = open.text_at_budget(reduced(removed));
    if (!text) {
      throw Error(ErrorKind::invalid_argument,
                  str(open.none() ? "none" : open.text,
                      ": has no budget that --at-bytes could find; leave out ratio and keep"));
    }
    try {
      Spec spec = parse_spec(*text);
      const uint64_t bytes = bytes_of(spec);
      return std::pair(std::move(spec), bytes);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::invalid_argument) throw;
      return std::nullopt;
    }
  }

  static Ratio reduced(Ratio r) {
    const int64_t divisor = std::gcd(r.num, r.den);
    return {r.num / divisor, r.den / divisor};
  }

  // What it needs of the model does not depend on the budget.
  const Recipe& recipe(const Spec& spec) {
    const auto ready = std::find_if(recipes_.begin(), recipes_.end(), [&](const Recipe& r) {
      const auto was = r.spec.reading(), is = spec.reading();
      const auto plan_was = r.spec.ranking(), plan_is = spec.ranking();
      return was.has_value() == is.has_value() && (!is || was->basis == is->basis) &&
             plan_was.has_value() == plan_is.has_value() &&
             (!plan_is ||
              (plan_was->basis == plan_is->basis && plan_was->value_scale == plan_is->value_scale));
    });
    if (ready != recipes_.end()) return *ready;
    recipes_.push_back(load_recipe(spec, inputs_, session_.model()));
    return recipes_.back();
  }

  const Inputs& inputs_;
  Session session_;
  PromptShape shape_;
  std::vector<Recipe> recipes_;
};

}  // namespace

EqualBytes at_equal_bytes(Model& model, ThreadPool& pool, const Inputs& inputs,
                          std::span<const Spec> open, const std::string& wanted,
                          std::span<const int32_t> probe) {
  std::vector<Spec> all(open.begin(), open.end());
  if (!wanted.empty() && wanted[0] >= 'a' && wanted[0] <= 'z') all.push_back(parse_spec(wanted));
  Finder finder(model, pool, inputs, all, probe);
  EqualBytes out;
  out.target = finder.target(wanted);
  for (int pass = 0; pass < 2; ++pass) {
    out.specs.clear();
    out.bytes.clear();
    for (const Spec& spec : open) {
      auto [fitted, bytes] = finder.fit(spec, out.target);
      out.specs.push_back(std::move(fitted));
      out.bytes.push_back(bytes);
    }
    if (!out.bytes.empty())
      out.target = std::min(out.target, *std::min_element(out.bytes.begin(), out.bytes.end()));
  }
  return out;
}

void require_equal_bytes(uint64_t target, std::span<const std::string> names,
                         std::span<const uint64_t> bytes) {
  std::string apart;
  for (size_t i = 0; i < names.size(); ++i) {
    const uint64_t difference = bytes[i] > target ? bytes[i] - target : target - bytes[i];
    if (difference * 1000 > target) apart += str("\n  ", names[i], ": ", bytes[i], " bytes");
  }
  if (!apart.empty()) {
    throw Error(ErrorKind::unsupported,
                str("not within 0.1 % of ", target, " bytes, so no comparison is printed:", apart));
  }
}

}  // namespace kvist
