// SPDX-License-Identifier: MIT
// Words to numbers and back, drawn keys and values, and the longest match.
#include "kvist/eval/copy_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>

#include "kvist/core/digest.h"
#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/core/sha256.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kLongestMatch = 12;  // words of the question that the context is searched for

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c & 0x80) != 0;
}

// " pass", "7", "\n": a space belongs to what follows it.
std::vector<std::string> pieces(std::string_view text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    if (text[end] == ' ' && end + 1 < text.size() && text[end + 1] != ' ') ++end;
    if (is_letter(text[end])) {
      while (end < text.size() && is_letter(text[end])) ++end;
    } else {
      ++end;
    }
    out.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

class DrawnRows final : public HeadRows {
 public:
  DrawnRows(std::span<const int32_t> ids, int layer, int head_dim, uint64_t stream)
      : ids_(ids), layer_(layer), head_dim_(head_dim), stream_(stream) {}

  void read(int head, int begin, int end, float* out) const override {
    for (int t = begin; t < end; ++t) {
      Rng rng(static_cast<uint64_t>(ids_[static_cast<size_t>(t)]), static_cast<uint32_t>(layer_),
              static_cast<uint32_t>(head), stream_);
      for (int d = 0; d < head_dim_; ++d) *out++ = static_cast<float>(rng.gaussian());
    }
  }

 private:
  std::span<const int32_t> ids_;
  int layer_, head_dim_;
  uint64_t stream_;
};

class CopyModel final : public Subject {
 public:
  CopyModel(ThreadPool& pool, const CopyModelShape& shape) : pool_(pool), shape_(shape) {}

  std::string model_hash() const override { return "copy-model-1"; }
  int count_tokens(std::string_view text) const override {
    return static_cast<int>(pieces(text).size());
  }
  PromptIds prompt(const EvalRow& row, Mode mode) const override {
    if (mode == Mode::aware) return {ids(row.context + row.question), ids(row.answer_prefix)};
    return {ids(row.context), ids(row.question + row.answer_prefix)};
  }
  uint64_t reference_bytes(int n_tokens) const override {
    return token_bytes() * static_cast<uint64_t>(shape_.layers * shape_.kv_heads * n_tokens);
  }

  double read(std::span<const int32_t> context, std::span<const Spec> specs,
              const std::atomic<bool>*) override {
    const auto begin = Clock::now();
    context_.assign(context.begin(), context.end());
    Digest digest;
    digest.add(context);
    document_ = digest.value();
    specs_.assign(specs.begin(), specs.end());
    for (const Spec& spec : specs_) {
      const auto selector = spec.make_selector();
      if (spec.reading() || (selector && selector->needs().repeat_chunk > 0)) {
        throw Error(ErrorKind::unsupported,
                    str(spec.text, ": the copy model only knows methods that select in one pass"));
      }
    }
    restore();
    return ms_since(begin);
  }

  Placed place(size_t i) override {
    const auto begin = Clock::now();
    Placed placed;
    const auto selector = specs_[i].make_selector();
    std::vector<Selection> selections = selector ? select(*selector) : everything();
    std::fill(there_.begin(), there_.end(), false);
    for (const Selection& layer : selections) {
      auto& counts = placed.kept.emplace_back();
      for (const auto& head : layer.kept) {
        counts.push_back(static_cast<int>(head.size()));
        placed.bytes.payload += token_bytes() * head.size();
        for (int32_t position : head) there_[static_cast<size_t>(position)] = true;
      }
    }
    stored_ = placed.bytes.payload;
    placed.construct_ms = ms_since(begin);
    return placed;
  }

  void restore() override {
    there_.assign(context_.size(), true);
    stored_ = reference_bytes(static_cast<int>(context_.size()));
  }

  uint64_t digest() const override { return 0; }

  Reply ask(std::span<const int32_t> question, int limit, const std::atomic<bool>*) override {
    const auto begin = Clock::now();
    Reply reply;
    reply.token_ids =
        copied(question.empty() ? std::span<const int32_t>(context_) : question, limit);
    for (int32_t id : reply.token_ids) reply.text += words_[static_cast<size_t>(id)];
    reply.stop = static_cast<int>(reply.token_ids.size()) == limit ? "limit" : "eos";
    const auto all = reference_bytes(static_cast<int>(context_.size()));
    reply.read_share = all == 0 ? 1 : static_cast<double>(stored_) / static_cast<double>(all);
    reply.first_ms = ms_since(begin);
    return reply;
  }

 private:
  static double ms_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  }

  uint64_t token_bytes() const { return uint64_t{4} * static_cast<uint64_t>(shape_.head_dim); }

  std::vector<int32_t> ids(const std::string& text) const {
    std::vector<int32_t> out;
    for (const std::string& piece : pieces(text)) {
      const auto [at, fresh] = id_of_.emplace(piece, static_cast<int32_t>(words_.size()));
      if (fresh) words_.push_back(piece);
      out.push_back(at->second);
    }
    return out;
  }

  std::vector<Selection> everything() const {
    Selection all;
    all.kept.assign(static_cast<size_t>(shape_.kv_heads), std::vector<int32_t>(context_.size()));
    for (auto& head : all.kept) std::iota(head.begin(), head.end(), 0);
    return std::vector<Selection>(static_cast<size_t>(shape_.layers), all);
  }

  // Queries of the positions [begin, n) in one step: each looks for its own word.
  std::vector<float> queries(int layer, int begin) const {
    std::vector<float> q;
    const DrawnRows keys(context_, layer, shape_.head_dim, kKeys);
    std::vector<float> row(static_cast<size_t>(shape_.head_dim));
    for (int t = begin; t < static_cast<int>(context_.size()); ++t) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        keys.read(head, t, t + 1, row.data());
        for (int g = 0; g < shape_.group; ++g) q.insert(q.end(), row.begin(), row.end());
      }
    }
    return q;
  }

  std::vector<Selection> select(Selector& selector) {
    const Needs needs = selector.needs();
    const auto n = static_cast<int>(context_.size());
    std::vector<Selection> out;
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const DrawnRows keys(context_, layer, shape_.head_dim, kKeys),
          values(context_, layer, shape_.head_dim, kValues);
      LayerInput input;
      input.layer = layer;
      input.n_layers = shape_.layers;
      input.n_tokens = n;
      input.kv_heads = shape_.kv_heads;
      input.heads = shape_.kv_heads * shape_.group;
      input.head_dim = shape_.head_dim;
      input.keys = &keys;
      input.values = &values;
      input.logit_scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
      input.pool = &pool_;
      input.pinned = std::min(shape_.pin_tail, n);
      input.document = document_;
      const Rope rope{std::vector<double>(static_cast<size_t>(shape_.head_dim / 2), 0.0)};
      input.rope = &rope;  // words have no places
      const int rows = needs.every_query ? n : std::min(n, needs.window_queries);
      const std::vector<float> q = queries(layer, n - rows);
      input.q = {q.data(), {rows, input.heads, shape_.head_dim}};
      if (needs.every_query) {
        input.q_pre = input.q;
        selector.observe(input);
      }
      out.push_back(selector.select(input, false));
    }
    selector.settle(out);
    return out;
  }

  // After the longest run of last words of the question that the context held, the last such place
  // among equals, as far as the slots survived.
  std::vector<int32_t> copied(std::span<const int32_t> question, int limit) const {
    size_t best = 0, from = 0;
    for (size_t end = 1; end < context_.size(); ++end) {
      size_t same = 0;
      while (same < std::min({kLongestMatch, end, question.size()}) &&
             context_[end - 1 - same] == question[question.size() - 1 - same])
        ++same;
      if (same >= best && same > 0) {
        best = same;
        from = end;
      }
    }
    std::vector<int32_t> out;
    for (size_t at = from; best > 0 && at < context_.size() && there_[at]; ++at) {
      if (static_cast<int>(out.size()) == limit || words_[static_cast<size_t>(context_[at])] == ".")
        break;
      out.push_back(context_[at]);
    }
    return out;
  }

  static constexpr uint64_t kKeys = 1, kValues = 2;
  ThreadPool& pool_;
  CopyModelShape shape_;
  mutable std::map<std::string, int32_t> id_of_;  // grows with what is read
  mutable std::vector<std::string> words_;
  std::vector<int32_t> context_;
  std::vector<Spec> specs_;
  uint64_t document_ = 0;  // digest of the context
  std::vector<bool> there_;
  uint64_t stored_ = 0;
};

}  // namespace

std::unique_ptr<Subject> copy_model(ThreadPool& pool, const CopyModelShape& shape) {
  return std::make_unique<CopyModel>(pool, shape);
}

}  // namespace kvist
