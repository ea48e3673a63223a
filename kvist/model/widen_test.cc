// SPDX-License-Identifier: MIT
#include "kvist/model/widen.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kvist/core/half.h"
#include "kvist/core/rng.h"

namespace kvist {
namespace {

TEST(RoundToBf16, EqualsTheScalarRoundingForEveryUpperHalf) {
  std::vector<float> from;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      from.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  std::vector<uint16_t> to(from.size());
  round_to_bf16(from.data(), to.data(), static_cast<int64_t>(from.size()));
  for (size_t i = 0; i < from.size(); ++i)
    ASSERT_EQ(to[i], to_bf16(from[i]).bits) << std::bit_cast<uint32_t>(from[i]);
}

TEST(WidenRows, IsGgmlsDequantisationRounded) {
  constexpr int64_t kColumns = 4096 + 256, kRows = 5;
  Rng rng(3);
  std::vector<float> values(static_cast<size_t>(kColumns * kRows));
  for (float& x : values) x = static_cast<float>(rng.gaussian());
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                               GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K}) {
    std::vector<char> stored(static_cast<size_t>(kRows) * ggml_row_size(type, kColumns));
    if (type == GGML_TYPE_F32) {
      std::memcpy(stored.data(), values.data(), stored.size());
    } else {
      ggml_quantize_chunk(type, values.data(), stored.data(), 0, kRows, kColumns, nullptr);
    }
    std::vector<float> want(values.size()), wide(values.size());
    to_f32(type, stored.data(), kColumns * kRows, want.data());
    widen_rows(type, stored.data(), kColumns, 0, 2, GGML_TYPE_F32, wide.data());
    widen_rows(type, stored.data(), kColumns, 2, kRows, GGML_TYPE_F32, wide.data());
    EXPECT_EQ(wide, want) << ggml_type_name(type);
    std::vector<uint16_t> narrow(values.size());
    widen_rows(type, stored.data(), kColumns, 0, kRows, GGML_TYPE_BF16, narrow.data());
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_EQ(narrow[i], to_bf16(want[i]).bits) << ggml_type_name(type);
  }
}

}  // namespace
}  // namespace kvist
