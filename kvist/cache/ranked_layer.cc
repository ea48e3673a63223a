// SPDX-License-Identifier: MIT
// Laying out a code, and reading blocks of it back.
#include "kvist/cache/ranked_layer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr int kSlack = 8;  // bytes behind packed indices, and behind planes

int bits_for(size_t n) { return n <= 1 ? 0 : std::bit_width(n - 1); }

// The least f16 that is not below x.
f16 rounded_up(float x) {
  f16 y = to_f16(x);
  if (to_float(y) < x) ++y.bits;
  return y;
}

}  // namespace

RankedTokens::RankedTokens(const RankedCode& code)
    : n_tokens(code.n_tokens),
      exact(code.exact),
      anchors(code.anchors),
      coded(code.coded),
      anchor_of_exact(code.exact.size(), -1) {
  for (const int32_t anchor : anchors) {
    const auto at = std::lower_bound(exact.begin(), exact.end(), anchor);
    KVIST_ASSERT(at != exact.end() && *at == anchor);
    anchor_of_exact[static_cast<size_t>(at - exact.begin())] =
        static_cast<int32_t>(exact_of_anchor.size());
    exact_of_anchor.push_back(static_cast<int32_t>(at - exact.begin()));
  }
}

bool RankedTokens::divides(const RankedCode& code) const {
  return n_tokens == code.n_tokens && exact == code.exact && anchors == code.anchors &&
         coded == code.coded;
}

Bytes RankedTokens::bytes() const {
  const auto size = [](const std::vector<int32_t>& v) { return v.size() * sizeof(int32_t); };
  Bytes bytes;
  bytes.metadata =
      size(exact) + size(anchors) + size(coded) + size(exact_of_anchor) + size(anchor_of_exact);
  bytes.allocated = bytes.metadata;
  return bytes;
}

RankedLayer::RankedLayer(const KvShape& shape, std::shared_ptr<const RankedTokens> tokens,
                         std::span<const kernels::KvRun> runs, const RankedCode& code,
                         const CoefficientFormat& format, const float* sigma, ThreadPool& pool)
    : shape_(shape),
      tokens_(std::move(tokens)),
      format_(format),
      n_neighbours_(code.n_neighbours),
      index_bits_(bits_for(code.anchors.size())) {
  check(format);
  KVIST_ASSERT(std::ssize(runs) == shape.kv_heads && tokens_->divides(code));
  const size_t n = code.coded.size(), c = static_cast<size_t>(n_neighbours_);
  shift_ = format.bits == 16 ? shift_of(code.coefficients) : 0;
  rank_sum_ = static_cast<int64_t>(code.coefficients.size());
  store_exact(runs);
  ranks_ = Buffer<uint16_t>(n);
  order_ = Buffer<uint8_t>(n);
  neighbours_ = Buffer<uint8_t>((n * c * static_cast<size_t>(index_bits_) + 7) / 8 + kSlack);
  if (format.tree()) gains_ = Buffer<f16>(n);
  if (code.causal) counts_ = Buffer<uint8_t>(n);
  const int n_units = format.tree() ? n_pages() : n_blocks();
  offsets_ = Buffer<uint32_t>(static_cast<size_t>(n_units));
  std::vector<std::vector<uint8_t>> payloads(static_cast<size_t>(n_units));
  pool.parallel_for(n_blocks(), [&](int64_t block) {
    store_tokens(code, static_cast<int>(block), sigma);
    if (!format.tree())
      store_block(code, static_cast<int>(block), &payloads[static_cast<size_t>(block)]);
  });
  // Pages once the ranks of all their blocks are known.
  pool.parallel_for(format.tree() ? n_units : 0, [&](int64_t page) {
    store_page(code, static_cast<int>(page), sigma, &payloads[static_cast<size_t>(page)]);
  });
  size_t size = 0;
  for (size_t i = 0; i < payloads.size(); ++i) {
    const size_t unit = static_cast<size_t>(format.unit());
    if (size / unit > UINT32_MAX)
      throw Error(ErrorKind::exhausted, "the coefficients of a layer take more than 32 bits count");
    offsets_[i] = static_cast<uint32_t>(size / unit);
    size += payloads[i].size();
  }
  payload_ = Buffer<uint8_t>(size + (format.tree() ? kSlack : 0));
  uint8_t* to = payload_.data();
  for (const auto& payload : payloads) to = std::copy(payload.begin(), payload.end(), to);
}

