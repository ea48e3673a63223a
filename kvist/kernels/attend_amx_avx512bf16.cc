// SPDX-License-Identifier: MIT
// Attention of many rows on AMX tiles: products of 16 rows and 16 keys or channels at a time,
// softmax of 16 rows at once. Nothing of the standard library is instantiated here: this file's
// flags must not leak out.
#include "kvist/kernels/amx_tiles-inl.h"
#include "kvist/kernels/attend_internal.h"

#if defined(__AVX512BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include "kvist/kernels/attend_pairs-inl.h"

#pragma GCC target("amx-tile,amx-bf16")

namespace kvist::kernels::internal {
namespace {

constexpr int kTile = 16;             // rows of a tile, and its columns of four bytes
constexpr int kStepRows = 2 * kTile;  // rows whose logits are in flight at once
constexpr float kLog2E = 1.44269504f;

struct Shape {
  int head_dim, pairs, columns, rows;  // pairs of channels, channels, rows: each rounded up to 16
  Shape(int d, int n_rows)
      : head_dim(d),
        pairs(round_up((d + 1) / 2, kTile)),
        columns(round_up(d, kTile)),
        rows(round_up(n_rows, kTile)) {}
};

struct Scratch {
  uint32_t* k;  // [pairs][64] pairs of channels
  uint32_t* v;  // [32][columns] pairs of tokens
  uint32_t* p;  // [kStepRows][32] weights, pairs of tokens
  uint32_t* q;  // [rows][pairs] pairs of channels
  float* s;     // [kStepRows][64] logits
  float* o;     // [rows][columns]
  float* l;     // [rows][16] sums of weights, by lane
  float* m;     // [rows]
};

size_t carve(std::byte* memory, const Shape& shape, Scratch* out) {
  size_t at = 0;
  const auto take = [&](int n) {
    std::byte* here = memory + at;
    at += 4 * static_cast<size_t>(round_up(n, kTile));
    return here;
  };
  out->k = reinterpret_cast<uint32_t*>(take(shape.pairs * kBlock));
  out->v = reinterpret_cast<uint32_t*>(take(kPairs * shape.columns));
  out->p = reinterpret_cast<uint32_t*>(take(kStepRows * kPairs));
  out->q = reinterpret_cast<uint32_t*>(take(shape.rows * shape.pairs));
  out->s = reinterpret_cast<float*>(take(kStepRows * kBlock));
  out->o = reinterpret_cast<float*>(take(shape.rows * shape.columns));
  out->l = reinterpret_cast<float*>(take(shape.rows * kTile));
  out->m = reinterpret_cast<float*>(take(shape.rows));
  return at;
}

// out [32 or 16][32] (+)= left [32 or 16][steps * 16 pairs] . right [steps * 16 pairs][32]; strides
// in words of four bytes.
template <bool kTwo, bool kAdd>
inline void product32(const uint32_t* left, int left_stride, const uint32_t* right,
                      int right_stride, int steps, float* out, int out_stride) {
  settle_memory(out);
  float* below = out + kTile * out_stride;
  const size_t out_bytes = 4 * static_cast<size_t>(out_stride);
  const size_t left_bytes = 4 * static_cast<size_t>(left_stride);
  const size_t right_bytes = 4 * static_cast<size_t>(right_stride);
  if (kAdd) {
    _tile_loadd(0, out, out_bytes);
    _tile_loadd(1, out + kTile, out_bytes);
    if (kTwo) {
      _tile_loadd(2, below, out_bytes);
      _tile_loadd(3, below + kTile, out_bytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (kTwo) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  for (int i = 0; i < steps; ++i, left += kTile, right += kTile * right_stride) {
    _tile_loadd(4, left, left_bytes);
    _tile_loadd(6, right, right_bytes);
    _tile_loadd(7, right + kTile, right_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (kTwo) {
      _tile_loadd(5, left + kTile * left_stride, left_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out, out_bytes);
  _tile_stored(1, out + kTile, out_bytes);
  if (kTwo) {
    _tile_stored(2, below, out_bytes);
    _tile_stored(3, below + kTile, out_bytes);
  }
}

// The same for 16 columns and 16 rows, adding.
inline void product16(const uint32_t* left, int left_stride, const uint32_t* right,
                      int right_stride, int steps, float* out, int out_stride) {
  settle_memory(out);
  _tile_loadd(0, out, 4 * static_cast<size_t>(out_stride));
  for (int i = 0; i < steps; ++i, left += kTile, right += kTile * right_stride) {
    _tile_loadd(4, left, 4 * static_cast<size_t>(left_stride));
    _tile_loadd(6, right, 4 * static_cast<size_t>(right_stride));
    _tile_dpbf16ps(0, 4, 6);
  }
  _tile_stored(0, out, 4 * static_cast<size_t>(out_stride));
}

inline __m512 max_ps(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }

// Lane r = the largest lane of x[r].
inline __m512 row_maxima(const __m512* x) {
  __m512 four[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512* a = x + 4 * i;
    const __m512 u = max_ps(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
    const __m512 w = max_ps(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3]));
    const __m512d ud = _mm512_castps_pd(u), wd = _mm512_castps_pd(w);
    four[i] = max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ud, wd)),
                     _mm512_castpd_ps(_mm512_unpackhi_pd(ud, wd)));
  }
  const __m512 y0 = max_ps(_mm512_shuffle_f32x4(four[0], four[1], 0x44),
                           _mm512_shuffle_f32x4(four[0], four[1], 0xEE));
  const __m512 y1 = max_ps(_mm512_shuffle_f32x4(four[2], four[3], 0x44),
                           _mm512_shuffle_f32x4(four[2], four[3], 0xEE));
  return max_ps(_mm512_shuffle_f32x4(y0, y1, 0x88), _mm512_shuffle_f32x4(y0, y1, 0xDD));
}

// 2^x for x <= 0, 0 below -125 and for NaN: relative error below 4e-6, far below that of the bf16
// weight it becomes.
inline __m512 exp2_negative(__m512 x) {
  const __mmask16 seen = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-125.0f), _CMP_GE_OQ);
  const __m512 n = _mm512_roundscale_ps(x, 0);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 y = _mm512_set1_ps(9.6181291e-3f);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.5504109e-2f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.4022651e-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.9314718e-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(seen, y, n);
}

// Makes logits that their row does not see -infinity. visible: of these 16 rows, the first `rows`
// exist.
inline void hide_unseen(float* s, const int32_t* visible, int rows, int at, int n) {
  for (int r = 0; r < rows; ++r) {
    const int count = seen_tokens(visible, r, at, n);
    for (int j = 0; j < kBlock; j += kTile) {
      const __mmask16 unseen = static_cast<__mmask16>(~first_lanes(count > j ? count - j : 0));
      _mm512_mask_storeu_ps(s + r * kBlock + j, unseen, _mm512_set1_ps(kUnseen));
    }
  }
}

// Brings m of 16 rows up to the logits s [16][64] and scales their sums where it grew.
inline void update_maxima(const float* s, float* m, float* l, float* o, int columns) {
  __m512 top[kTile];
#pragma GCC unroll 16
  for (int r = 0; r < kTile; ++r) {
    const float* x = s + r * kBlock;
    top[r] = max_ps(max_ps(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)),
                    max_ps(_mm512_loadu_ps(x + 32), _mm512_loadu_ps(x + 48)));
  }
  const __m512 before = _mm512_loadu_ps(m), now = max_ps(row_maxima(top), before);
  unsigned grew = _mm512_cmp_ps_mask(now, before, _CMP_GT_OQ);
  if (grew == 0) return;
  _mm512_storeu_ps(m, now);
  float factor[kTile];
  _mm512_storeu_ps(
      factor, exp2_negative(_mm512_mul_ps(_mm512_sub_ps(before, now), _mm512_set1_ps(kLog2E))));
  for (; grew != 0; grew &= grew - 1) {
    const int r = __builtin_ctz(grew);
    const __m512 f = _mm512_set1_ps(factor[r]);
    float* row = o + r * columns;
    for (int c = 0; c < columns; c += kTile)
      _mm512_storeu_ps(row + c, _mm512_mul_ps(f, _mm512_loadu_ps(row + c)));
    _mm512_storeu_ps(l + r * kTile, _mm512_mul_ps(f, _mm512_loadu_ps(l + r * kTile)));
  }
}

// Weights p [16][32] of the logits s [16][64], and their sums into l.
inline void weigh(const float* s, const float* m, float* l, uint32_t* p) {
  const __m512 log2e = _mm512_set1_ps(kLog2E);
  for (int r = 0; r < kTile; ++r, s += kBlock, l += kTile, p += kPairs) {
    const float max = m[r] == kUnseen ? 0.0f : m[r] * kLog2E;
    const __m512 shift = _mm512_set1_ps(max);
    __m512 y[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      y[i] = exp2_negative(_mm512_fmsub_ps(_mm512_loadu_ps(s + 16 * i), log2e, shift));
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(y[1], y[0]));
    _mm512_storeu_si512(p + 16, (__m512i)_mm512_cvtne2ps_pbh(y[3], y[2]));
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(y[0], y[1]), _mm512_add_ps(y[2], y[3]));
    _mm512_storeu_ps(l, _mm512_add_ps(_mm512_loadu_ps(l), sum));
  }
}

