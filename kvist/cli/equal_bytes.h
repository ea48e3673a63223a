// SPDX-License-Identifier: MIT
// Budgets at which different methods store the same number of bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvist/cli/inputs.h"
#include "kvist/core/thread_pool.h"

namespace kvist {

struct EqualBytes {
  uint64_t target = 0;          // bytes stored, metadata included
  std::vector<Spec> specs;      // as given, each with its budget
  std::vector<uint64_t> bytes;  // what each stores of the probe: at most the target, and as near
                                // to it as a step of its budget allows
};

// `wanted`: a share of f16, as ".25", or a method whose bytes are the measure, as
// "varrate(keep=0.2)". `probe`: token ids as long as what will be compressed. Budgets are rounded
// down; where a coarse one cannot reach the target, all others go down to what it stores. Throws
// invalid_argument naming a method that says its budget itself or has none, or that cannot store as
// little.
EqualBytes at_equal_bytes(Model& model, ThreadPool& pool, const Inputs& inputs,
                          std::span<const Spec> open, const std::string& wanted,
                          std::span<const int32_t> probe);

// Throws unsupported listing those of `names` whose bytes are more than a thousandth from the
// target: they are no comparison at equal bytes.
void require_equal_bytes(uint64_t target, std::span<const std::string> names,
                         std::span<const uint64_t> bytes);

}  // namespace kvist
