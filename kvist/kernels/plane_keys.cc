// SPDX-License-Identifier: MIT
// Encoding, sealing and the logits of a page, by tables where the CPU has them and by decoding to
// float elsewhere.
#include "kvist/kernels/plane_keys.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/plane_keys.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kvist/kernels/attend-inl.h"
#include "kvist/kernels/plane_code-inl.h"
#include "kvist/kernels/plane_internal.h"
#include "kvist/kernels/plane_tables-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

bool tables_here() { return HWY_TARGET == HWY_AVX3_DL; }

#if HWY_TARGET != HWY_SCALAR
using Codes = hn::CappedTag<float, 16>;
constexpr int kCodes = static_cast<int>(hn::MaxLanes(Codes()));

// Leaves of 16 or fewer quotients; *finite is cleared where one is not. The guide tells how many
// thresholds lie below a bin, and at most two lie between its start and the end of the next.
HWY_INLINE void leaves_of(hn::Vec<Codes> z, const int32_t* guide, bool* finite, uint8_t* leaf) {
  const Codes d;
  const hn::RebindToSigned<Codes> di;
  const hn::CappedTag<uint8_t, kCodes> d8;
  *finite &= hn::AllTrue(d, hn::Le(hn::Abs(z), hn::Set(d, 3.4028235e38f)));
  const auto ends = hn::Set(d, static_cast<float>(internal::kGuideReach));
  const auto near = hn::Min(hn::Max(z, hn::Neg(ends)), ends);
  const auto scaled =
      hn::Mul(hn::Add(near, ends), hn::Set(d, static_cast<float>(internal::kGuideBins)));
  // Adding the reach rounds, which may carry z over the edge of its bin: the bin before is safe.
  const auto one = hn::Set(di, 1);
  const auto bin = hn::Sub(hn::Max(hn::ConvertTo(di, scaled), one), one);
  auto count = hn::GatherIndex(di, guide, bin);
  for (int step = 0; step < 2; ++step) {
    const auto right = hn::Ge(z, hn::GatherIndex(d, internal::guarded_thresholds(), count));
    count = hn::IfThenElse(hn::RebindMask(di, right), hn::Add(count, one), count);
  }
  hn::StoreU(hn::DemoteTo(d8, count), d8, leaf);
}
#endif

bool encode(const float* x, const float* mu, const float* sigma, int n, uint8_t* leaf) {
  bool finite = true;
  int i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Codes d;
  const int32_t* guide = internal::tree_guide();
  for (; i + kCodes <= n; i += kCodes) {
    const auto shifted = hn::Sub(hn::LoadU(d, x + i), hn::LoadU(d, mu + i));
    leaves_of(hn::Div(shifted, hn::LoadU(d, sigma + i)), guide, &finite, leaf + i);
  }
#endif
  for (; i < n; ++i) {
    const float z = (x[i] - mu[i]) / sigma[i];
    finite &= std::isfinite(z);
    leaf[i] = tree_leaf(z);
  }
  return finite;
}

bool encode_block(const float* x, const float* mu, const float* sigma, int head_dim,
                  uint8_t* leaf) {
  bool finite = true;
  for (int c = 0; c < head_dim; ++c, x += kBlock, leaf += kBlock) {
#if HWY_TARGET == HWY_SCALAR
    for (int i = 0; i < kBlock; ++i) {
      const float z = (x[i] - mu[c]) / sigma[c];
      finite &= std::isfinite(z);
      leaf[i] = tree_leaf(z);
    }
#else
    const Codes d;
    const auto m = hn::Set(d, mu[c]), s = hn::Set(d, sigma[c]);
    const int32_t* guide = internal::tree_guide();
    for (int i = 0; i < kBlock; i += kCodes)
      leaves_of(hn::Div(hn::Sub(hn::LoadU(d, x + i), m), s), guide, &finite, leaf + i);
#endif
  }
  return finite;
}

void seal(const uint8_t* open, int n_tokens, int head_dim, int width, const uint8_t* depths,
          uint8_t* page) {
  for (int block = 0; block * 64 < n_tokens; ++block) {
    for (int c = 0; c < head_dim; ++c) {
      const int planes = depths == nullptr ? width : depths[c];
      if (planes == 0) continue;
      split_planes(open + (int64_t{block} * head_dim + c) * 64, planes,
                   page + int64_t{c} * width * kPlaneBytes + block * 8, kPlaneBytes);
    }
  }
}

