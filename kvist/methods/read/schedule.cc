// SPDX-License-Identifier: MIT
// Budgets of the two stages and their allocation, pooled or per head, by tokens or by pairs.
#include "kvist/methods/read/schedule.h"

#include <algorithm>
#include <string>

#include "kvist/core/error.h"

namespace kvist {
namespace {

struct Rule {
  Ratio rate;
  bool uniform = false;
  bool two_depth = false;
};

Schedule allocate(const ReadPlan& plan, const Rule& rule, int64_t budget,
                  std::span<const float> weights, std::span<uint8_t> depths,
                  DepthWorkspace& workspace) noexcept {
  const int64_t n = static_cast<int64_t>(weights.size());
  Schedule made{.budget = std::min(budget, n * plan.width)};
  if (rule.uniform) {
    const int64_t depth = rule.rate.num / rule.rate.den;
    std::fill(depths.begin(), depths.end(), static_cast<uint8_t>(depth));
    made.spent = depth * n;
  } else if (rule.two_depth) {
    made.spent = two_depth(weights, plan.width, plan.low, made.budget, depths, workspace);
  } else {
    made.spent = choose_depths(weights, plan.width, plan.min_depth, made.budget, depths, workspace);
  }
  KVIST_ASSERT(made.spent >= 0);
  return made;
}

// One allocation over all heads, or one a head. `per_head_items` weights a head.
template <typename Budget>
Schedule over_heads(const ReadPlan& plan, const Rule& rule, int kv_heads, const Budget& budget,
                    std::span<const float> weights, std::span<uint8_t> depths,
                    DepthWorkspace& workspace) noexcept {
  if (!plan.per_head) return allocate(plan, rule, budget(kv_heads), weights, depths, workspace);
  Schedule all;
  const size_t n = weights.size() / static_cast<size_t>(kv_heads);
  for (size_t head = 0; head < static_cast<size_t>(kv_heads); ++head) {
    const Schedule one = allocate(plan, rule, budget(1), weights.subspan(head * n, n),
                                  depths.subspan(head * n, n), workspace);
    all.budget += one.budget;
    all.spent += one.spent;
  }
  return all;
}

}  // namespace

void check(const ReadPlan& plan) {
  const auto refuse = [](const std::string& message) {
    throw Error(ErrorKind::invalid_argument, message);
  };
  if (plan.width < 1 || plan.width > 8)
    refuse(str("width is ", plan.width, " bits, expected 1 to 8"));
  const auto check_rate = [&](const char* name, Ratio rate, bool uniform) {
    if (rate.num < 0 || rate.num > plan.width * rate.den)
      refuse(str(name, " is ", rate.text(), " bits, expected 0 to the width of ", plan.width));
    if (uniform && rate.num % rate.den != 0)
      refuse(str(name, " is ", rate.text(), ", but one depth for all has to be whole"));
  };
  check_rate("key_rate", plan.key_rate, plan.uniform_keys);
  check_rate("value_rate", plan.value_rate, plan.uniform_values);
  if (plan.min_depth < 0 || plan.min_depth > 1)
    refuse(str("min_depth is ", plan.min_depth, ", expected 0 or 1"));
  if (plan.low < 0 || plan.low > 1) refuse(str("low is ", plan.low, ", expected 0 or 1"));
  if (plan.low >= plan.width && (plan.two_depth_keys || plan.two_depth_values))
    refuse("low has to be below the width");
  const auto check_low = [&](const char* name, Ratio rate, bool two_depth) {
    if (two_depth && rate.num < plan.low * rate.den)
      refuse(str(name, " is ", rate.text(), ", less than the lower depth ", plan.low));
  };
  check_low("key_rate", plan.key_rate, plan.two_depth_keys);
  check_low("value_rate", plan.value_rate, plan.two_depth_values);
  if (plan.sinks < 0 || plan.recent < 0 || plan.protect < 0)
    refuse("sinks, recent and protect are counts, expected 0 or more");
}

bool is_protected(const ReadPlan& plan, int layer, int n_layers) {
  const int n = std::min(plan.protect, n_layers / 2);
  return layer < n || layer >= n_layers - n;
}

void ScheduleWorkspace::reserve(int64_t n_items) {
  depths.reserve(n_items);
  if (static_cast<int64_t>(pair_weights.size()) >= n_items) return;
  pair_weights = Buffer<float>(static_cast<size_t>(n_items));
  pair_depths = Buffer<uint8_t>(static_cast<size_t>(n_items));
}

Schedule schedule_keys(const ReadPlan& plan, std::span<const float> weights, int kv_heads,
                       std::span<uint8_t> depths, ScheduleWorkspace& workspace) noexcept {
  const int64_t channels = static_cast<int64_t>(weights.size()) / kv_heads;
  const Rule rule{plan.key_rate, plan.uniform_keys, plan.two_depth_keys};
  const auto budget = [&](int heads) { return floor_mul(heads * channels, plan.key_rate); };
  return over_heads(plan, rule, kv_heads, budget, weights, depths, workspace.depths);
}

Schedule schedule_values(const ReadPlan& plan, std::span<const float> weights, int kv_heads,
                         std::span<uint8_t> depths, ScheduleWorkspace& workspace) noexcept {
  const int64_t tokens = static_cast<int64_t>(weights.size()) / kv_heads;
  const Rule rule{plan.value_rate, plan.uniform_values, plan.two_depth_values};
  if (!plan.pairs) {
    const auto budget = [&](int heads) { return floor_mul(heads * tokens, plan.value_rate); };
    return over_heads(plan, rule, kv_heads, budget, weights, depths, workspace.depths);
  }
  // The last packet of an odd count has one token and is charged whole.
  const int64_t packets = (tokens + 1) / 2;
  const auto budget = [&](int heads) {
    const Ratio half{plan.value_rate.num, 2 * plan.value_rate.den};
    return std::max(plan.min_depth * heads * packets, floor_mul(heads * tokens, half));
  };
  const size_t n = static_cast<size_t>(kv_heads * packets);
  const std::span<float> pair_weights = workspace.pair_weights.span().first(n);
  const std::span<uint8_t> pair_depths = workspace.pair_depths.span().first(n);
  const auto at = [&](int64_t head, int64_t token) {
    return static_cast<size_t>(head * tokens + token);
  };
  for (int64_t head = 0; head < kv_heads; ++head) {
    for (int64_t p = 0; p < packets; ++p) {
      double sum = double{weights[at(head, 2 * p)]};
      if (2 * p + 1 < tokens) sum += double{weights[at(head, 2 * p + 1)]};
      pair_weights[static_cast<size_t>(head * packets + p)] = static_cast<float>(sum);
    }
  }
  const Schedule made =
      over_heads(plan, rule, kv_heads, budget, pair_weights, pair_depths, workspace.depths);
  for (int64_t head = 0; head < kv_heads; ++head)
    for (int64_t j = 0; j < tokens; ++j)
      depths[at(head, j)] = pair_depths[static_cast<size_t>(head * packets + j / 2)];
  return made;
}

}  // namespace kvist
