// SPDX-License-Identifier: MIT
// Target names and pinning, on top of Highway's table of chosen targets.
#include "kvist/kernels/targets.h"

#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>

#include "kvist/core/error.h"

namespace kvist::kernels {
namespace {

std::string lower_name(int64_t target) {
  std::string name = hwy::TargetName(target);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

// Bits of Highway targets, best first, as the CPU has them whatever is pinned.
const std::vector<int64_t>& all_targets() {
  static const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  return targets;
}

// 0 until a target is pinned.
std::atomic<int64_t> pinned{0};

int64_t current() {
  const int64_t target = pinned.load(std::memory_order_relaxed);
  return target != 0 ? target : all_targets().front();
}

void set_target(int64_t target) {
  pinned.store(target == all_targets().front() ? 0 : target, std::memory_order_relaxed);
  hwy::SetSupportedTargetsForTest(target == all_targets().front() ? 0 : target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::vector<std::string> available_targets() {
  std::vector<std::string> names;
  for (int64_t target : all_targets()) names.push_back(lower_name(target));
  return names;
}

std::string current_target() { return lower_name(current()); }

void pin_target(const std::string& name) {
  std::string known;
  for (int64_t target : all_targets()) {
    if (lower_name(target) == name) return set_target(target);
    known += (known.empty() ? "" : ", ") + lower_name(target);
  }
  throw Error(ErrorKind::invalid_argument,
              str("SIMD target '", name, "' is not available; this build on this CPU has ", known));
}

void apply_environment() {
  if (const char* name = std::getenv("KVIST_SIMD"); name != nullptr && *name != '\0')
    pin_target(name);
}

void for_each_target(const std::function<void(const std::string&)>& fn) {
  const int64_t before = current();
  for (int64_t target : all_targets()) {
    set_target(target);
    fn(lower_name(target));
  }
  set_target(before);
}

bool avx512_allowed() noexcept {
#if HWY_ARCH_X86
  const int64_t target = current();
  return target == HWY_AVX3 || target == HWY_AVX3_DL;
#else
  return false;
#endif
}

}  // namespace kvist::kernels
