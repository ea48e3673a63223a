// SPDX-License-Identifier: MIT
// What a selection left of a prompt, seen by position: which layer-heads keep a token, and how many
// of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvist {

struct Survival {
  int n_tokens = 0;
  std::vector<std::vector<std::vector<int32_t>>> kept;  // [layers][kv_heads]: positions, ascending
  std::vector<std::string> pieces;  // [n_tokens] text of each token; may be empty as a whole

  int n_layers() const { return static_cast<int>(kept.size()); }
  int kv_heads() const { return kept.empty() ? 0 : static_cast<int>(kept.front().size()); }
  // [n_tokens] the part of all layer-heads that keep the token, in [0, 1].
  std::vector<double> share_by_position() const;
  // The part of the tokens that a layer keeps, over its heads.
  double share_of_layer(int layer) const;
  double share() const;  // of everything
};

// A word of the document and how well it survived.
struct Word {
  int begin = 0, end = 0;  // tokens [begin, end)
  std::string text;        // without white space and punctuation around it
  double share = 0;        // mean over its tokens
};
// Words made of the pieces of tokens that have a share each: a word starts where a piece starts
// with white space or the one before ended with it.
std::vector<Word> words_of(const std::vector<std::string>& pieces,
                           const std::vector<double>& share);

}  // namespace kvist
