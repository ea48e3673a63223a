// SPDX-License-Identifier: MIT
// Budgets of the two stages and their allocation, pooled or per head, by tokens or by pairs.
#include "kvist/methods/read/schedule.h"

#include <algorithm>
#include <numeric>
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

// One allocation over all heads, or one a head. items(head): how many weights a head has, which lie
// one head after another; budget(begin, end): increments of the heads [begin, end).
template <typename Items, typename Budget>
Schedule over_heads(const ReadPlan& plan, const Rule& rule, int kv_heads, const Items& items,
                    const Budget& budget, std::span<const float> weights, std::span<uint8_t> depths,
                    DepthWorkspace& workspace) noexcept {
  if (!plan.per_head) return allocate(plan, rule, budget(0, kv_heads), weights, depths, workspace);
  Schedule all;
  size_t at = 0;
  for (int head = 0; head < kv_heads; ++head) {
    const size_t n = static_cast<size_t>(items(head));
    if (n == 0) continue;
    const Schedule one = allocate(plan, rule, budget(head, head + 1), weights.subspan(at, n),
                                  depths.subspan(at, n), workspace);
    all.budget += one.budget;
    all.spent += one.spent;
    at += n;
  }
  return all;
}

template <typename Count>
int64_t sum(const Count& count, int begin, int end) {
  int64_t all = 0;
  for (int head = begin; head < end; ++head) all += count(head);
  return all;
}

// tokens(head): values of a head.
template <typename Tokens>
Schedule over_values(const ReadPlan& plan, std::span<const float> weights, int kv_heads,
                     const Tokens& tokens, std::span<uint8_t> depths,
                     ScheduleWorkspace& workspace) noexcept {
  const Rule rule{plan.value_rate, plan.uniform_values, plan.two_depth_values};
  if (!plan.pairs) {
    const auto budget = [&](int begin, int end) {
      return floor_mul(sum(tokens, begin, end), plan.value_rate);
    };
    return over_heads(plan, rule, kv_heads, tokens, budget, weights, depths, workspace.depths);
  }
  // The last packet of an odd count has one token and is charged whole.
  const auto packets = [&](int head) { return (tokens(head) + 1) / 2; };
  const auto budget = [&](int begin, int end) {
    const Ratio half{plan.value_rate.num, 2 * plan.value_rate.den};
    return std::max(plan.min_depth * sum(packets, begin, end),
                    floor_mul(sum(tokens, begin, end), half));
  };
  const size_t n = static_cast<size_t>(sum(packets, 0, kv_heads));
  const std::span<float> pair_weights = workspace.pair_weights.span().first(n);
  const std::span<uint8_t> pair_depths = workspace.pair_depths.span().first(n);
  // fn(token, its packet, whether it is the packet's first)
  const auto each_token = [&](const auto& fn) {
    size_t at = 0, packet = 0;
    for (int head = 0; head < kv_heads; ++head) {
      for (int64_t j = 0; j < tokens(head); ++j)
        fn(at + static_cast<size_t>(j), packet + static_cast<size_t>(j / 2), j % 2 == 0);
      at += static_cast<size_t>(tokens(head));
      packet += static_cast<size_t>(packets(head));
    }
  };
  each_token([&](size_t token, size_t packet, bool first) {  // exact in double, rounded once
    pair_weights[packet] =
        first ? weights[token]
              : static_cast<float>(double{pair_weights[packet]} + double{weights[token]});
  });
  const Schedule made = over_heads(plan, rule, kv_heads, packets, budget, pair_weights, pair_depths,
                                   workspace.depths);
  each_token([&](size_t token, size_t packet, bool) { depths[token] = pair_depths[packet]; });
  return made;
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
  if (plan.tilt.num < 0 || plan.tilt.num > plan.tilt.den)
    refuse(str("tilt is ", plan.tilt.text(), ", expected 0 to 1"));
  if (plan.tilt.num != 0 && plan.uniform_keys)
    refuse("tilt gives layers different bits, but uniform keys are read equally deep everywhere");
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
  if (plan.sparq_channels < 0 || plan.sparq_tokens < 0)
    refuse("sparq's channels and tokens are counts, expected 0 or more");
  if (!plan.sparq()) return;
  if (plan.width < ReadPlan::kSparqDepth)
    refuse(str("sparq reads channels at ", ReadPlan::kSparqDepth, " bits, but ", plan.width,
               " are stored"));
  if (plan.sinks > 0 || plan.recent > 0 || plan.min_depth > 0 || plan.per_head || plan.pairs ||
      plan.tilt.num != 0 || plan.uniform_keys || plan.uniform_values || plan.two_depth_keys ||
      plan.two_depth_values || plan.calibrated_keys || plan.physical_values)
    refuse(
        "sparq chooses by its own rule: of the reader's switches only store and protect go "
        "with it");
}

ReadPlan at_layer(const ReadPlan& plan, int layer, int n_layers) {
  ReadPlan out = plan;
  out.tilt = {0, 1};
  if (plan.tilt.num == 0 || n_layers < 2) return out;
  const auto lowest = [](int64_t num, int64_t den) {
    const int64_t common = std::gcd(num, den);
    return Ratio{num / common, den / common};
  };
  const Ratio mean = plan.key_rate;
  const Ratio asked = lowest(mean.num * plan.tilt.num, mean.den * plan.tilt.den);
  const Ratio room{plan.width * mean.den - mean.num, mean.den};
  const Ratio most = asked.num * room.den <= room.num * asked.den ? asked : room;
  const Ratio more = lowest(most.num * (n_layers - 1 - 2 * layer), most.den * (n_layers - 1));
  out.key_rate = lowest(mean.num * more.den + more.num * mean.den, mean.den * more.den);
  return out;
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
  const auto items = [&](int) { return channels; };
  const auto budget = [&](int begin, int end) {
    return floor_mul((end - begin) * channels, plan.key_rate);
  };
  return over_heads(plan, rule, kv_heads, items, budget, weights, depths, workspace.depths);
}

bool shares_values(const ReadPlan& plan) {
  return !plan.per_head && !plan.pairs && !plan.uniform_values && !plan.two_depth_values;
}

int64_t value_budget(const ReadPlan& plan, int64_t n_values) {
  return std::min(floor_mul(n_values, plan.value_rate), n_values * plan.width);
}

Schedule schedule_values(const ReadPlan& plan, std::span<const float> weights, int kv_heads,
                         std::span<uint8_t> depths, ScheduleWorkspace& workspace) noexcept {
  const int64_t tokens = static_cast<int64_t>(weights.size()) / kv_heads;
  return over_values(
      plan, weights, kv_heads, [&](int) { return tokens; }, depths, workspace);
}

Schedule schedule_ragged_values(const ReadPlan& plan, std::span<const float> weights,
                                std::span<const int64_t> tokens, std::span<uint8_t> depths,
                                ScheduleWorkspace& workspace) noexcept {
  const auto count = [&](int head) { return tokens[static_cast<size_t>(head)]; };
  return over_values(plan, weights, static_cast<int>(tokens.size()), count, depths, workspace);
}

}  // namespace kvist