void RankedLayer::keep_key_norms(std::span<const float> key_norms) {
  const size_t heads = static_cast<size_t>(shape_.kv_heads);
  KVIST_ASSERT(key_norms.size() == ranks_.size() * heads);
  key_norms_ = Buffer<f16>(key_norms.size());
  for (size_t i = 0; i < ranks_.size(); ++i)
    for (size_t head = 0; head < heads; ++head)
      key_norms_[i * heads + head] =
          rounded_up(key_norms[(i / kBlock * kBlock + order_[i]) * heads + head]);
}

void RankedLayer::keep_row_weights(const float* sigma) {
  KVIST_ASSERT(format_.tree());
  std::vector<uint32_t> tokens;
  std::vector<double> energy;
  for (int block = 0; block < n_blocks(); ++block) {
    double sums[kBlock];  // of squared gains, up to each token
    double sum = 0;
    for (int i = 0; i < block_tokens(block); ++i) {
      const auto gain =
          static_cast<double>(to_float(gains_[static_cast<size_t>(block * kBlock + i)]));
      sums[i] = sum += gain * gain;
    }
    each_row(block, [&](int row, int n) {
      const auto at = static_cast<size_t>(row);
      if (tokens.size() <= at) tokens.push_back(0), energy.push_back(0);
      tokens[at] += static_cast<uint32_t>(n);
      energy[at] += sums[n - 1];
    });
  }
  row_tokens_ = Buffer<uint32_t>(tokens.size());
  std::copy(tokens.begin(), tokens.end(), row_tokens_.begin());
  row_energies_ = Buffer<float>(tokens.size());
  for (size_t j = 0; j < tokens.size(); ++j) {
    const auto unit = static_cast<double>(sigma[j]);
    row_energies_[j] = static_cast<float>(energy[j] / tokens[j] * unit * unit);
  }
}

void RankedLayer::store_exact(std::span<const kernels::KvRun> runs) {
  const size_t head_bytes = tokens_->exact.size() * static_cast<size_t>(shape_.head_dim) *
                            static_cast<size_t>(size_of(shape_.type));
  exact_k_ = Buffer<std::byte>(head_bytes * runs.size());
  exact_v_ = Buffer<std::byte>(head_bytes * runs.size());
  for (size_t head = 0; head < runs.size(); ++head)
    kernels::gather(runs[head], tokens_->exact, exact_k_.data() + head * head_bytes,
                    exact_v_.data() + head * head_bytes);
}

kernels::KvRun RankedLayer::exact(int head) const {
  const int n = static_cast<int>(tokens_->exact.size());
  const int64_t at = int64_t{head} * n * shape_.head_dim * size_of(shape_.type);
  return {.k = exact_k_.data() + at,
          .v = exact_v_.data() + at,
          .type = shape_.type,
          .head_dim = shape_.head_dim,
          .n_tokens = n,
          .last_width = n % kBlock == 0 ? kBlock : n % kBlock};
}