// A block at token `at` holding n tokens, for the rows [row, row + 32 or 16) of which `rows` exist.
template <bool kTwo>
inline void block_step(const Scratch& scratch, const Shape& shape, int row, int rows, int at, int n,
                       const int32_t* visible) {
  const uint32_t* q = scratch.q + row * shape.pairs;
  float* o = scratch.o + row * shape.columns;
  for (int j = 0; j < kBlock; j += 32)
    product32<kTwo, false>(q, shape.pairs, scratch.k + j, kBlock, shape.pairs / kTile,
                           scratch.s + j, kBlock);
  for (int i = 0; i < (kTwo ? 2 : 1); ++i) {
    const int first = i * kTile, left = rows - first;
    float* s = scratch.s + first * kBlock;
    float* m = scratch.m + row + first;
    float* l = scratch.l + (row + first) * kTile;
    if (visible != nullptr || n < kBlock)
      hide_unseen(s, visible == nullptr ? nullptr : visible + row + first,
                  left < kTile ? left : kTile, at, n);
    update_maxima(s, m, l, o + first * shape.columns, shape.columns);
    weigh(s, m, l, scratch.p + first * kPairs);
  }
  int c = 0;
  for (; c + 32 <= shape.columns; c += 32)
    product32<kTwo, true>(scratch.p, kPairs, scratch.v + c, shape.columns, kPairs / kTile, o + c,
                          shape.columns);
  for (int i = 0; c < shape.columns && i < (kTwo ? 2 : 1); ++i)
    product16(scratch.p + i * kTile * kPairs, kPairs, scratch.v + c, shape.columns, kPairs / kTile,
              o + i * kTile * shape.columns + c, shape.columns);
}

