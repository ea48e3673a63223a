// SPDX-License-Identifier: MIT
// Encoding, sealing and the logits of a page, in bytes where the CPU can and by decoding to
// float elsewhere.
#include "kvist/kernels/plane_keys.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/plane_keys.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kvist/kernels/attend-inl.h"
#include "kvist/kernels/plane_bytes-inl.h"
#include "kvist/kernels/plane_code-inl.h"
#include "kvist/kernels/plane_nibbles-inl.h"
#include "kvist/kernels/plane_pages-inl.h"
#include "kvist/kernels/tree_guide.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

bool bytes_here() {
#if HWY_TARGET == HWY_AVX3_DL
  return __builtin_cpu_supports("gfni") != 0;
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return true;
#else
  return false;
#endif
}

#if HWY_TARGET != HWY_SCALAR
using Codes = hn::CappedTag<float, 16>;
constexpr int kCodes = static_cast<int>(hn::MaxLanes(Codes()));

#if HWY_TARGET <= HWY_AVX3
// Thresholds of each level of the tree by the prefix that leads there: in registers all of them, as
// gathers of 16 would take three times as long.
struct LevelTables {
  alignas(64) float at[kTreeDepth][1 << (kTreeDepth - 1)];
};
inline const LevelTables& level_tables() {
  static const LevelTables made = [] {
    LevelTables t{};
    for (int level = 0; level < kTreeDepth; ++level)
      for (int prefix = 0; prefix < 1 << level; ++prefix)
        t.at[level][prefix] = kTreeThresholds[((2 * prefix + 1) << (kTreeDepth - 1 - level)) - 1];
    return t;
  }();
  return made;
}

class Descent {
 public:
  Descent() : tables_(level_tables()) {}
  HWY_INLINE __m512i leaves(__m512 z) const {
    const __m512i one = _mm512_set1_epi32(1);
    const auto down = [=](__m512i prefix, __m512 threshold) HWY_ATTR {
      const __mmask16 right = _mm512_cmp_ps_mask(z, threshold, _CMP_GE_OQ);
      prefix = _mm512_add_epi32(prefix, prefix);
      return _mm512_mask_add_epi32(prefix, right, prefix, one);
    };
    __m512i prefix = down(_mm512_setzero_si512(), _mm512_set1_ps(tables_.at[0][0]));
#pragma GCC unroll 4
    for (int level = 1; level < 5; ++level)
      prefix = down(prefix, _mm512_permutexvar_ps(prefix, some(level, 0)));
    prefix = down(prefix, of32(5, 0, prefix));
    const __mmask16 second = _mm512_test_epi32_mask(prefix, _mm512_set1_epi32(32));
    prefix = down(prefix, _mm512_mask_blend_ps(second, of32(6, 0, prefix), of32(6, 1, prefix)));
    const __mmask16 odd = _mm512_test_epi32_mask(prefix, _mm512_set1_epi32(32));
    const __mmask16 upper = _mm512_test_epi32_mask(prefix, _mm512_set1_epi32(64));
    const __m512 low = _mm512_mask_blend_ps(odd, of32(7, 0, prefix), of32(7, 1, prefix));
    const __m512 high = _mm512_mask_blend_ps(odd, of32(7, 2, prefix), of32(7, 3, prefix));
    return down(prefix, _mm512_mask_blend_ps(upper, low, high));
  }

 private:
  HWY_INLINE __m512 some(int level, int i) const {
    return _mm512_load_ps(tables_.at[level] + 16 * i);
  }
  HWY_INLINE __m512 of32(int level, int i, __m512i prefix) const {
    return _mm512_permutex2var_ps(some(level, 2 * i), prefix, some(level, 2 * i + 1));
  }
  const LevelTables& tables_;
};
#else
// The guide tells how many thresholds lie below a bin, and at most two lie between its start and
// the end of the next.
class Descent {
 public:
  Descent() : guide_(internal::tree_guide()) {}
  HWY_INLINE hn::Vec<hn::RebindToSigned<Codes> > leaves(hn::Vec<Codes> z) const {
    const Codes d;
    const hn::RebindToSigned<Codes> di;
    const auto ends = hn::Set(d, static_cast<float>(internal::kGuideReach));
    const auto near = hn::Min(hn::Max(z, hn::Neg(ends)), ends);
    const auto scaled =
        hn::Mul(hn::Add(near, ends), hn::Set(d, static_cast<float>(internal::kGuideBins)));
    // Adding the reach rounds, which may carry z over the edge of its bin: the bin before is safe.
    const auto one = hn::Set(di, 1);
    const auto bin = hn::Sub(hn::Max(hn::ConvertTo(di, scaled), one), one);
    auto count = hn::GatherIndex(di, guide_, bin);
    for (int step = 0; step < 2; ++step) {
      const auto right = hn::Ge(z, hn::GatherIndex(d, internal::guarded_thresholds(), count));
      count = hn::IfThenElse(hn::RebindMask(di, right), hn::Add(count, one), count);
    }
    return count;
  }

