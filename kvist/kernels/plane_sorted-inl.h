// SPDX-License-Identifier: MIT
// The weighted sum of a chunk of values in bytes with what AVX2 has: tokens sorted by depth, eight
// of one depth a step, their planes to nibbles, their bytes by tables (plane_nibbles-inl.h).
#if defined(KVIST_KERNELS_PLANE_SORTED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVIST_KERNELS_PLANE_SORTED_INL_H_
#undef KVIST_KERNELS_PLANE_SORTED_INL_H_
#else
#define KVIST_KERNELS_PLANE_SORTED_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kvist/kernels/plane_chunk.h"
#include "kvist/kernels/plane_nibbles-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace {
using namespace internal;

constexpr int kStepTokens = 8;
constexpr int kMostSortedSteps = kValueChunk / kStepTokens + kByteDepth;
constexpr int kRowWeights = kMaxSteps * 16;  // bytes of a row's weights
static_assert(kMostSortedSteps * kVectorBytes <= kRowWeights);

// Tokens of a chunk, those of depth 1 first; each depth is filled up to whole steps with its first
// token, marked by kFill.
struct SortedTokens {
  alignas(16) int16_t token[kMostSortedSteps * kStepTokens];
  int steps[kByteDepth + 1];
  int n_steps = 0;
  int16_t beyond[kValueChunk];
  int n_beyond = 0;
};
constexpr int16_t kFill = -0x8000;

void sort_by_depth(const Chunk& chunk, SortedTokens* sorted) {
  alignas(32) uint8_t depths[kValueChunk] = {};
  std::memcpy(depths, chunk.depths, static_cast<size_t>(chunk.n));
  __m256i all[kValueChunk / 32];
  for (int i = 0; i < kValueChunk / 32; ++i)
    all[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(depths + 32 * i));
  const auto list = [&](int depth, int16_t* to) HWY_ATTR {
    const __m256i wanted = _mm256_set1_epi8(static_cast<char>(depth));
    const auto same = [=](__m256i x) HWY_ATTR {
      const int bits = _mm256_movemask_epi8(_mm256_cmpeq_epi8(x, wanted));
      return static_cast<uint64_t>(static_cast<uint32_t>(bits));
    };
    for (int i = 0; i < kValueChunk / 32; i += 2) {
      for (uint64_t bits = same(all[i]) | same(all[i + 1]) << 32; bits != 0; bits &= bits - 1)
        *to++ = static_cast<int16_t>(32 * i + __builtin_ctzll(bits));
    }
    return to;
  };
  int16_t* to = sorted->token;
  for (int depth = 1; depth <= kByteDepth; ++depth) {
    int16_t* const first = to;
    to = list(depth, to);
    while ((to - first) % kStepTokens != 0) *to++ = static_cast<int16_t>(*first | kFill);
    sorted->steps[depth] = static_cast<int>(to - first) / kStepTokens;
  }
  sorted->n_steps = static_cast<int>(to - sorted->token) / kStepTokens;
  int16_t* beyond = sorted->beyond;
  for (int depth = kByteDepth + 1; depth <= kTreeDepth; ++depth) beyond = list(depth, beyond);
  sorted->n_beyond = static_cast<int>(beyond - sorted->beyond);
}

