// SPDX-License-Identifier: MIT
// kvist apply for methods that code and read: codes, and for every query its depths and output.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kvist/core/thread_pool.h"
#include "kvist/methods/spec.h"

namespace kvist {

struct ReadFolders {
  std::string in, out;
  std::string calibration;  // a file, or ""
};

// Reads the dump in `in`, writes
//
//   codes_k, codes_v   uint8 [layers, tokens, kv_heads, head_dim], the stored W bits
//   depths_k           uint8 [layers, n, kv_heads, head_dim]
//   depths_v           uint8 [layers, n, kv_heads, tokens]; 16 where a token is kept exact, 0 where
//                      the query does not see it
//   out                float32 [layers, heads, n, head_dim]
//   ledger.json
//
// to `out`, layers only where the inputs have that axis, and returns the ledger. Throws naming
// file, found and expected, and has written nothing then.
nlohmann::ordered_json apply_read(const Spec& spec, const ReadFolders& folders, ThreadPool& pool);

}  // namespace kvist
