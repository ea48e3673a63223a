// SPDX-License-Identifier: MIT
// Several methods over one prefill: what each keeps, costs and answers, beside the uncompressed
// cache.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvist/cli/answer.h"
#include "kvist/cli/inputs.h"

namespace kvist {

// How far the next-token distributions of one answer are from those of the uncompressed cache, both
// reading the uncompressed answer.
struct Distance {
  double kl = 0;        // mean over its tokens of KL(uncompressed || method), in nats
  double same_top = 0;  // share of tokens where the same one is most probable
  int n_tokens = 0;
};

struct ComparedRow {
  std::string method;  // "none", or the spec
  Bytes bytes;
  double factor = 0;
  // Bits read of a stored number for one query: 16 where nothing is coded.
  double read_bits() const {
    if (reads.ranked.rows > 0)
      return 16 * static_cast<double>(reads.ranked.bytes()) /
             static_cast<double>(reads.ranked.rows) / static_cast<double>(layer_bytes);
    return reads.numbers == 0 ? 16 : reads.bits_per_number();
  }
  uint64_t layer_bytes = 0;  // of a layer in f16
  double construct_ms = 0;   // all that the method adds to a prefill
  double decode_tok_s = 0;   // median over the answers
  Distance distance;         // of all answers together
  ReadCounts reads;          // of coded layers
  std::vector<Answer> answers;
};

struct Comparison {
  std::string model;
  int n_prompt = 0;
  uint64_t reference_bytes = 0;
  double prefill_ms = 0;
  std::vector<ComparedRow> rows;  // the first is uncompressed
};

// "a,b(x=1,y=2)": cut at commas outside of parentheses; blanks around a spec are dropped.
std::vector<std::string> split_specs(const std::string& text);

// Distance of logits [rows][vocab] from `reference`, of the same shape.
Distance distance_of(std::span<const float> reference, std::span<const float> logits, int vocab);

std::string table_text(const Comparison& comparison);
std::string csv_text(const Comparison& comparison);
nlohmann::ordered_json to_json(const Comparison& comparison, const Context& context);

}  // namespace kvist