 private:
  const int32_t* guide_;
};
#endif

// Leaves of kCodes quotients; *finite is cleared where one is not.
HWY_INLINE void leaves_of(hn::Vec<Codes> z, const Descent& descent, bool* finite, uint8_t* leaf) {
  const Codes d;
  *finite &= hn::AllTrue(d, hn::Le(hn::Abs(z), hn::Set(d, 3.4028235e38f)));
#if HWY_TARGET <= HWY_AVX3
  _mm_storeu_si128(reinterpret_cast<__m128i*>(leaf), _mm512_cvtepi32_epi8(descent.leaves(z.raw)));
#else
  const hn::CappedTag<uint8_t, kCodes> d8;
  hn::StoreU(hn::DemoteTo(d8, descent.leaves(z)), d8, leaf);
#endif
}
#endif

bool encode(const float* x, const float* mu, const float* sigma, int n, uint8_t* leaf) {
  bool finite = true;
  int i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Codes d;
  const Descent descent;
  for (; i + kCodes <= n; i += kCodes) {
    const auto shifted = hn::Sub(hn::LoadU(d, x + i), hn::LoadU(d, mu + i));
    leaves_of(hn::Div(shifted, hn::LoadU(d, sigma + i)), descent, &finite, leaf + i);
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
#if HWY_TARGET != HWY_SCALAR
  const Descent descent;
#endif
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
    for (int i = 0; i < kBlock; i += kCodes)
      leaves_of(hn::Div(hn::Sub(hn::LoadU(d, x + i), m), s), descent, &finite, leaf + i);
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

// The lines of an eighth of the steps in the next page, one call a block.
HWY_INLINE void prefetch_lines(const KeyReader& reader, const uint8_t* next, int block) {
  const int n = reader.n_steps * 4;
  for (int i = n * block / 8; i < n * (block + 1) / 8; ++i) {
    const int c = reader.items[i];
    const uint8_t* line = next + int64_t{c} * reader.width * kPlaneBytes;
    for (int s = 0; s < reader.depths[c]; ++s) __builtin_prefetch(line + s * kPlaneBytes, 0, 2);
  }
}

// Steps by depth, filled up with the depth's first channel at weight 0; unit[depth] is what a byte
// stands for there. Returns how many channels are summed in bytes.
int make_steps(KeyReader* reader, const float* unit) {
  int n = 0, used = 0;
  for (int depth = 1; depth <= kByteDepth; ++depth) {
    const int first = n;
    for (int c = 0; c < reader->head_dim; ++c)
      if (reader->depths[c] == depth) reader->items[n++] = c;
    const int own = n;
    while (n % kStepItems != 0) reader->items[n++] = reader->items[first];
    reader->steps[depth] = (n - first) / kStepItems;
    used += own - first;
    for (int i = first; i < n; ++i) reader->relative[i] = i < own ? unit[depth] / byte_unit() : 0;
  }
  reader->n_steps = n / kStepItems;
  return used;
}

// What row r's weights stand for, given their sum as bytes, their sizes' sum, what they were
// multiplied by, and of how many channels they are.
// |w c - w' c'| <= |w| |c - c'| + |w - w'| |c'|
void close_row(KeyReader* reader, int r, int sum, float all, float scale, int used) {
  reader->zero[r] = kByteZero * sum;
  reader->unit[r] = scale == 0 ? 0 : byte_unit() / scale;
  reader->error[r] =
      0.5f * byte_unit() * all + static_cast<float>(used) * 0.5f * 127.5f * reader->unit[r];
}

#if HWY_TARGET == HWY_AVX3_DL
void fill_bytes(KeyReader* reader, const float* weight) {
  const int used = make_steps(reader, byte_tables().unit), n = kStepItems * reader->n_steps;
  const auto lanes_at = [=](int i) HWY_ATTR {
    return static_cast<__mmask16>(n - i >= 16 ? 0xFFFF : (1u << (n - i)) - 1);
  };
  for (int r = 0; r < reader->rows; ++r) {
    const float* row = weight + int64_t{r} * reader->head_dim;
    const auto w = [=](int i, __mmask16 lanes) HWY_ATTR {
      const __m512i item = _mm512_maskz_loadu_epi32(lanes, reader->items + i);
      const __m512 x = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, item, row, 4);
      return _mm512_mul_ps(x, _mm512_maskz_loadu_ps(lanes, reader->relative + i));
    };
    __m512 top = _mm512_setzero_ps(), all = top;
    for (int i = 0; i < n; i += 16) {
      const __m512 x = _mm512_abs_ps(w(i, lanes_at(i)));
      top = _mm512_max_ps(top, x), all = _mm512_add_ps(all, x);
    }
    const float largest = _mm512_reduce_max_ps(top);
    const float scale = largest < 1e-35f ? 0 : 127 / largest;
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < n; i += 16) {
      const __m512 x = _mm512_mul_ps(w(i, lanes_at(i)), _mm512_set1_ps(scale));
      const __m512i whole = _mm512_cvtps_epi32(x);
      sum = _mm512_add_epi32(sum, whole);
      _mm_mask_storeu_epi8(reader->bytes + r * reader->row_bytes() + i, lanes_at(i),
                           _mm512_cvtepi32_epi8(whole));
    }
    close_row(reader, r, _mm512_reduce_add_epi32(sum), _mm512_reduce_add_ps(all), scale, used);
  }
}