void RankedLayer::store_tokens(const RankedCode& code, int block, const float* sigma) {
  const int n = block_tokens(block), first = block * kBlock;
  uint8_t* order = order_.data() + first;
  std::iota(order, order + n, uint8_t{0});
  const uint16_t* rank = code.rank.data() + first;
  std::stable_sort(order, order + n, [&](uint8_t a, uint8_t b) { return rank[a] > rank[b]; });
  const int c = n_neighbours_;
  for (int i = 0; i < n; ++i) {
    const int token = first + order[i];
    ranks_[static_cast<size_t>(first + i)] = code.rank[static_cast<size_t>(token)];
    if (format_.tree())
      gains_[static_cast<size_t>(first + i)] =
          gain_of(code.coefficients_of(static_cast<size_t>(token)), sigma);
    const auto neighbours = code.neighbours_of(static_cast<size_t>(token));
    if (code.causal)
      counts_[static_cast<size_t>(first + i)] = static_cast<uint8_t>(neighbours.size());
    for (int k = 0; k < std::ssize(neighbours); ++k) {
      int64_t bit = (int64_t{first + i} * c + k) * index_bits_;
      const uint16_t index = neighbours[static_cast<size_t>(k)];
      for (int b = 0; b < index_bits_; ++b, ++bit)
        neighbours_[static_cast<size_t>(bit / 8)] |=
            static_cast<uint8_t>((index >> b & 1) << bit % 8);
    }
  }
}

void RankedLayer::store_block(const RankedCode& code, int block, std::vector<uint8_t>* payload) {
  size_t size = 0;
  for (int i = 0; i < block_tokens(block); ++i)
    for (int left = ranks(block)[i]; left > 0; left -= kRankChunk)
      size += static_cast<size_t>(format_.row_bytes(std::min(left, kRankChunk)));
  payload->reserve(size);
  for (int chunk = 0; chunk * kRankChunk < ranks(block)[0]; ++chunk)
    store_chunk(code, block, chunk, payload);
}

RankedLayer::Page::Page(int basis_rows)
    : bit(static_cast<size_t>(basis_rows)),
      tokens(bit.size()),
      before(kPageBlocks * bit.size()),
      reached(before.size()) {}

void RankedLayer::find(int page, Page* out) const noexcept {
  if (out->index == page) return;
  out->index = page;
  const size_t n = out->tokens.size();
  std::fill(out->tokens.begin(), out->tokens.end(), 0);
  std::fill(out->reached.begin(), out->reached.end(), uint8_t{0});
  for (int block = page * kPageBlocks; block < page_end(page); ++block) {
    const size_t at = static_cast<size_t>(block - page * kPageBlocks) * n;
    std::copy(out->tokens.begin(), out->tokens.end(),
              out->before.begin() + static_cast<std::ptrdiff_t>(at));
    each_row(block, [&](int row, int reached) {
      out->reached[at + static_cast<size_t>(row)] = static_cast<uint8_t>(reached);
      out->tokens[static_cast<size_t>(row)] += reached;
    });
  }
  int64_t bit = 0;
  for (size_t row = 0; row < n; ++row) {
    out->bit[row] = bit;
    bit += int64_t{out->tokens[row]} * format_.bits;
  }
}

kernels::PlaneRow RankedLayer::plane_row(const Page& page, int block, int row) const {
  const size_t n = page.tokens.size(), j = static_cast<size_t>(row);
  const size_t at = static_cast<size_t>(block % kPageBlocks) * n + j;
  return {page.bit[j] + page.before[at], page.tokens[j], page.reached[at],
          static_cast<uint8_t>(format_.bits)};
}

void RankedLayer::store_page(const RankedCode& code, int page, const float* sigma,
                             std::vector<uint8_t>* payload) {
  int most = 0;
  for (int block = page * kPageBlocks; block < page_end(page); ++block)
    most = std::max<int>(most, ranks(block)[0]);
  Page at(most);
  find(page, &at);
  if (most == 0) return;
  payload->resize(
      static_cast<size_t>((at.bit.back() + int64_t{at.tokens.back()} * format_.bits + 7) / 8));
  std::vector<uint8_t> leaves(static_cast<size_t>(kBlock * most));
  std::vector<kernels::PlaneRow> rows(static_cast<size_t>(most));
  for (int block = page * kPageBlocks; block < page_end(page); ++block) {
    for (int i = 0; i < block_tokens(block); ++i) {
      const size_t token = static_cast<size_t>(block * kBlock);
      code_leaves(code.coefficients_of(token + order(block)[i]),
                  gains_[token + static_cast<size_t>(i)], sigma, leaves.data() + i * most);
    }
    for (int row = 0; row < most; ++row) rows[static_cast<size_t>(row)] = plane_row(at, block, row);
    kernels::write_row_planes(leaves.data(), most, rows.data(), most, payload->data());
  }
}

