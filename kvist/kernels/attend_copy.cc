// SPDX-License-Identifier: MIT
// Moving keys and values in and out of their block layout: store a token, widen a range, gather
// survivors.
#include "kvist/kernels/attend.h"

#undef HWY_WANT_AVX3_DL  // nothing here gains from it over avx3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/attend_copy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "kvist/kernels/attend-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

HWY_INLINE void narrow(const float* in, int n, float* out) { std::copy_n(in, n, out); }
HWY_INLINE void narrow(const float* in, int n, bf16* out) {
  for (int i = 0; i < n; ++i) out[i] = to_bf16(in[i]);
}
HWY_INLINE void narrow(const float* in, int n, f16* out) {
  int i = 0;
#if HWY_TARGET <= HWY_AVX2  // hardware conversion, to nearest even
  const hn::Rebind<hwy::float16_t, Floats> half;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::DemoteTo(half, hn::LoadU(Floats(), in + i)), half,
               reinterpret_cast<hwy::float16_t*>(out + i));
#endif
  for (; i < n; ++i) out[i] = to_f16(in[i]);
}

template <typename T>
void store_typed(void* k, void* v, int head_dim, int token, const float* key, const float* value) {
  T* column = static_cast<T*>(k) + static_cast<int64_t>(token / kBlock) * kBlock * head_dim +
              token % kBlock;
  constexpr int kPiece = 64;
  T piece[kPiece];
  for (int c = 0; c < head_dim; c += kPiece) {
    const int n = std::min(kPiece, head_dim - c);
    narrow(key + c, n, piece);
    for (int i = 0; i < n; ++i) column[(c + i) * kBlock] = piece[i];
  }
  narrow(value, head_dim, static_cast<T*>(v) + static_cast<int64_t>(token) * head_dim);
}

void store_any(void* k, void* v, Scalar type, int head_dim, int token, const float* key,
               const float* value) {
  switch (type) {
    case Scalar::f16:
      return store_typed<f16>(k, v, head_dim, token, key, value);
    case Scalar::bf16:
      return store_typed<bf16>(k, v, head_dim, token, key, value);
    case Scalar::f32:
      return store_typed<float>(k, v, head_dim, token, key, value);
  }
}

#if HWY_TARGET == HWY_SCALAR  // no vectors to shuffle
template <typename T>
HWY_INLINE void transpose_four(const T* k, int k_stride, float* out, int out_stride) {
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) out[j * out_stride + i] = to_float(k[i * k_stride + j]);
}
#else
using Four = hn::CappedTag<float, 4>;
HWY_INLINE hn::Vec<Four> load_four(const float* p) { return hn::LoadU(Four(), p); }
HWY_INLINE hn::Vec<Four> load_four(const f16* p) {
  const hn::Rebind<hwy::float16_t, Four> half;
  return hn::PromoteTo(Four(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(p)));
}
HWY_INLINE hn::Vec<Four> load_four(const bf16* p) {
  const hn::Rebind<hwy::bfloat16_t, Four> half;
  return hn::PromoteTo(Four(), hn::LoadU(half, reinterpret_cast<const hwy::bfloat16_t*>(p)));
}

// out[0, 4)[0, 4) = the transpose of k[0, 4)[0, 4).
template <typename T>
HWY_INLINE void transpose_four(const T* k, int k_stride, float* out, int out_stride) {
  const Four d;
  const hn::RepartitionToWide<Four> wide;
  const auto a = load_four(k), b = load_four(k + k_stride);
  const auto c = load_four(k + 2 * k_stride), e = load_four(k + 3 * k_stride);
  const auto ab0 = hn::BitCast(wide, hn::InterleaveLower(d, a, b));
  const auto ab1 = hn::BitCast(wide, hn::InterleaveUpper(d, a, b));
  const auto ce0 = hn::BitCast(wide, hn::InterleaveLower(d, c, e));
  const auto ce1 = hn::BitCast(wide, hn::InterleaveUpper(d, c, e));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, ab0, ce0)), d, out);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, ab0, ce0)), d, out + out_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, ab1, ce1)), d, out + 2 * out_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, ab1, ce1)), d, out + 3 * out_stride);
}
#endif

// Tokens [first, last) of one key block [head_dim][width], as rows.
template <typename T>
void load_block(const T* k, int width, int head_dim, int first, int last, float* out) {
  const int token_fours = first + (last - first) / 4 * 4;
  const int channel_fours = head_dim / 4 * 4;
  for (int t = first; t < token_fours; t += 4)
    for (int c = 0; c < channel_fours; c += 4)
      transpose_four(k + c * width + t, width, out + (t - first) * head_dim + c, head_dim);
  for (int t = first; t < last; ++t)
    for (int c = t < token_fours ? channel_fours : 0; c < head_dim; ++c)
      out[(t - first) * head_dim + c] = to_float(k[c * width + t]);
}

template <typename T>
void keys_typed(const KvRun& run, int begin, int end, float* out) {
  const int d = run.head_dim;
  const int last_block = (run.n_tokens - 1) / kBlock;
  for (int block = begin / kBlock; block * kBlock < end; ++block) {
    const int at = block * kBlock;
    const int first = std::max(begin - at, 0), last = std::min(end - at, kBlock);
    load_block(static_cast<const T*>(run.k) + static_cast<int64_t>(at) * d,
               block == last_block ? run.last_width : kBlock, d, first, last, out);
    out += static_cast<int64_t>(last - first) * d;
  }
}