// Steps [at, at + n) of one depth.
struct Steps {
  const int32_t* item;
  int n;
  int64_t channel_bytes;
};

template <int kDepth>
uint8_t* transpose_steps(const Steps& steps, const uint8_t* page, uint8_t* groups) {
  const int32_t* item = steps.item;
  for (int s = 0; s < steps.n; ++s, item += kStepItems) {
    int64_t channel[kStepItems];
    for (int m = 0; m < kStepItems; ++m) channel[m] = item[m] * steps.channel_bytes;
    transpose_step<kDepth>(page, channel, groups);
    groups += step_groups(kDepth) * kGroupBytes;
  }
  return groups;
}

template <int kDepth>
HWY_INLINE void read_steps(int n, const uint8_t** groups, uint8_t** bytes) {
  if (n == 0) return;
  const StepBytes<kDepth> reader;
  const uint8_t* from = *groups;
  uint8_t* to = *bytes;
  for (int s = 0; s < n; ++s, from += step_groups(kDepth) * kGroupBytes, to += 256)
    reader.read(from, to);
  *groups = from, *bytes = to;
}

void bytes_page(const KeyReader& reader, const uint8_t* page, int n_tokens, const uint8_t* next,
                float* out, int64_t stride, uint8_t* scratch) {
  const int32_t* item = reader.items;
  const auto steps = [&](int depth) {
    const int n = reader.steps[depth];
    return Steps{std::exchange(item, item + n * kStepItems), n,
                 int64_t{reader.width} * kPlaneBytes};
  };
  uint8_t* const groups = scratch;
  uint8_t* end = transpose_steps<1>(steps(1), page, groups);
  end = transpose_steps<2>(steps(2), page, end);
  end = transpose_steps<3>(steps(3), page, end);
  end = transpose_steps<4>(steps(4), page, end);
  end = transpose_steps<5>(steps(5), page, end);
  uint8_t* const bytes = transpose_steps<6>(steps(6), page, end);
  // Tokens 128 l + 16 j + (0 .. 15); a short page has no more than those of l = 0.
  for (int j = 0; j < std::min(8, (n_tokens + 15) / 16); ++j) {
    if (next != nullptr) prefetch_lines(reader, next, j);
    const uint8_t* from = groups + 64 * j;
    uint8_t* to = bytes;
    read_steps<1>(reader.steps[1], &from, &to);
    read_steps<2>(reader.steps[2], &from, &to);
    read_steps<3>(reader.steps[3], &from, &to);
    read_steps<4>(reader.steps[4], &from, &to);
    read_steps<5>(reader.steps[5], &from, &to);
    read_steps<6>(reader.steps[6], &from, &to);
    add_bytes<true>(bytes, reader.n_steps, reinterpret_cast<const int32_t*>(reader.bytes),
                    reader.row_bytes() / kStepItems, reader.zero, reader.unit, reader.rows,
                    out + 16 * j, stride, n_tokens - 16 * j);
  }
}
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// Two products of a byte and a weight must stay in 16 bits.
constexpr float kMostWeight = 63;

