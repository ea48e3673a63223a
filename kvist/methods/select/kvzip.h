// SPDX-License-Identifier: MIT
// The parts of KVzip (arXiv:2505.23416) by themselves, so that each can be checked.
#pragma once

#include <map>

#include "kvist/core/ratio.h"
#include "kvist/methods/method.h"

namespace kvist {

// The most attention that an entry gets from any query while the model repeats the document chunk
// by chunk. Tokens of no chunk score 0, sinks above all.
class KvZipScorer final : public Scorer {
 public:
  explicit KvZipScorer(const Options& options);
  Needs needs() const override { return {.repeat_chunk = chunk_}; }
  void observe_repetition(const LayerInput& layer, const Repetition& repetition) override;
  Scores score(const LayerInput& layer) override;

 private:
  int chunk_;
  int64_t n_sink_;
  std::map<int, Scores> most_;  // by the model's layer
};

// How many of all layers' scores go: trunc(entries * removed), in double.
int64_t kvzip_pruned(int64_t entries, Ratio removed);

// Keeps what is left of each layer when the n_pruned smallest scores of all layers together go.
void keep_across_layers(std::span<const Scores> layers, int64_t n_pruned,
                        std::span<Selection> selections);

}  // namespace kvist