template <typename T>
void values_typed(const KvRun& run, int begin, int end, float* out) {
  const T* v = static_cast<const T*>(run.v) + static_cast<int64_t>(begin) * run.head_dim;
  const int64_t n = static_cast<int64_t>(end - begin) * run.head_dim;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(load_wide(v + i), Floats(), out + i);
  for (; i < n; ++i) out[i] = to_float(v[i]);
}

// Four tokens and four channels at a time.
void rows_to_block(const float* rows, int n, int head_dim, float* block) {
  const int token_fours = n / 4 * 4, channel_fours = head_dim / 4 * 4;
  for (int t = 0; t < token_fours; t += 4)
    for (int c = 0; c < channel_fours; c += 4)
      transpose_four(rows + t * head_dim + c, head_dim, block + c * kBlock + t, kBlock);
  for (int t = 0; t < n; ++t)
    for (int c = t < token_fours ? channel_fours : 0; c < head_dim; ++c)
      block[c * kBlock + t] = rows[t * head_dim + c];
}

void keys_any(const KvRun& run, int begin, int end, float* out) {
  switch (run.type) {
    case Scalar::f16:
      return keys_typed<f16>(run, begin, end, out);
    case Scalar::bf16:
      return keys_typed<bf16>(run, begin, end, out);
    case Scalar::f32:
      return keys_typed<float>(run, begin, end, out);
  }
}

void values_any(const KvRun& run, int begin, int end, float* out) {
  switch (run.type) {
    case Scalar::f16:
      return values_typed<f16>(run, begin, end, out);
    case Scalar::bf16:
      return values_typed<bf16>(run, begin, end, out);
    case Scalar::f32:
      return values_typed<float>(run, begin, end, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
HWY_EXPORT(store_any);
HWY_EXPORT(keys_any);
HWY_EXPORT(values_any);
HWY_EXPORT(rows_to_block);

void store_token(void* k, void* v, Scalar type, int head_dim, int token, const float* key,
                 const float* value) noexcept {
  HWY_DYNAMIC_DISPATCH(store_any)(k, v, type, head_dim, token, key, value);
}

void load_keys(const KvRun& run, int begin, int end, float* out) noexcept {
  if (begin < end) HWY_DYNAMIC_DISPATCH(keys_any)(run, begin, end, out);
}

void load_values(const KvRun& run, int begin, int end, float* out) noexcept {
  if (begin < end) HWY_DYNAMIC_DISPATCH(values_any)(run, begin, end, out);
}

void transpose_into_block(const float* rows, int n, int head_dim, float* block) noexcept {
  HWY_DYNAMIC_DISPATCH(rows_to_block)(rows, n, head_dim, block);
}

namespace {

// Bits is the unsigned type as wide as one stored number.
template <typename Bits>
void gather_bits(const KvRun& from, std::span<const int32_t> kept, Bits* k_out, Bits* v_out) {
  const int d = from.head_dim;
  const int n = static_cast<int>(kept.size());
  const Bits* k = static_cast<const Bits*>(from.k);
  const Bits* v = static_cast<const Bits*>(from.v);
  const int last_block = (from.n_tokens - 1) / kBlock;
  for (int at = 0; at < n; at += kBlock) {
    const int width = std::min(kBlock, n - at);
    const Bits* source[kBlock];
    int stride[kBlock];
    for (int j = 0; j < width; ++j) {
      const int token = kept[static_cast<size_t>(at + j)], block = token / kBlock;
      source[j] = k + static_cast<int64_t>(block) * kBlock * d + token % kBlock;
      stride[j] = block == last_block ? from.last_width : kBlock;
      std::memcpy(v_out + static_cast<int64_t>(at + j) * d, v + static_cast<int64_t>(token) * d,
                  sizeof(Bits) * static_cast<size_t>(d));
    }
    Bits* out = k_out + static_cast<int64_t>(at) * d;
    for (int c = 0; c < d; ++c)
      for (int j = 0; j < width; ++j) out[c * width + j] = source[j][c * stride[j]];
  }
}

}  // namespace

void gather(const KvRun& from, std::span<const int32_t> kept, void* k_out, void* v_out) noexcept {
  if (kept.empty()) return;
  if (size_of(from.type) == 2)
    gather_bits(from, kept, static_cast<uint16_t*>(k_out), static_cast<uint16_t*>(v_out));
  else
    gather_bits(from, kept, static_cast<uint32_t*>(k_out), static_cast<uint32_t*>(v_out));
}

namespace {

template <typename Bits>
void keep_bits(Bits* k, Bits* v, int d, std::span<const int32_t> kept) {
  const auto column = [&](int64_t token) {
    return k + token / kBlock * kBlock * d + token % kBlock;
  };
  for (size_t to = 0; to < kept.size(); ++to) {
    const int64_t from = kept[to];
    if (from == static_cast<int64_t>(to)) continue;
    const Bits* source = column(from);
    Bits* target = column(static_cast<int64_t>(to));
    for (int c = 0; c < d; ++c) target[c * kBlock] = source[c * kBlock];
    std::memcpy(v + static_cast<int64_t>(to) * d, v + from * d,
                sizeof(Bits) * static_cast<size_t>(d));
  }
}

}  // namespace

void keep_tokens(void* k, void* v, Scalar type, int head_dim,
                 std::span<const int32_t> kept) noexcept {
  if (size_of(type) == 2)
    keep_bits(static_cast<uint16_t*>(k), static_cast<uint16_t*>(v), head_dim, kept);
  else
    keep_bits(static_cast<uint32_t*>(k), static_cast<uint32_t*>(v), head_dim, kept);
}

}  // namespace kvist::kernels
#endif  // HWY_ONCE