void fill_bytes(KeyReader* reader, const float* weight) {
  float unit[kByteDepth + 1];
  std::fill_n(unit, kByteDepth + 1, byte_unit());
  const int used = make_steps(reader, unit), n = kStepItems * reader->n_steps;
  for (int r = 0; r < reader->rows; ++r) {
    const float* row = weight + int64_t{r} * reader->head_dim;
    const auto w = [=](int i) { return row[reader->items[i]] * reader->relative[i]; };
    float largest = 0, all = 0;
    for (int i = 0; i < n; ++i) largest = std::max(largest, std::abs(w(i))), all += std::abs(w(i));
    const float scale = largest < 1e-35f ? 0 : kMostWeight / largest;
    int sum = 0;
    for (int i = 0; i < n; ++i) {
      const auto whole = static_cast<int>(std::lrint(w(i) * scale));
      sum += whole;
      reader->bytes[r * reader->row_bytes() + i] = static_cast<int8_t>(whole);
    }
    close_row(reader, r, sum, all, scale, used);
  }
}

constexpr int kHalfTokens = 256;  // of a page, whose planes are one vector each
constexpr int kSumRows = 8;       // rows whose sums are held until they are put in order

// Half a page: planes to nibbles, then tokens 8 k + j for each j.
void bytes_half(const KeyReader& reader, const uint8_t* half, int n_tokens, const uint8_t* next,
                int first_block, float* out, int64_t stride, uint8_t* scratch) {
  auto* sums = reinterpret_cast<int32_t*>(scratch);  // [kSumRows][8][32]
  uint8_t* const packed = scratch + kSumRows * kHalfTokens * 4;
  uint8_t* to = packed;
  const int32_t* item = reader.items;
  for_byte_depths([&](auto depth) HWY_ATTR {
    for (int i = 0; i < kStepItems * reader.steps[depth]; ++i, ++item) {
      const uint8_t* planes = half + int64_t{*item} * reader.width * kPlaneBytes;
      pack_planes<depth>(
          [=](int s) HWY_ATTR {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(planes + s * kPlaneBytes));
          },
          to);
      to += packed_vectors(depth) * kVectorBytes;
    }
  });
  uint8_t* const bytes = to;
  constexpr int64_t kStep = kStepItems * kVectorBytes;
  for (int first = 0; first < reader.rows; first += kSumRows) {
    const int rows = std::min(kSumRows, reader.rows - first);
    for (int j = 0; j < 8; ++j) {
      if (next != nullptr && first == 0 && j % 2 == 0)
        prefetch_lines(reader, next, first_block + j / 2);
      nibble_steps<kStepItems, true>(reader.steps, j, packed, bytes);
      for_row_parts(rows, [&](int r0, auto n) HWY_ATTR {
        const int8_t* weights = reader.bytes + int64_t{first + r0} * reader.row_bytes();
        for (int pair = 0; pair < 4; pair += 2) {
          two_vectors<n, true>(
              bytes + kVectorBytes * pair, reader.n_steps, kStep,
              [=, row_bytes = reader.row_bytes()](int r, int s) HWY_ATTR {
                int32_t four;
                std::memcpy(&four, weights + r * row_bytes + kStepItems * s, 4);
                return _mm256_set1_epi32(four);
              },
              [=](int r, int q, __m256i sum) HWY_ATTR {
                int32_t* to_sums = sums + (r0 + r) * kHalfTokens + 32 * j + 4 * (pair + q);
                _mm_store_si128(reinterpret_cast<__m128i*>(to_sums), _mm256_castsi256_si128(sum));
                _mm_store_si128(reinterpret_cast<__m128i*>(to_sums + 16),
                                _mm256_extracti128_si256(sum, 1));
              });
        }
      });
    }
    for (int r = 0; r < rows; ++r) {
      float* row = out + (first + r) * stride;
      for (int k = 0; k < std::min(32, n_tokens / 8); k += 8)
        add_in_order(sums + r * kHalfTokens + k, 32, reader.zero[first + r], reader.unit[first + r],
                     row + 8 * k);
    }
  }
}