// One 64-byte line after the other of what the next page will read, spread over this one's blocks.
HWY_INLINE void prefetch_lines(const KeyReader& reader, const uint8_t* next, int block) {
  const int n = reader.n_steps * 16;
  for (int i = n * block / 8; i < n * (block + 1) / 8; ++i)
    __builtin_prefetch(next + reader.lines[i], 0, 2);
}

#if HWY_TARGET == HWY_AVX3_DL
void fill_tables(const KeyReader& reader, const internal::Nibble* nibbles, const float* weight) {
  const Patterns& pattern = patterns();
  for (int r = 0; r < reader.rows; ++r) {
    const float* w = weight + int64_t{r} * reader.head_dim;
    const float scale = reader.unit[r] == 0 ? 0 : 1 / reader.unit[r];
    for (int s = 0; s < reader.n_steps; ++s)
      step_tables(
          nibbles + 4 * s, pattern, scale, [w](int32_t c) HWY_ATTR { return w[c]; },
          reader.tables + (int64_t{r} * reader.n_steps + s) * internal::kStepBytes);
  }
}

void tables_block(const KeyReader& reader, const uint8_t* page, int block, float* out,
                  int64_t stride, uint8_t* index) {
  for (int s = 0; s < reader.n_steps; ++s) {
    uint64_t planes[16];
    for (int i = 0; i < 16; ++i)
      std::memcpy(&planes[i], page + reader.lines[16 * s + i] + 8 * block, 8);
    step_indices(planes, index + int64_t{s} * 256);
  }
  add_tables(index, reader.n_steps, reader.tables, int64_t{reader.n_steps} * internal::kStepBytes,
             reader.unit, reader.rows, out, stride, 64);
}
#else
void fill_tables(const KeyReader&, const internal::Nibble*, const float*) {}
void tables_block(const KeyReader&, const uint8_t*, int, float*, int64_t, uint8_t*) {}
#endif

// out[r][0, 64) = base + the decoded channels; decoded [n_decoded][64], sums [8][64].
void decoded_block(const KeyReader& reader, const uint8_t* page, int block, float* out,
                   int64_t stride, float* decoded, float* sums) {
  const int n = reader.n_decoded;
  for (int i = 0; i < n; ++i) {
    const int c = reader.channels[i];
    decode64(page + int64_t{c} * reader.width * kPlaneBytes + 8 * block, kPlaneBytes,
             reader.depths[c], decoded + int64_t{i} * 64);
  }
  for (int r = 0; r < reader.rows; r += 8) {
    const int rows = std::min(8, reader.rows - r);
    if (n > 0)
      score_rows<false>(static_cast<const float*>(decoded), n, reader.weights + int64_t{r} * n,
                        rows, sums, 64);
    for (int i = 0; i < rows; ++i) {
      float* to = out + (r + i) * stride;
      const Vec base = hn::Set(Floats(), reader.base[r + i]);
      for (int j = 0; j < 64; j += kLanes) {
        const Vec sum = n > 0 ? hn::LoadU(Floats(), sums + i * 64 + j) : hn::Zero(Floats());
        hn::StoreU(hn::Add(base, sum), Floats(), to + j);
      }
    }
  }
}

