// SPDX-License-Identifier: MIT
// What SparQ attention (arXiv:2312.04985) chooses: channels by the query, tokens by what those
// channels say of them. Among equals the smaller index comes first.
#pragma once

#include <cstdint>
#include <span>

namespace kvist {

// The n largest of sums: chosen [sums.size()] becomes 1 for them and 0 for the others. `order`
// [sums.size()] is scratch.
void choose_channels(std::span<const float> sums, int n, std::span<uint8_t> chosen,
                     std::span<uint32_t> order) noexcept;

// The share of |q|_1 that lies in the chosen channels; 1 for a query of zeros. Logits of these
// channels alone are divided by its root, beside the usual scale.
double chosen_share(std::span<const float> q, std::span<const uint8_t> chosen) noexcept;

// The last token and the n best of the others by score: their indices ascending, at the front of
// `order` [scores.size()]; returns how many.
int choose_tokens(std::span<const float> scores, int n, std::span<uint32_t> order) noexcept;

}  // namespace kvist