// Whether all rows see all of the tokens before `end`.
inline bool all_seen(const int32_t* visible, int rows, int end) {
  for (int r = 0; r < rows; ++r)
    if (visible[r] < end) return false;
  return true;
}

template <typename T>
void attend_typed(const KvRun& run, int begin, int end, int rows, const int32_t* visible,
                  const Scratch& scratch, const Shape& shape) {
  const int d = run.head_dim, last_block = (run.n_tokens - 1) / kBlock;
  for (int at = begin; at < end; at += kBlock) {
    const int n = end - at < kBlock ? end - at : kBlock;
    const int64_t offset = static_cast<int64_t>(at) * d;
    unpack_keys(static_cast<const T*>(run.k) + offset,
                at / kBlock == last_block ? run.last_width : kBlock, d, scratch.k);
    unpack_values(static_cast<const T*>(run.v) + offset, n, d, shape.columns, scratch.v);
    for (int i = (n + 1) / 2 * shape.columns; i < kPairs * shape.columns; i += kTile)
      _mm512_storeu_si512(scratch.v + i, _mm512_setzero_si512());
    for (int r = 0; r < rows; r += kStepRows) {
      const int left = rows - r < kStepRows ? rows - r : kStepRows;
      const int32_t* limits =
          visible == nullptr || all_seen(visible + r, left, at + n) ? nullptr : visible;
      if (left > kTile)
        block_step<true>(scratch, shape, r, left, at, n, limits);
      else
        block_step<false>(scratch, shape, r, left, at, n, limits);
    }
  }
}

