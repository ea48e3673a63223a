// SPDX-License-Identifier: MIT
// The compression function, block by block; its constants come from roots of the first primes.
#include "kvist/core/sha256.h"

#include <array>
#include <bit>
#include <cmath>

#include "kvist/core/error.h"

namespace kvist {
namespace {

struct Constants {
  std::array<uint32_t, 8> start;   // fractions of square roots
  std::array<uint32_t, 64> round;  // fractions of cube roots
};

// floor(2^32 * fraction of the k-th root of p). Doubles have 53 bits, of which
// the whole part takes 5.
uint32_t root_fraction(unsigned p, int k) {
  const double root = k == 2 ? std::sqrt(double(p)) : std::cbrt(double(p));
  return static_cast<uint32_t>((root - std::floor(root)) * 0x1p32);
}

Constants make_constants() {
  Constants c{};
  size_t n = 0;
  for (unsigned p = 2; n < c.round.size(); ++p) {
    bool prime = true;
    for (unsigned d = 2; d * d <= p; ++d) prime &= p % d != 0;
    if (!prime) continue;
    if (n < c.start.size()) c.start[n] = root_fraction(p, 2);
    c.round[n++] = root_fraction(p, 3);
  }
  return c;
}

void add_block(const uint8_t* block, const Constants& c, std::array<uint32_t, 8>* state) {
  std::array<uint32_t, 64> w{};
  for (size_t i = 0; i < 16; ++i) {
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 |
           uint32_t{block[4 * i + 2]} << 8 | uint32_t{block[4 * i + 3]};
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  std::array<uint32_t, 8> s = *state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t e = s[4], a = s[0];
    const uint32_t t1 = s[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & s[5]) ^ (~e & s[6])) + c.round[i] + w[i];
    const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                        ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
    s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
  }
  for (size_t i = 0; i < 8; ++i) (*state)[i] += s[i];
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  static const Constants constants = make_constants();
  std::array<uint32_t, 8> state = constants.start;
  std::string tail(bytes.substr(bytes.size() / 64 * 64));
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  for (size_t at = 0; at + 64 <= bytes.size(); at += 64) add_block(data + at, constants, &state);
  tail += '\x80';
  while (tail.size() % 64 != 56) tail += '\0';
  const uint64_t n_bits = uint64_t{8} * bytes.size();
  for (int shift = 56; shift >= 0; shift -= 8) tail += static_cast<char>(n_bits >> shift & 0xff);
  for (size_t at = 0; at < tail.size(); at += 64)
    add_block(reinterpret_cast<const uint8_t*>(tail.data()) + at, constants, &state);
  std::string hex;
  for (uint32_t word : state) hex += fmt::format("{:08x}", word);
  return hex;
}

std::string sha256_hex(std::span<const int32_t> ids) {
  std::string bytes;
  bytes.reserve(4 * ids.size());
  for (int32_t id : ids) {
    const auto u = static_cast<uint32_t>(id);
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(u >> shift & 0xff);
  }
  return sha256_hex(std::string_view(bytes));
}

}  // namespace kvist
