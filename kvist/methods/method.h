// SPDX-License-Identifier: MIT
// What a published method is to kvist: a row of the table with its options, and a factory for each
// contract it fills.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvist/core/ratio.h"
#include "kvist/core/tensor.h"
#include "kvist/core/thread_pool.h"

namespace kvist {

// One option of a method, declared once: parsing, --help and docs come from it.
struct OptionSpec {
  // scorer: the name of a method that fills Method::score.
  enum class Kind { integer, ratio, number, boolean, choice, scorer };
  const char* name;
  Kind kind;
  const char* fallback;  // the default, as a user would write it; "" means required
  const char* unit;      // "tokens", "" ...
  const char* help;
  // For choice: "a|b|c"; an entry "x:N" takes a number, as permuted:11. For number: words that may
  // stand in its place.
  const char* choices = "";
  int64_t least = 0, most = INT64_MAX;  // of an integer or a number, which may be a fraction
};

// How much a selector removes; every selector begins its options with these two (Options::removed).
inline constexpr OptionSpec kRatioOption{.name = "ratio",
                                         .kind = OptionSpec::Kind::ratio,
                                         .fallback = "0.5",
                                         .unit = "",
                                         .help = "share of entries removed"};
inline constexpr OptionSpec kKeepOption{.name = "keep",
                                        .kind = OptionSpec::Kind::ratio,
                                        .fallback = "0.5",
                                        .unit = "",
                                        .help = "1 - ratio; give one of the two"};

struct Method;

// The options of one method as given, checked against its OptionSpecs.
class Options {
 public:
  Options(std::span<const OptionSpec> specs, std::vector<std::pair<std::string, std::string>> given,
          std::string_view method);
  int64_t integer(std::string_view name) const;
  bool boolean(std::string_view name) const;
  Ratio ratio(std::string_view name) const;  // of a ratio or a number
  // A choice "permuted:11" is {"permuted", 11}; one without a number has number 0.
  struct Choice {
    std::string name;
    uint64_t number = 0;
  };
  Choice choice(std::string_view name) const;
  bool given(std::string_view name) const;
  std::string text(std::string_view name) const;
  std::span<const OptionSpec> specs() const { return specs_; }

  // The fraction removed, from `ratio` or `keep` (= 1 - ratio), never both; 0 <= ratio < 1.
  Ratio removed() const;

  // Those given here that `inner` declares too, as its options.
  Options passed_to(const Method& inner) const;

 private:
  std::vector<OptionSpec> specs_;
  std::vector<std::pair<std::string, std::string>> values_;  // in the order of specs_
  std::vector<bool> given_;
  std::string method_;
};

// Reads rows of one head's keys or values, widened exactly to f32.
class HeadRows {
 public:
  virtual ~HeadRows() = default;
  // Rows [begin, end) of `head` into out [end - begin][head_dim]. May be called by several threads
  // at once.
  virtual void read(int head, int begin, int end, float* out) const = 0;
};

// How positions turn queries and keys: pair f of a head's first 2 * frequencies.size() channels by
// position * frequencies[f] radians, and both channels grow by `magnitude`.
struct Rope {
  std::vector<double> frequencies;
  double magnitude = 1;
  bool adjacent = false;  // pairs (2f, 2f + 1); else (f, f + frequencies.size())
};

// What a method sees of one layer. Nothing in it outlives the call.
struct LayerInput {
  int layer = 0;  // the model's own index
  int n_layers = 0;
  int n_tokens = 0;
  int kv_heads = 0;
  int heads = 0;
  int head_dim = 0;
  const HeadRows* keys = nullptr;  // after RoPE, as attention reads them
  const HeadRows* values = nullptr;
  TensorView<const float, 3>
      q;  // [rows, heads, head_dim] after RoPE: the last `rows` positions, oldest first
  TensorView<const float, 3> q_pre;  // the same rows before RoPE, where they were asked for
  const Rope* rope = nullptr;        // of the model; null where it is not known
  float logit_scale = 0;             // 1/sqrt(head_dim), or the model's own
  int pinned = 0;                    // last positions that stay in any case, within the same budget
  uint64_t document = 0;             // hash of the prompt's tokens, for what is drawn; 0: not known
  // Makes [width][heads * head_dim]: what turns the heads' outputs into the layer's; empty without
  // a model.
  std::function<std::vector<float>()> output_projection;
  ThreadPool* pool = nullptr;
};

// One layer while the model, asked to repeat tokens [begin, end) of the document, reads the request
// and those tokens again: rows [first_row, first_row + q.dim(0)) of that input.
struct Repetition {
  int begin = 0, end = 0;
  int first_row = 0;
  TensorView<const float, 3> q;          // [rows, heads, head_dim] after RoPE
  const HeadRows* input_keys = nullptr;  // of the input, rows [0, first_row + q.dim(0))
};

// What a method must see while the document is read; nothing else is recorded.
struct Needs {
  int window_queries = 0;    // LayerInput::q of the last so many positions
  bool every_query = false;  // observe() with the queries of every position
  bool pre_rope = false;     // observe() with q_pre as well
  int repeat_chunk = 0;      // above 0: observe_repetition() of so many tokens at a time