void RankedLayer::store_chunk(const RankedCode& code, int block, int chunk,
                              std::vector<uint8_t>* payload) {
  const int first = block * kBlock, row = chunk * kRankChunk;
  const auto append = [&](const void* from, size_t n) {
    const auto* bytes = static_cast<const uint8_t*>(from);
    payload->insert(payload->end(), bytes, bytes + n);
  };
  uint8_t codes[kRankChunk], packed[kRankChunk];
  std::vector<uint8_t> rows;
  const float by = std::ldexp(1.0f, -shift_);
  for (int i = 0; i < block_tokens(block) && ranks(block)[i] > row; ++i) {
    const auto all = code.coefficients_of(static_cast<size_t>(first + order(block)[i]));
    const auto x = all.subspan(static_cast<size_t>(row),
                               std::min<size_t>(kRankChunk, all.size() - static_cast<size_t>(row)));
    if (format_.bits == 32) {
      append(x.data(), x.size_bytes());
      continue;
    }
    if (format_.bits == 16) {
      f16 halves[kRankChunk];
      kernels::narrow_f16(x.data(), static_cast<int64_t>(x.size()), by, halves);
      append(halves, x.size() * sizeof(f16));
      continue;
    }
    const GroupScale scale = code_group(x, format_.bits, codes);
    append(&scale, sizeof scale);
    const int n = static_cast<int>(x.size());
    pack_codes(codes, n, format_.bits, packed);
    rows.insert(rows.end(), packed, packed + (n * format_.bits + 7) / 8);
  }
  payload->insert(payload->end(), rows.begin(), rows.end());
}

void RankedLayer::read_neighbours(int block, uint16_t* index, uint8_t* count) const noexcept {
  const int n = block_tokens(block) * n_neighbours_;
  if (counts_.empty())
    std::fill_n(count, block_tokens(block), static_cast<uint8_t>(n_neighbours_));
  else
    std::copy_n(counts_.data() + block * kBlock, block_tokens(block), count);
  const uint64_t mask = (uint64_t{1} << index_bits_) - 1;
  int64_t bit = int64_t{block} * kBlock * n_neighbours_ * index_bits_;
  for (int i = 0; i < n; ++i, bit += index_bits_) {
    uint64_t eight;
    std::memcpy(&eight, neighbours_.data() + bit / 8, sizeof eight);
    index[i] = static_cast<uint16_t>(eight >> bit % 8 & mask);
  }
}

std::span<const uint8_t> RankedLayer::block_bytes(int block) const {
  const size_t unit = static_cast<size_t>(format_.unit()), at = static_cast<size_t>(unit_of(block));
  const size_t begin = offsets_[at] * unit;
  const size_t end = at + 1 < offsets_.size() ? offsets_[at + 1] * unit
                                              : payload_.size() - (format_.tree() ? kSlack : 0);
  return {payload_.data() + begin, end - begin};
}

