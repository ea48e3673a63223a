// SPDX-License-Identifier: MIT
// One document and its questions: prefill once, compress once, answer many from the same prefix.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvist/cache/coded_prefix.h"
#include "kvist/cache/coded_reader.h"
#include "kvist/cache/prefix.h"
#include "kvist/cache/ranked_prefix.h"
#include "kvist/core/thread_pool.h"
#include "kvist/methods/rank/plan.h"
#include "kvist/methods/spec.h"
#include "kvist/model/model.h"

namespace kvist {

struct SessionOptions {
  Scalar cache_type = Scalar::f16;
  kernels::Precision precision = kernels::Precision::fast;
  int chunk = 512;   // prompt tokens a step
  int pin_tail = 0;  // last tokens of a prompt that every selector keeps, within its budget
};

// What a prefill records, and which methods watch it.
struct Watch {
  Watch() = default;
  Watch(Needs only) : needs(only) {}  // recorded for later; nobody watches
  explicit Watch(std::span<Observer* const> all);

  Needs needs;  // of all together
  std::vector<Observer*> observers;
};

// Tokens for the model to read after the document, in which it repeats the document's tokens
// [begin, end).
struct Repeat {
  int begin = 0, end = 0;
  std::vector<int32_t> input;
};

struct Progress {
  int done = 0, total = 0;
  double seconds = 0;
};

// Not thread-safe: one caller.
class Session {
 public:
  // The model and the pool outlive the session.
  Session(Model& model, ThreadPool& pool, const SessionOptions& options);
  ~Session();

  // Runs the document through the model and records what later looks at its layers need; observers
  // see each step where they need every query.
  // on_progress is called after each chunk; when *stop becomes true the session throws
  // Error(interrupted) at the next chunk boundary and holds nothing. Refuses a prompt longer than
  // the model's context, naming both. Leaves the uncompressed prefix in place and returns the
  // logits of the last token.
  std::vector<float> prefill(std::span<const int32_t> tokens, const Watch& watch = {},
                             const std::function<void(const Progress&)>& on_progress = {},
                             const std::atomic<bool>* stop = nullptr);

  // Runs the inputs, each by itself, over the uncompressed prefix, and shows them to the observers.
  // Nothing of them stays.
  void repeat(std::span<const Repeat> repeats, std::span<Observer* const> observers,
              const std::function<void(const Progress&)>& on_progress = {},
              const std::atomic<bool>* stop = nullptr);

  // Shows `look` every layer of the uncompressed prefix, in ascending order.
  void each_layer(const std::function<void(const LayerInput&)>& look,
                  const std::function<void(const Progress&)>& on_progress = {});

  struct Explanation {  // filled when asked for, per layer
    std::vector<Selection> layers;
  };
  // Applies the selector to every layer; each layer's dense form is freed before the next is begun.
  // The prefix is unchanged where it throws before the first layer was replaced.
  void compress(Selector& selector, Explanation* explain = nullptr,
                const std::function<void(const Progress&)>& on_progress = {});

  // Codes the prefix, or what compress() left of it, and all that questions append from now on as
  // `plan` says; each layer's plain form is freed before the next is begun. Throws corrupt naming
  // layer, head, position and value of a number that is not finite, and has changed nothing then.
  // `code` was calibrated for this model (ReadCalibration::check_fits).
  void encode(const ReadPlan& plan, std::shared_ptr<const CodedModel> code,
              const std::function<void(const Progress&)>& on_progress = {});
  // The same where every token gets a rank of its own (VarRate): each dense layer is coded and
  // freed in turn; suffixes stay dense. prefill() has recorded the queries of plan.window_queries()
  // positions. Throws what encode_layer() and RankedPrefix::encode() do; the first layer shows
  // whether the budget suffices, and has changed nothing then. After a later error the session
  // holds nothing, or what set_aside() kept.
  void encode(const RankPlan& plan, std::shared_ptr<const RankedModel> model,
              const std::function<void(const Progress&)>& on_progress = {});
  // Keeps keys of a ranked prefix expanded, up to so many bytes (RankedPrefix::expand).
  void expand_keys(uint64_t most_bytes);
  // The ranked prefix in place, or null.
  const RankedPrefix* ranked() const;
  // A prefix of no tokens, for text that is compressed from its first token on: encode() it, open a
  // sequence and extend that.
  void start_empty();
  // For several methods over one prefill: keeps the prefix as it is now, which is not coded, aside.
  // What follows works on a copy that shares its layers, with a workspace of its own, and restore()
  // puts it back in place. Does nothing where one is aside already.
  void set_aside();
  void restore();

  const ModelInfo& model() const;
  const PrefixCache& prefix() const;
  uint64_t prefix_digest() const;  // of all that the prefix stores
  int n_prompt() const;            // tokens prefilled

  // What coded layers have read since encode(), or since it was set to {}.
  ReadTrace& read_trace();

  // Opens a question over the prefix: a new private suffix, empty. Returns its id.
  int open();
  // Over a prefix of no tokens (start_empty()): a sequence that holds at most `most` entries a
  // head. Before a step needs more room, `evictor`, which outlives the sequence, decides who
  // leaves; positions go on counting. Such a sequence decodes alone.
  int open_bounded(Evictor& evictor, int most);
  void close(int sequence);
  int suffix_length(int sequence) const;   // tokens appended, evicted ones too
  int suffix_entries(int sequence) const;  // those that are left, in each head
  // Appends `tokens` to one sequence in chunks; returns the logits of the last.
  std::vector<float> extend(int sequence, std::span<const int32_t> tokens);
  // Logits after every token instead: [tokens][vocab].
  std::vector<float> extend_all(int sequence, std::span<const int32_t> tokens);
  // One step of several sequences together: tokens[i] goes to sequences[i]; logits [n][vocab].
  void decode(std::span<const int32_t> sequences, std::span<const int32_t> tokens,
              std::vector<float>* logits);
  Bytes suffix_bytes() const;  // of all open sequences
  // What answering takes, as our allocators count it: the prefix, keys it keeps expanded, and, at
  // their largest since prefill() or set_aside(), suffixes and workspace. Weights and what is aside
  // do not count.
  uint64_t answering_bytes() const;
  int room(int sequence) const;  // tokens that still fit in the context

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvist
