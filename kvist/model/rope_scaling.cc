// SPDX-License-Identifier: MIT
// How positions are stretched: the file's scaling, or the user's in its place, as parameters of
// ggml's rope.
#include "kvist/model/rope_scaling.h"

#include <ggml.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kvist/core/error.h"

namespace kvist {
namespace {

struct Scaling {
  std::string type;
  double factor = 1;
};

Scaling parse_user(const std::string& text) {
  const size_t colon = text.find(':');
  Scaling s{text.substr(0, colon), 0};
  if (colon != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, s.factor);
    if (error != std::errc() || stop != end) s.factor = 0;
  }
  if ((s.type != "linear" && s.type != "yarn") || !(s.factor >= 1 && s.factor <= 1024)) {
    throw Error(
        ErrorKind::invalid_argument,
        str("rope scaling ", quoted(text), ": expected linear:F or yarn:F with F from 1 to 1024"));
  }
  return s;
}

Scaling of_file(const std::string& path, const RopeKeys& keys) {
  if (keys.type != "" && keys.type != "none" && keys.type != "linear" && keys.type != "yarn") {
    throw Error(ErrorKind::unsupported, str(path, ": key rope.scaling.type is ", quoted(keys.type),
                                            ", expected none, linear or yarn"));
  }
  Scaling s{keys.type, keys.factor == 0 ? 1 : keys.factor};
  if (s.type == "" || s.type == "none") s = {"linear", s.type == "none" ? 1 : s.factor};
  return s;
}

}  // namespace

// Between the pairs that turn often (1: their frequency stays) and those that never turn round once
// in the original context (0: divided by the factor), YaRN goes over in a straight line.
RopeTable rope_table(const RopeParams& params, std::span<const float> factors) {
  float bounds[2];
  ggml_rope_yarn_corr_dims(params.dims, params.original_context, params.theta, params.beta_fast,
                           params.beta_slow, bounds);
  const double low = static_cast<double>(bounds[0]), high = static_cast<double>(bounds[1]);
  const double scale = static_cast<double>(params.freq_scale);
  RopeTable table;
  for (int f = 0; f < params.dims / 2; ++f) {
    double own = std::pow(static_cast<double>(params.theta), -2.0 * f / params.dims);
    if (!factors.empty()) own /= static_cast<double>(factors[static_cast<size_t>(f)]);
    const double ramp = 1 - std::clamp((f - low) / std::max(0.001, high - low), 0.0, 1.0);
    const double mix = static_cast<double>(params.ext_factor) * ramp;
    table.frequencies.push_back(own * (scale * (1 - mix) + mix));
  }
  table.magnitude = static_cast<double>(params.attn_factor);
  if (params.ext_factor != 0) table.magnitude *= 1 - 0.1 * std::log(scale);
  return table;
}

RopePlan plan_rope(const std::string& path, const RopeKeys& keys, const std::string& user) {
  const bool replaced = !user.empty();
  const Scaling s = replaced ? parse_user(user) : of_file(path, keys);
  const int original = keys.original_context > 0 ? keys.original_context : keys.context;
  RopePlan plan;
  plan.params.dims = keys.dims;
  plan.params.original_context = original;
  plan.params.theta = static_cast<float>(keys.theta);
  plan.params.freq_scale = static_cast<float>(1 / s.factor);
  plan.params.attn_factor = static_cast<float>(keys.attn_factor);
  if (s.type == "yarn") {
    plan.params.ext_factor =
        1;  // ggml then scales q and k by 1 + 0.1 ln(factor), YaRN's temperature
    plan.params.beta_fast = static_cast<float>(keys.beta_fast);
    plan.params.beta_slow = static_cast<float>(keys.beta_slow);
  }
  plan.params.freq_factors = keys.freq_factors;
  plan.context = replaced
                     ? static_cast<int>(std::min(std::floor(original * s.factor), 1073741824.0))
                     : keys.context;

  plan.info.theta = keys.theta;
  plan.info.dims = keys.dims;
  plan.info.adjacent = keys.adjacent;
  plan.info.factor = s.factor;
  plan.info.original_context = original;
  const std::string scaling = s.type == "yarn" ? "yarn" : s.factor != 1 ? "linear" : "";
  plan.info.scaling = keys.freq_factors ? (scaling.empty() ? "llama3" : "llama3+" + scaling)
                      : scaling.empty() ? "none"
                                        : scaling;
  return plan;
}

}  // namespace kvist
