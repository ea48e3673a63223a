// SPDX-License-Identifier: MIT
// The two schedules of a layer call: how deep each key channel and each value is read, from their
// weights and the plan.
#pragma once

#include <cstdint>
#include <span>

#include "kvist/core/buffer.h"
#include "kvist/methods/read/choose_depths.h"
#include "kvist/methods/read/plan.h"

namespace kvist {

struct Schedule {
  int64_t budget = 0;  // increments the plan allows, clamped to [0, W N]
  int64_t spent = 0;   // sum of depths; counted in packets where tokens are paired
};

// Memory between calls; one call at a time.
struct ScheduleWorkspace {
  void reserve(int64_t n_items);  // channels, or tokens, of all KV heads
  DepthWorkspace depths;
  Buffer<float> pair_weights;   // [heads * ceil(tokens / 2)]
  Buffer<uint8_t> pair_depths;  // likewise
};

// weights, depths [kv_heads][channels], finite and >= 0. One increment reads a bit of every token
// of its head: where heads hold different numbers of tokens, only a budget of each head is exact.
Schedule schedule_keys(const ReadPlan& plan, std::span<const float> weights, int kv_heads,
                       std::span<uint8_t> depths, ScheduleWorkspace& workspace) noexcept;

// Whether the values' schedule is one choice over all of them, which SharedDepths can make, of
// value_budget() increments.
bool shares_values(const ReadPlan& plan);
int64_t value_budget(const ReadPlan& plan, int64_t n_values);

// weights, depths [kv_heads][tokens].
Schedule schedule_values(const ReadPlan& plan, std::span<const float> weights, int kv_heads,
                         std::span<uint8_t> depths, ScheduleWorkspace& workspace) noexcept;

// The same where every head has its own number of tokens: weights, depths [sum tokens], one head
// after another. Pairs are of neighbours in a head.
Schedule schedule_ragged_values(const ReadPlan& plan, std::span<const float> weights,
                                std::span<const int64_t> tokens, std::span<uint8_t> depths,
                                ScheduleWorkspace& workspace) noexcept;

}  // namespace kvist