// Weights [row][step][32]: four bytes of even places four times, then those of odd ones. A row's
// unit is 1/127 of its largest.
void sorted_weights(const Chunk& chunk, const SortedTokens& sorted, const ValueScratch& scratch) {
  const __m256i four_times = _mm256_set1_epi32(0x0C080400);
  const __m256i evens_odds = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  for (int r = 0; r < chunk.rows; ++r) {
    const float* alpha = chunk.alpha + r * chunk.stride;
    auto* to = reinterpret_cast<float*>(scratch.weights + int64_t{r} * kRowWeights);
    __m256 top = _mm256_setzero_ps();
    for (int s = 0; s < sorted.n_steps; ++s) {
      const __m256i token = _mm256_permutevar8x32_epi32(
          _mm256_cvtepi16_epi32(
              _mm_load_si128(reinterpret_cast<const __m128i*>(sorted.token + kStepTokens * s))),
          evens_odds);
      const __m256 there = _mm256_castsi256_ps(_mm256_xor_si256(token, _mm256_set1_epi32(-1)));
      const __m256 w = _mm256_mask_i32gather_ps(_mm256_setzero_ps(), alpha, token, there, 4);
      top = _mm256_max_ps(top, w);
      _mm256_store_ps(to + kStepTokens * s, w);
    }
    alignas(32) float tops[8];
    _mm256_store_ps(tops, top);
    const float largest = *std::max_element(tops, tops + 8);
    const float scale = largest < 1e-35f ? 0 : 127 / largest;
    for (int s = 0; s < sorted.n_steps; ++s) {
      const __m256 w = _mm256_load_ps(to + kStepTokens * s);
      const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(w, _mm256_set1_ps(scale)));
      _mm256_store_si256(reinterpret_cast<__m256i*>(to + kStepTokens * s),
                         _mm256_shuffle_epi8(whole, four_times));
    }
    scratch.unit[r] = scale == 0 ? 0 : byte_unit() / scale;
  }
}

// How many bytes of a run are read at once: all 8, 16, or fewer than 16, which are copied.
enum class Run { eight, sixteen, copied };
constexpr int step_vectors(Run kind) { return kind == Run::eight ? 2 : 4; }

// The tokens of one vector of a step. Runs of 8 bytes: vector v has tokens 2 v, 2 v + 4 |
// 2 v + 1, 2 v + 5 of the eight; others: tokens 2 v | 2 v + 1.
template <Run kRun>
struct Runs {
  static constexpr int kTokens = 8 / step_vectors(kRun);
  const uint8_t* run[kTokens];
  int64_t plane_bytes;
  int bytes;  // of each token

  HWY_INLINE __m256i plane(int s) const {
    const int64_t at = s * plane_bytes;
    if constexpr (kRun == Run::eight)
      return _mm256_inserti128_si256(_mm256_castsi128_si256(load8(run[0] + at, run[1] + at)),
                                     load8(run[2] + at, run[3] + at), 1);
    if constexpr (kRun == Run::sixteen)
      return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(run[0] + at)),
                                     load16(run[1] + at), 1);
    alignas(32) uint8_t both[kVectorBytes] = {};
    std::memcpy(both, run[0] + at, static_cast<size_t>(bytes));
    std::memcpy(both + 16, run[1] + at, static_cast<size_t>(bytes));
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(both));
  }

 private:
  static HWY_INLINE __m128i load16(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static HWY_INLINE __m128i load8(const uint8_t* low, const uint8_t* high) {
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(low));
    return _mm_castps_si128(
        _mm_loadh_pi(_mm_castsi128_ps(x), reinterpret_cast<const __m64*>(high)));
  }
};

// Where the runs of a chunk's tokens lie, bytes [16 part, 16 part + 16) of each.
template <Run kRun>
class StepPlanes {
 public:
  StepPlanes(const Chunk& chunk, int part)
      : layout_(chunk.layout),
        packets_(chunk.packets + 16 * part),
        first_(chunk.first),
        shift_(std::has_single_bit(static_cast<unsigned>(chunk.layout.per_packet))
                   ? std::countr_zero(static_cast<unsigned>(chunk.layout.per_packet))
                   : -1),
        bytes_(std::min(16, chunk.layout.run_bytes() - 16 * part)) {}

  HWY_INLINE Runs<kRun> vector(const int16_t* token, int v) const {
    if constexpr (kRun == Run::eight)
      return {
          {run(token[2 * v]), run(token[2 * v + 4]), run(token[2 * v + 1]), run(token[2 * v + 5])},
          layout_.plane_bytes(),
          bytes_};
    else
      return {{run(token[2 * v]), run(token[2 * v + 1])}, layout_.plane_bytes(), bytes_};
  }

 private:
  HWY_INLINE const uint8_t* run(int16_t token) const {
    const int t = first_ + (token & ~kFill);
    if (shift_ < 0) return packets_ + layout_.run(t);
    return packets_ + int64_t{t >> shift_} * layout_.packet_bytes() +
           (t & ((1 << shift_) - 1)) * layout_.run_bytes();
  }