int RankedLayer::read_block(int block, const float* sigma, const uint8_t* row_depths, Page* page,
                            float* x, uint8_t* depth, Chunk* chunks,
                            bool as_stored) const noexcept {
  const uint8_t* at = block_bytes(block).data();
  const uint16_t* rank = ranks(block);
  int n_rows = rank[0];
  if (row_depths != nullptr)
    while (n_rows > 0 && row_depths[n_rows - 1] == 0) --n_rows;
  float gains[kBlock] = {};
  if (format_.tree()) {
    find(block / kPageBlocks, page);
    for (int i = 0; i < block_tokens(block); ++i)
      gains[i] = to_float(gains_[static_cast<size_t>(block * kBlock + i)]);
  }
  int n = block_tokens(block), made = 0;
  for (int row = 0; row < n_rows; row += kRankChunk, ++made) {
    while (rank[n - 1] <= row) --n;
    for (int i = 0; i < n; ++i)
      depth[i] = static_cast<uint8_t>(std::min(kRankChunk, std::min<int>(rank[i], n_rows) - row));
    chunks[made] = {n, x, depth};
    if (as_stored && format_.bits == 16) {
      chunks[made].stored = reinterpret_cast<const f16*>(at);  // payload of f16 is aligned to them
      int numbers = 0;
      for (int i = 0; i < n; ++i) numbers += depth[i];
      at = reinterpret_cast<const uint8_t*>(chunks[made].stored + numbers);
    } else if (format_.tree()) {
      const int some = std::min(kRankChunk, n_rows - row);
      kernels::PlaneRow rows[kRankChunk];
      for (int j = 0; j < some; ++j) {
        rows[j] = plane_row(*page, block, row + j);
        if (row_depths != nullptr) rows[j].depth = row_depths[row + j];
      }
      kernels::read_row_planes(at, rows, some, gains, sigma + row, x);
    } else {
      at = read_chunk(block, made, n, at, x);
    }
    x += n * kRankChunk;
    depth += n;
  }
  return made;
}

float RankedLayer::unit() const { return std::ldexp(1.0f, shift_); }

int64_t RankedLayer::touched_bytes(const Page& page, const uint8_t* row_depths) const noexcept {
  constexpr int64_t kLine = 64;
  const int64_t begin = int64_t{offsets_[static_cast<size_t>(page.index)]} * 8;
  int64_t lines = 0, last = -1;  // the last line counted
  for (size_t row = 0; row < page.tokens.size(); ++row) {
    const int64_t asked = int64_t{page.tokens[row]} * row_depths[row];
    if (asked == 0) continue;
    const int64_t from = (begin + page.bit[row]) / (8 * kLine);
    const int64_t to = (begin + page.bit[row] + asked - 1) / (8 * kLine);
    lines += to - std::max(from - 1, last);
    last = to;
  }
  return lines * kLine;
}

// The first n tokens of a block have coefficients in this chunk, which begins at `at`; returns its
// end.
const uint8_t* RankedLayer::read_chunk(int block, int chunk, int n, const uint8_t* at,
                                       float* x) const noexcept {
  const int row = chunk * kRankChunk;
  const uint16_t* rank = ranks(block);
  if (format_.bits == 32) {
    for (int i = 0; i < n; ++i, x += kRankChunk) {
      const int some = std::min(kRankChunk, rank[i] - row);
      std::memcpy(x, at, static_cast<size_t>(some) * sizeof(float));
      std::fill(x + some, x + kRankChunk, 0.0f);
      at += some * static_cast<int>(sizeof(float));
    }
    return at;
  }
  if (format_.bits == 16) {
    int whole = n;
    while (whole > 0 && rank[whole - 1] < row + kRankChunk) --whole;
    const float unit = this->unit();
    const f16* from = reinterpret_cast<const f16*>(at);
    kernels::widen_f16(from, int64_t{whole} * kRankChunk, unit, x);
    from += whole * kRankChunk;
    for (int i = whole; i < n; ++i) {
      const int left = rank[i] - row;
      float* to = x + i * kRankChunk;
      kernels::widen_f16(from, left, unit, to);
      std::fill(to + left, to + kRankChunk, 0.0f);
      from += left;
    }
    return reinterpret_cast<const uint8_t*>(from);
  }
  const uint8_t* scales = at;
  at += n * static_cast<int>(sizeof(GroupScale));
  uint8_t codes[kRankChunk];
  for (int i = 0; i < n; ++i, x += kRankChunk) {
    const int some = std::min(kRankChunk, rank[i] - row);
    unpack_codes(at, some, format_.bits, codes);
    at += (some * format_.bits + 7) / 8;
    GroupScale scale;
    std::memcpy(&scale, scales + i * static_cast<int>(sizeof scale), sizeof scale);
    const float lo = to_float(scale.lo), step = to_float(scale.step);
    for (int j = 0; j < some; ++j) x[j] = lo + step * static_cast<float>(codes[j]);
    std::fill(x + some, x + kRankChunk, 0.0f);
  }
  return at;
}