void bytes_page(const KeyReader& reader, const uint8_t* page, int n_tokens, const uint8_t* next,
                float* out, int64_t stride, uint8_t* scratch) {
  for (int at = 0; at < n_tokens; at += kHalfTokens)
    bytes_half(reader, page + at / 8, n_tokens - at, next, at / 64, out + at, stride, scratch);
}
#else
void fill_bytes(KeyReader*, const float*) {}
void bytes_page(const KeyReader&, const uint8_t*, int, const uint8_t*, float*, int64_t, uint8_t*) {}
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
  auto* bytes = reinterpret_cast<uint8_t*>(decoded + int64_t{reader.n_decoded} * 64);
  for (int block = 0; block < n_blocks; ++block)
    decoded_block(reader, page, block, out + 64 * block, stride, decoded, sums);
  if (reader.n_steps > 0) bytes_page(reader, page, 64 * n_blocks, next, out, stride, bytes);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
HWY_EXPORT(bytes_here);
HWY_EXPORT(encode);
HWY_EXPORT(encode_block);
HWY_EXPORT(seal);
HWY_EXPORT(fill_bytes);
HWY_EXPORT(logits);

namespace {

size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr int kMostInBytes = 6;
size_t max_bytes(int head_dim) {
  return static_cast<size_t>(KeyReader{.head_dim = head_dim}.row_bytes());
}

struct Carver {
  std::byte* at;
  template <typename T>
  T* take(size_t n) {
    T* out = reinterpret_cast<T*>(at);
    at += lines(n * sizeof(T));
    return out;
  }
};

}  // namespace

bool has_plane_bytes() noexcept { return HWY_DYNAMIC_DISPATCH(bytes_here)(); }

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
  const size_t d = static_cast<size_t>(head_dim), r = static_cast<size_t>(rows);
  return 2 * lines(4 * max_bytes(head_dim)) + lines(r * max_bytes(head_dim)) + 3 * lines(4 * r) +
         lines(4 * d) + lines(4 * r * d);
}

KeyReader make_key_reader(const uint8_t* depths, const float* weight, const float* base, int rows,
                          int head_dim, int width, Precision precision,
                          std::byte* memory) noexcept {
  const size_t d = static_cast<size_t>(head_dim), r = static_cast<size_t>(rows);
  Carver carver{memory};
  KeyReader reader{.head_dim = head_dim, .width = width, .rows = rows, .depths = depths};
  reader.items = carver.take<int32_t>(max_bytes(head_dim));
  reader.relative = carver.take<float>(max_bytes(head_dim));
  reader.bytes = carver.take<int8_t>(r * max_bytes(head_dim));
  reader.zero = carver.take<int32_t>(r);
  reader.unit = carver.take<float>(r);
  reader.error = carver.take<float>(r);
  reader.channels = carver.take<int32_t>(d);
  reader.weights = carver.take<float>(r * d);
  reader.base = base;
  const bool bytes = precision == Precision::fast && has_plane_bytes();
  for (int c = 0; c < head_dim; ++c) {
    if (depths[c] > (bytes ? kMostInBytes : 0)) reader.channels[reader.n_decoded++] = c;
  }
  for (int row = 0; row < rows; ++row) {
    reader.unit[row] = reader.error[row] = 0;
    for (int i = 0; i < reader.n_decoded; ++i)
      reader.weights[row * reader.n_decoded + i] = weight[row * head_dim + reader.channels[i]];
  }
  if (bytes) HWY_DYNAMIC_DISPATCH(fill_bytes)(&reader, weight);
  return reader;
}

float key_bytes_error(const KeyReader& reader, int r) noexcept { return reader.error[r]; }

size_t key_scratch_bytes(int head_dim) noexcept {
  const size_t d = static_cast<size_t>(head_dim);
  // Bytes of 64 tokens, and at most a transposed group of eight lines a channel.
  return 4 * (8 * 64 + 64 * d) + (64 + 8 * kPlaneBytes) * max_bytes(head_dim);
}

void key_logits(const KeyReader& reader, const uint8_t* page, int n_blocks, const uint8_t* next,
                float* out, int64_t stride, std::byte* scratch) noexcept {
  HWY_DYNAMIC_DISPATCH(logits)(reader, page, n_blocks, next, out, stride, scratch);
}

}  // namespace kvist::kernels
#endif  // HWY_ONCE