  // What either must see; of two repetitions the one in larger parts.
  Needs& also(const Needs& more) {
    window_queries = std::max(window_queries, more.window_queries);
    every_query |= more.every_query;
    pre_rope |= more.pre_rope;
    repeat_chunk = std::max(repeat_chunk, more.repeat_chunk);
    return *this;
  }
};

// What scorers and selectors have in common: they watch a document being read. One object serves
// one prefix.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual Needs needs() const = 0;
  // The layer as it is after some step of prefill: n_tokens so far, and the queries of the step's
  // positions. Steps follow each other without gaps.
  virtual void observe(const LayerInput&) {}
  // The whole layer, while its tokens are repeated.
  virtual void observe_repetition(const LayerInput&, const Repetition&) {}
};

// The scores of a layer's entries, higher first to stay: [kv_heads][n_tokens].
using Scores = std::vector<std::vector<double>>;

// Gives every entry of a layer a number, the same for every budget; who stays by them is decided
// elsewhere (select/topk.h).
class Scorer : public Observer {
 public:
  // n_kept: entries that a head keeps on average, 1 <= n_kept < n_tokens. Throws
  // Error(invalid_argument) where that is too few for what the method protects.
  virtual void require_room(const LayerInput&, int /*n_kept*/) const {}
  // Once a layer. Throws Error(invalid_argument) where what it needs was not recorded, and
  // Error(corrupt) naming layer, head and position of a number that is not finite.
  virtual Scores score(const LayerInput& layer) = 0;
};

// Which tokens of a layer survive.
struct Selection {
  std::vector<std::vector<int32_t>> kept;  // per KV head: positions, ascending
  // What the method computed on the way, where it did: filled when explain is asked for.
  Scores scores;                             // [kv_heads][n_tokens]
  std::vector<std::vector<int32_t>> counts;  // [kv_heads][n_tokens]
};

// Decides which tokens stay. One object serves all layers of one prefix, in ascending order.
class Selector : public Observer {
 public:
  // Who watches the document for it: itself, or the scorer that it shares with others (Scorers),
  // which then watches once for all of them.
  virtual Observer& watcher() { return *this; }
  // Throws Error(invalid_argument) where the budget keeps nothing, and Error(corrupt) naming layer,
  // head and position of a number that is not finite.
  virtual Selection select(const LayerInput& layer, bool explain) = 0;
  // After the last layer, with what select() returned: the place to revise it where layers share a
  // budget.
  virtual void settle(std::span<Selection>) {}
};

// Keeps a cache that grows within so many entries. One object serves one sequence.
class Evictor : public Observer {
 public:
  // Which entries of a layer stay, n_kept < n_tokens of each KV head, as ascending indices. Here
  // layer.n_tokens counts the entries that are left, oldest first, not positions; so do observe()
  // and the rows of its keys.
  virtual std::vector<std::vector<int32_t>> stay(const LayerInput& layer, int n_kept) = 0;
};

class Scorers;    // methods/select/scorers.h
struct RankPlan;  // methods/rank/plan.h
struct Reading;   // methods/read/reading.h

// How many entries there are before any leaves: n_layers * kv_heads * n_tokens.
struct PromptShape {
  int n_layers = 0, kv_heads = 0, n_tokens = 0;
  int64_t entries() const { return int64_t{n_layers} * kv_heads * n_tokens; }
};

struct Method {
  const char* name;
  const char* paper;
  const char* summary;
  const char* decides;  // "entries", "bits", "dimensions", "reads"
  std::span<const OptionSpec> options;
  // Which tokens stay, and how many of a prompt do, over all layers and heads.
  std::unique_ptr<Selector> (*select)(const Options&, Scorers&) = nullptr;
  int64_t (*kept)(const Options&, const PromptShape&) = nullptr;
  // How what stays is coded, and how much of it one query reads.
  Reading (*read)(const Options&) = nullptr;
  // How a budget becomes ranks, where every token is coded to a rank of its own.
  RankPlan (*rank)(const Options&) = nullptr;
  std::unique_ptr<Scorer> (*score)(const Options&) = nullptr;
  // What leaves a cache that grows, again and again; the options of a ratio mean nothing here.
  std::unique_ptr<Evictor> (*evict)(const Options&) = nullptr;
};

// All methods, in the order they are shown.
std::span<const Method* const> methods();
// The row called `name`, or Error(invalid_argument) naming the nearest.
const Method& find_method(std::string_view name);

}  // namespace kvist