void logits(const KeyReader& reader, const uint8_t* page, int n_blocks, const uint8_t* next,
            float* out, int64_t stride, std::byte* scratch) {
  float* sums = reinterpret_cast<float*>(scratch);
  float* decoded = sums + 8 * 64;
  auto* index = reinterpret_cast<uint8_t*>(decoded + int64_t{reader.n_decoded} * 64);
  for (int block = 0; block < n_blocks; ++block, out += 64) {
    if (next != nullptr) prefetch_lines(reader, next, block);
    decoded_block(reader, page, block, out, stride, decoded, sums);
    if (reader.n_steps > 0) tables_block(reader, page, block, out, stride, index);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
HWY_EXPORT(tables_here);
HWY_EXPORT(encode);
HWY_EXPORT(encode_block);
HWY_EXPORT(seal);
HWY_EXPORT(fill_tables);
HWY_EXPORT(logits);

namespace {

size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// A table step holds at least four channels of one depth but the last of each.
int max_steps(int head_dim) { return (head_dim + 3 + 3) / 4 + 1; }

struct Carver {
  std::byte* at;
  template <typename T>
  T* take(size_t n) {
    T* out = reinterpret_cast<T*>(at);
    at += lines(n * sizeof(T));
    return out;
  }
};

// Tables and line offsets of the nibbles; the last step is filled up with empty ones.
void plan_tables(KeyReader* reader, internal::Nibble* nibbles, int n, const float* weight) {
  reader->n_steps = (n + 3) / 4;
  for (int i = n; i < 4 * reader->n_steps; ++i) {
    nibbles[i] = nibbles[0];
    nibbles[i].n = 0;
  }
  for (int i = 0; i < 4 * reader->n_steps; ++i) {
    for (int bit = 0; bit < 4; ++bit) {
      const internal::PlaneOf at = internal::plane_of(nibbles[i], bit);
      reader->lines[4 * i + bit] =
          static_cast<uint32_t>((at.item * reader->width + at.plane - 1) * kPlaneBytes);
    }
  }
  for (int r = 0; r < reader->rows; ++r) {
    const float* w = weight + int64_t{r} * reader->head_dim;
    float largest = 0;
    for (int i = 0; i < n; ++i)
      largest = std::max(largest, internal::largest_entry(nibbles[i], [w](int c) { return w[c]; }));
    reader->unit[r] = largest / 127;
  }
  HWY_DYNAMIC_DISPATCH(fill_tables)(*reader, nibbles, weight);
}

}  // namespace

bool has_plane_tables() noexcept { return HWY_DYNAMIC_DISPATCH(tables_here)(); }

bool encode_leaves(const float* x, const float* mu, const float* sigma, int n,
                   uint8_t* leaf) noexcept {
  return HWY_DYNAMIC_DISPATCH(encode)(x, mu, sigma, n, leaf);
}

bool encode_columns(const float* x, const float* mu, const float* sigma, int head_dim,
                    uint8_t* leaf) noexcept {
  return HWY_DYNAMIC_DISPATCH(encode_block)(x, mu, sigma, head_dim, leaf);
}

void seal_keys(const uint8_t* open, int n_tokens, int head_dim, int width, const uint8_t* depths,
               uint8_t* page) noexcept {
  HWY_DYNAMIC_DISPATCH(seal)(open, n_tokens, head_dim, width, depths, page);
}

size_t key_reader_bytes(int head_dim, int rows) noexcept {
  const size_t d = static_cast<size_t>(head_dim), steps = static_cast<size_t>(max_steps(head_dim));
  const size_t r = static_cast<size_t>(rows);
  return lines(4 * 16 * steps) + r * steps * internal::kStepBytes + lines(4 * r) + lines(4 * d) +
         lines(4 * r * d) + lines(sizeof(internal::Nibble) * 4 * steps);
}

KeyReader make_key_reader(const uint8_t* depths, const float* weight, const float* base, int rows,
                          int head_dim, int width, Precision precision,
                          std::byte* memory) noexcept {
  const size_t d = static_cast<size_t>(head_dim), steps = static_cast<size_t>(max_steps(head_dim));
  const size_t r = static_cast<size_t>(rows);
  Carver carver{memory};
  KeyReader reader{.head_dim = head_dim, .width = width, .rows = rows, .depths = depths};
  reader.lines = carver.take<uint32_t>(16 * steps);
  reader.tables = carver.take<int8_t>(r * steps * internal::kStepBytes);
  reader.unit = carver.take<float>(r);
  reader.channels = carver.take<int32_t>(d);
  reader.weights = carver.take<float>(r * d);
  reader.base = base;
  const bool tables = precision == Precision::fast && has_plane_tables();
  for (int c = 0; c < head_dim; ++c) {
    if (depths[c] > (tables ? internal::kTableDepth : 0)) reader.channels[reader.n_decoded++] = c;
  }
  for (int row = 0; row < rows; ++row) {
    reader.unit[row] = 0;
    for (int i = 0; i < reader.n_decoded; ++i)
      reader.weights[row * reader.n_decoded + i] = weight[row * head_dim + reader.channels[i]];
  }
  if (tables) {
    auto* nibbles = carver.take<internal::Nibble>(4 * steps);
    const int n = internal::make_nibbles(depths, head_dim, nibbles);
    if (n > 0) plan_tables(&reader, nibbles, n, weight);
  }
  return reader;
}

float key_table_error(const KeyReader& reader, int r) noexcept {
  return reader.unit[r] * 0.5f * 4 * static_cast<float>(reader.n_steps);
}

size_t key_scratch_bytes(int head_dim) noexcept {
  const size_t d = static_cast<size_t>(head_dim);
  return 4 * (8 * 64 + 64 * d) + 256 * static_cast<size_t>(max_steps(head_dim));
}

void key_logits(const KeyReader& reader, const uint8_t* page, int n_blocks, const uint8_t* next,
                float* out, int64_t stride, std::byte* scratch) noexcept {
  HWY_DYNAMIC_DISPATCH(logits)(reader, page, n_blocks, next, out, stride, scratch);
}

}  // namespace kvist::kernels
#endif  // HWY_ONCE