void fill_zero(uint32_t* p, int n) {
  for (int i = 0; i < n; ++i) p[i] = 0;
}

// The caller's state into rows padded to 16 both ways, and back.
void load_state(const SoftmaxState& state, int rows, const Shape& shape, const Scratch& scratch) {
  for (int r = 0; r < shape.rows; ++r) {
    const bool exists = r < rows;
    scratch.m[r] = exists ? state.m[r] : kUnseen;
    _mm512_storeu_ps(scratch.l + r * kTile,
                     _mm512_maskz_mov_ps(1, _mm512_set1_ps(exists ? state.l[r] : 0.0f)));
    for (int c = 0; c < shape.columns; c += kTile) {
      const __mmask16 mask = exists ? first_lanes(shape.head_dim - c) : static_cast<__mmask16>(0);
      _mm512_storeu_ps(scratch.o + r * shape.columns + c,
                       _mm512_maskz_loadu_ps(mask, state.o + r * shape.head_dim + c));
    }
  }
}
void store_state(const Scratch& scratch, int rows, const Shape& shape, const SoftmaxState& state) {
  for (int r = 0; r < rows; ++r) {
    state.m[r] = scratch.m[r];
    state.l[r] = _mm512_reduce_add_ps(_mm512_loadu_ps(scratch.l + r * kTile));
    for (int c = 0; c < shape.head_dim; c += kTile)
      _mm512_mask_storeu_ps(state.o + r * shape.head_dim + c, first_lanes(shape.head_dim - c),
                            _mm512_loadu_ps(scratch.o + r * shape.columns + c));
  }
}

bool ask_for_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2)
  return __builtin_cpu_supports("amx-tile") != 0 && __builtin_cpu_supports("amx-bf16") != 0 &&
         __builtin_cpu_supports("avx512bf16") != 0 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool cpu_has_amx() noexcept {
  static const bool has = ask_for_tiles();
  return has;
}

size_t amx_scratch_bytes(int rows, int head_dim) noexcept {
  Scratch unused;
  return carve(nullptr, Shape(head_dim, rows), &unused);
}

void attend_amx(const KvRun& run, int begin, int end, const float* q, int rows,
                const int32_t* visible, SoftmaxState state, std::byte* memory) noexcept {
  const Shape shape(run.head_dim, rows);
  Scratch scratch;
  carve(memory, shape, &scratch);
  pack_queries(q, rows, run.head_dim, shape.pairs, scratch.q);
  fill_zero(scratch.q + rows * shape.pairs, (shape.rows - rows) * shape.pairs);
  const int used = (run.head_dim + 1) / 2;
  fill_zero(scratch.k + used * kBlock, (shape.pairs - used) * kBlock);
  load_state(state, rows, shape, scratch);
  const TileScope tiles;
  switch (run.type) {
    case Scalar::f16:
      attend_typed<f16>(run, begin, end, rows, visible, scratch, shape);
      break;
    case Scalar::bf16:
      attend_typed<bf16>(run, begin, end, rows, visible, scratch, shape);
      break;
    case Scalar::f32:
      attend_typed<float>(run, begin, end, rows, visible, scratch, shape);
      break;
  }
  store_state(scratch, rows, shape, state);
}

}  // namespace kvist::kernels::internal

#else  // no AMX in this build

namespace kvist::kernels::internal {
bool cpu_has_amx() noexcept { return false; }
size_t amx_scratch_bytes(int, int) noexcept { return 0; }
void attend_amx(const KvRun&, int, int, const float*, int, const int32_t*, SoftmaxState,
                std::byte*) noexcept {}
}  // namespace kvist::kernels::internal

#endif
