// SPDX-License-Identifier: MIT
// kvist apply for methods that rank: codes of arrays, what they come back as, and attention over
// them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kvist/core/thread_pool.h"
#include "kvist/methods/spec.h"

namespace kvist {

struct RankFolders {
  std::string in, out;
  std::string basis;  // a file, or ""
};

// Reads the dump in `in`, whose keys and values are rounded to f16 first, as a cache holds them,
// and the basis from the file or from basis.npy [layers, rows, 2 kv_heads head_dim] and, for tree
// codes, eigenvalues.npy [layers, rows]. Where q_out.npy [layers, heads, n, head_dim] is there too,
// its queries, after RoPE, read the coded layer. Writes
//
//   ranks           int32 [layers, tokens]; -1 where a token is exact
//   anchor_index    int32 [layers, coded, c] positions of the anchors of coded tokens, nearest
//                   first; -1 where there are fewer
//   coefficients    float32, as they are read back, layer after layer, token after token
//   k_out, v_out    float32 [layers, tokens, kv_heads, head_dim]
//   out             float32 [layers, heads, n, head_dim], with q_out.npy
//   ledger.json
//
// to `out`, layers only where the inputs have that axis, and returns the ledger. Throws naming
// file, found and expected, and has written nothing then.
nlohmann::ordered_json apply_ranks(const Spec& spec, const RankFolders& folders, ThreadPool& pool);

}  // namespace kvist