RankedCode RankedLayer::decode(const float* sigma) const {
  RankedCode code;
  code.n_tokens = tokens_->n_tokens;
  code.exact = tokens_->exact;
  code.anchors = tokens_->anchors;
  code.coded = tokens_->coded;
  code.n_neighbours = n_neighbours_;
  const size_t n = code.coded.size(), c = static_cast<size_t>(n_neighbours_);
  code.neighbours.resize(n * c);
  code.rank.resize(n);
  for (size_t i = 0; i < n; ++i) code.rank[i / kBlock * kBlock + order_[i]] = ranks_[i];
  code.offset.push_back(0);
  for (const uint16_t rank : code.rank) code.offset.push_back(code.offset.back() + rank);
  code.coefficients.resize(code.offset.back());
  const int most = n == 0 ? 0 : *std::max_element(code.rank.begin(), code.rank.end());
  const size_t room = static_cast<size_t>(most / kRankChunk + 1);
  std::vector<float> x(room * kBlock * kRankChunk);
  std::vector<uint8_t> depth(room * kBlock);
  std::vector<Chunk> chunks(room);
  std::vector<uint16_t> index(kBlock * c);
  uint8_t count[kBlock];
  Page page(most);
  code.causal = !counts_.empty();
  for (int block = 0; block < n_blocks(); ++block) {
    read_neighbours(block, index.data(), count);
    const int n_chunks =
        read_block(block, sigma, nullptr, &page, x.data(), depth.data(), chunks.data());
    for (int i = 0; i < block_tokens(block); ++i) {
      const size_t token = static_cast<size_t>(block * kBlock + order(block)[i]);
      std::copy_n(index.data() + static_cast<size_t>(i) * c, c, code.neighbours.data() + token * c);
      for (int k = 0; k < n_chunks && i < chunks[static_cast<size_t>(k)].n_tokens; ++k) {
        const Chunk& chunk = chunks[static_cast<size_t>(k)];
        std::copy_n(chunk.x + i * kRankChunk, chunk.depth[i],
                    code.coefficients.data() + code.offset[token] + k * kRankChunk);
      }
    }
  }
  return code;
}

void RankedTokens::add_to(Digest& digest) const {
  for (const auto* list : {&exact, &anchors, &coded, &exact_of_anchor, &anchor_of_exact})
    digest.add(std::span<const int32_t>(*list));
}

void RankedLayer::add_to(Digest& digest) const {
  const auto add = [&](const auto&... buffer) { (digest.add(buffer), ...); };
  add(exact_k_, exact_v_, payload_, ranks_, order_, neighbours_, counts_, key_norms_, gains_,
      row_tokens_, row_energies_, offsets_);
}

Bytes RankedLayer::bytes() const {
  Bytes bytes;
  bytes.payload = exact_k_.size_bytes() + exact_v_.size_bytes() + payload_.size_bytes();
  bytes.metadata = ranks_.size_bytes() + order_.size_bytes() + neighbours_.size_bytes() +
                   counts_.size_bytes() + key_norms_.size_bytes() + gains_.size_bytes() +
                   row_tokens_.size_bytes() + row_energies_.size_bytes() + offsets_.size_bytes();
  const auto add = [&](const auto&... buffer) {
    bytes.allocated += (uint64_t{0} + ... + buffer.allocated_bytes());
  };
  add(exact_k_, exact_v_, payload_, ranks_, order_, neighbours_, counts_, key_norms_, gains_,
      row_tokens_, row_energies_, offsets_);
  return bytes;
}

}  // namespace kvist
