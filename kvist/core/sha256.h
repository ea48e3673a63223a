// SPDX-License-Identifier: MIT
// SHA-256 (FIPS 180-4): names of documents, contexts and answers that must be the same everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvist {

// 64 lower-case hex digits.
std::string sha256_hex(std::string_view bytes);
// Of token ids as little-endian 32-bit numbers.
std::string sha256_hex(std::span<const int32_t> ids);

}  // namespace kvist