  ValueLayout layout_;
  const uint8_t* packets_;
  int first_;
  int shift_;  // of packets of 2^shift tokens: no division; -1 of others
  int bytes_;
};

// Vectors of a step's items, and where their sums are: lanes k of both halves are channel 8 k + j.
template <Run kRun>
void add_part(const Chunk& chunk, const SortedTokens& sorted, const ValueScratch& scratch,
              int part) {
  constexpr int kVectors = step_vectors(kRun);
  constexpr int kSumRows = 8, kRunChannels = 4 * kVectors;  // of one j
  constexpr int64_t kStep = kVectors * kVectorBytes;
  auto* sums = reinterpret_cast<int32_t*>(scratch.bytes);  // [kSumRows][8][16]
  uint8_t* const packed = scratch.bytes + kSumRows * 8 * 16 * 4;
  uint8_t* to = packed;
  const int16_t* token = sorted.token;
  const StepPlanes<kRun> planes(chunk, part);
  for_byte_depths([&](auto depth) HWY_ATTR {
    for (int s = 0; s < sorted.steps[depth]; ++s, token += kStepTokens) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v, to += packed_vectors(depth) * kVectorBytes) {
        const Runs<kRun> runs = planes.vector(token, v);
        pack_planes<depth>([runs](int plane) HWY_ATTR { return runs.plane(plane); }, to);
      }
    }
  });
  uint8_t* const bytes = to;
  for (int first = 0; first < chunk.rows; first += kSumRows) {
    const int rows = std::min(kSumRows, chunk.rows - first);
    for (int j = 0; j < 8; ++j) {
      nibble_steps<kVectors, false>(sorted.steps, j, packed, bytes);
      for_row_parts(rows, [&](int r0, auto n) HWY_ATTR {
        const int8_t* weights = scratch.weights + int64_t{first + r0} * kRowWeights;
        for (int pair = 0; pair < kVectors; pair += 2) {
          two_vectors<n, false>(
              bytes + kVectorBytes * pair, sorted.n_steps, kStep,
              [=](int r, int s) HWY_ATTR {
                return _mm256_load_si256(reinterpret_cast<const __m256i*>(
                    weights + int64_t{r} * kRowWeights + kVectorBytes * s));
              },
              [=](int r, int q, __m256i sum) HWY_ATTR {
                const __m128i both =
                    _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
                _mm_store_si128(
                    reinterpret_cast<__m128i*>(sums + ((r0 + r) * 8 + j) * 16 + 4 * (pair + q)),
                    both);
              });
        }
      });
    }
    const int d = chunk.layout.head_dim;
    for (int r = 0; r < rows; ++r) {
      for (int k = 0; k < kRunChannels; k += 8) {
        const int c = 128 * part + 8 * k, left = d - c;
        if (left <= 0) break;
        float* row = chunk.out + int64_t{first + r} * d + c;
        const int32_t* from = sums + r * 128 + k;
        if (left >= 64) {
          add_in_order(from, 16, 0, scratch.unit[first + r], row);
          continue;
        }
        float whole[64] = {};
        add_in_order(from, 16, 0, scratch.unit[first + r], whole);
        for (int i = 0; i < left; ++i) row[i] += whole[i];
      }
    }
  }
}

void add_sorted(const Chunk& chunk, const SortedTokens& sorted, const ValueScratch& scratch) {
  if (sorted.n_steps == 0) return;
  sorted_weights(chunk, sorted, scratch);
  for (int part = 0; 16 * part < chunk.layout.run_bytes(); ++part) {
    const int left = chunk.layout.run_bytes() - 16 * part;
    if (chunk.layout.run_bytes() == 8)
      add_part<Run::eight>(chunk, sorted, scratch, part);
    else if (left >= 16)
      add_part<Run::sixteen>(chunk, sorted, scratch, part);
    else
      add_part<Run::copied>(chunk, sorted, scratch, part);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();
#endif  // AVX2, AVX3

#endif  // per-target include guard
