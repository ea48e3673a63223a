// SPDX-License-Identifier: MIT
// Which instruction set the kernels run on: its name, pinning it, and running a test on each.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace kvist::kernels {

// Names of the instruction sets compiled in that this CPU has, best first, in lower case:
// "avx3_dl", "avx3", "avx2", "scalar".
std::vector<std::string> available_targets();
// The one in use.
std::string current_target();
// Uses `name` from now on, for all threads. Throws invalid_argument listing what there is.
// KVIST_SIMD=name in the environment does the same at start (apply_environment, called once by
// main).
void pin_target(const std::string& name);
void apply_environment();
// Calls fn(name) with each available target pinned in turn, then restores the choice. For tests.
void for_each_target(const std::function<void(const std::string&)>& fn);
// False once a target without AVX-512 is pinned: code with intrinsics of its own asks before it
// runs.
bool avx512_allowed() noexcept;

}  // namespace kvist::kernels
