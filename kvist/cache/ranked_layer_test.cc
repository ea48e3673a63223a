// SPDX-License-Identifier: MIT
// Bytes of coded layers: what is stored comes back, at every width, and weighs what it should.
#include "kvist/cache/ranked_layer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kvist/cache/ranked_test_layer.h"
#include "kvist/kernels/tree_code.h"

namespace kvist {
namespace {

using testing::RankedCase;
using testing::RankedTestLayer;

TEST(RankedLayer, GivesBackWhatItWasGiven) {
  for (const int n_tokens : {65, 200, 1000}) {
    for (const int window : {1, 64}) {
      RankedCase of{.n_tokens = n_tokens, .window = window};
      const RankedTestLayer made(of);
      const RankedCode back = made.layer->decode(made.sigma.data());
      EXPECT_EQ(back.rank, made.code.rank);
      EXPECT_EQ(back.neighbours, made.code.neighbours);
      EXPECT_EQ(back.offset, made.code.offset);
      EXPECT_EQ(made.layer->rank_sum(), std::ssize(made.code.coefficients));
      for (size_t i = 0; i < back.coefficients.size(); ++i)
        ASSERT_EQ(back.coefficients[i], to_float(to_f16(made.code.coefficients[i])));
    }
  }
}

TEST(RankedLayer, ExactTokensKeepTheirBits) {
  for (const Scalar type : {Scalar::f16, Scalar::bf16, Scalar::f32}) {
    RankedCase of;
    of.type = type;
    const RankedTestLayer made(of);
    const size_t d = static_cast<size_t>(of.head_dim);
    for (int head = 0; head < of.kv_heads; ++head) {
      const kernels::KvRun run = made.layer->exact(head);
      std::vector<float> got(static_cast<size_t>(run.n_tokens) * d), want(d);
      for (const bool keys : {true, false}) {
        (keys ? kernels::load_keys : kernels::load_values)(run, 0, run.n_tokens, got.data());
        for (size_t i = 0; i < made.code.exact.size(); ++i) {
          const int t = made.code.exact[i];
          (keys ? kernels::load_keys : kernels::load_values)(made.runs[static_cast<size_t>(head)],
                                                             t, t + 1, want.data());
          for (size_t c = 0; c < d; ++c) ASSERT_EQ(got[i * d + c], want[c]);
        }
      }
    }
  }
}

// The code of a token's coefficients by the definition of its width.
std::vector<float> through(std::span<const float> x, const CoefficientFormat& format,
                           const float* sigma) {
  std::vector<float> out;
  std::vector<uint8_t> codes(x.size());
  const f16 gain = gain_of(x, sigma);
  if (format.tree()) code_leaves(x, gain, sigma, codes.data());
  for (size_t j = 0; j < x.size(); ++j) {
    if (format.tree()) {
      out.push_back(kernels::tree_value(codes[j], format.bits) * (to_float(gain) * sigma[j]));
    } else if (j % kRankChunk == 0) {
      const auto group = x.subspan(j, std::min<size_t>(kRankChunk, x.size() - j));
      const GroupScale scale = code_group(group, format.bits, codes.data());
      for (size_t k = 0; k < group.size(); ++k)
        out.push_back(to_float(scale.lo) + to_float(scale.step) * static_cast<float>(codes[k]));
    }
  }
  return out;
}

TEST(RankedLayer, CodesComeBackAtEveryWidth) {
  std::vector<CoefficientFormat> formats = {{3}, {4}, {8}};
  for (int bits = 1; bits <= 8; ++bits) formats.push_back({bits, RankPlan::Code::sigma});
  for (const CoefficientFormat& format : formats) {
    RankedCase of;
    of.format = format;
    const RankedTestLayer made(of);
    const RankedCode back = made.layer->decode(made.sigma.data());
    for (size_t i = 0; i < back.coded.size(); ++i) {
      const auto got = back.coefficients_of(i);
      const auto want = through(made.code.coefficients_of(i), format, made.sigma.data());
      ASSERT_EQ(std::vector<float>(got.begin(), got.end()), want) << format.bits << " bits, " << i;
    }
  }
}

TEST(RankedLayer, ShiftTakesCoefficientsThatF16CannotHold) {
  RankedTestLayer made(RankedCase{});
  for (float& x : made.code.coefficients) x *= 1e8f;
  ThreadPool pool(2);
  const RankedLayer layer(made.shape, made.tokens, made.runs, made.code, {}, made.sigma.data(),
                          pool);
  EXPECT_GT(layer.shift(), 10);
  const RankedCode back = layer.decode(made.sigma.data());
  for (size_t i = 0; i < back.coefficients.size(); ++i)
    ASSERT_NEAR(back.coefficients[i], made.code.coefficients[i],
                std::abs(made.code.coefficients[i]) * 0x1p-11f +
                    0x1p-24f * std::ldexp(1.0f, layer.shift()));
}

// varrate.md 11: keys and values of exact tokens, coefficients, 16-bit ranks, packed indices.
TEST(RankedLayer, WeighsWhatTheLedgerSays) {
  constexpr int kTokens = 2000;
  for (const CoefficientFormat& format :
       {CoefficientFormat{}, CoefficientFormat{4}, CoefficientFormat{8, RankPlan::Code::sigma}}) {
    RankedCase of{.n_tokens = kTokens, .format = format};
    const RankedTestLayer made(of);
    const uint64_t coded = made.code.coded.size(), anchors = made.code.anchors.size();
    ASSERT_EQ(anchors, 125u);  // seven bits each
    uint64_t payload = made.code.exact.size() * made.shape.token_bytes();
    for (const uint16_t rank : made.code.rank)
      for (int row = 0; row < rank; row += kRankChunk) {
        const int bits = std::min(kRankChunk, rank - row) * format.bits;
        payload += static_cast<uint64_t>((bits + 7) / 8 + (format.groups() ? 4 : 0));
      }
    if (format.tree()) payload += 8;  // room to be read
    const Bytes bytes = made.layer->bytes();
    EXPECT_EQ(bytes.payload, payload);
    const uint64_t unit = format.tree() ? 1024 : 64;  // tokens that share an offset
    // Ranks, places in their blocks, gains, offsets; eight bytes are room behind the indices.
    EXPECT_EQ(bytes.metadata, coded * (2 + 1 + (format.tree() ? 2 : 0)) + (coded * 4 * 7 + 7) / 8 +
                                  8 + (coded + unit - 1) / unit * 4);
    EXPECT_GE(bytes.allocated, bytes.stored());
  }
}

// Of widths that do not fill bytes only the last of a page is not full.
TEST(RankedLayer, PlanesArePackedWithoutGaps) {
  for (int bits = 1; bits <= 8; ++bits) {
    RankedCase of{.n_tokens = 2600, .format = {bits, RankPlan::Code::sigma}};
    const RankedTestLayer made(of);
    ASSERT_GT(made.layer->n_blocks(), 2 * RankedLayer::kPageBlocks);
    for (int first = 0; first < made.layer->n_blocks(); first += RankedLayer::kPageBlocks) {
      int64_t all = 0;
      for (int block = first;
           block < std::min(first + RankedLayer::kPageBlocks, made.layer->n_blocks()); ++block)
        for (int i = 0; i < made.layer->block_tokens(block); ++i)
          all += int64_t{made.layer->ranks(block)[i]} * bits;
      EXPECT_EQ(std::ssize(made.layer->block_bytes(first)), (all + 7) / 8);
    }
  }
}

TEST(RankedLayer, RowWeightsAreThoseOfItsTokens) {
  RankedCase of{.n_tokens = 500, .format = {6, RankPlan::Code::sigma}};
  RankedTestLayer made(of);
  made.layer->keep_row_weights(made.sigma.data());
  const int most = *std::max_element(made.code.rank.begin(), made.code.rank.end());
  ASSERT_EQ(std::ssize(made.layer->row_tokens()), most);
  for (size_t j = 0; j < static_cast<size_t>(most); ++j) {
    uint32_t tokens = 0;
    double energy = 0;
    for (size_t i = 0; i < made.code.coded.size(); ++i) {
      if (made.code.rank[i] <= j) continue;
      ++tokens;
      const auto gain =
          static_cast<double>(to_float(gain_of(made.code.coefficients_of(i), made.sigma.data())));
      energy += gain * gain;
    }
    EXPECT_EQ(made.layer->row_tokens()[j], tokens);
    const auto sigma = static_cast<double>(made.sigma[j]);
    EXPECT_NEAR(
        static_cast<double>(made.layer->row_energies()[j]) / (energy / tokens * sigma * sigma), 1,
        1e-5);
  }
}

// Lines are counted once, whichever bits of them are asked for.
TEST(RankedLayer, TouchedBytesAreThoseOfTheLinesAsked) {
  for (const int bits : {3, 8}) {
    RankedCase of{.n_tokens = 2600, .format = {bits, RankPlan::Code::sigma}};
    const RankedTestLayer made(of);
    const RankedLayer& layer = *made.layer;
    Rng rng(3);
    for (const bool few : {false, true}) {
      std::vector<uint8_t> depths(64);
      for (uint8_t& depth : depths)
        depth = few && rng.below(4) > 0
                    ? 0
                    : static_cast<uint8_t>(rng.below(static_cast<uint64_t>(bits) + 1));
      RankedLayer::Page page(64);
      std::vector<float> x(64 * 64);
      std::vector<uint8_t> given(2 * 64);
      std::vector<RankedLayer::Chunk> chunks(2);
      for (int first = 0; first < layer.n_blocks(); first += RankedLayer::kPageBlocks) {
        layer.read_block(first, made.sigma.data(), depths.data(), &page, x.data(), given.data(),
                         chunks.data());
        const int end = std::min(first + RankedLayer::kPageBlocks, layer.n_blocks());
        std::vector<bool> lines(layer.bytes().payload / 64 + 1);
        int64_t bit = int64_t{layer.block_offset(first)} * 8;
        for (int row = 0; row < 64; ++row)
          for (int plane = 0; plane < bits; ++plane)
            for (int block = first; block < end; ++block)
              for (int i = 0; i < layer.block_tokens(block); ++i)
                if (layer.ranks(block)[i] > row) {
                  if (plane < depths[static_cast<size_t>(row)])
                    lines[static_cast<size_t>(bit / 512)] = true;
                  ++bit;
                }
        EXPECT_EQ(layer.touched_bytes(page, depths.data()),
                  64 * std::count(lines.begin(), lines.end(), true));
      }
    }
  }
}

// Issue targets: kappa 0.2 at D = 384 and 8,192 tokens, everything but the shared basis.
TEST(RankedLayer, TakesAFifthOfTheCacheAndLittleMore) {
  constexpr int kTokens = 8192, kWidth = 384;
  const int64_t budget = int64_t{kTokens} * kWidth / 5 - int64_t{572} * kWidth;  // floor
  ASSERT_EQ(budget, 409497);
  RankedCode code;
  code.n_tokens = kTokens;
  for (int t = 0; t < kTokens; ++t) {
    if (t % 16 == 0) code.anchors.push_back(t);
    (t % 16 == 0 || t >= kTokens - 64 ? code.exact : code.coded).push_back(t);
  }
  ASSERT_EQ(code.exact.size(), 572u);
  code.n_neighbours = 4;
  Rng rng(2);
  const int64_t n = std::ssize(code.coded);
  std::vector<int64_t> ranks(static_cast<size_t>(n), 16);  // the floor, the rest shared unevenly
  for (int64_t left = budget - 16 * n; left > 0; --left) {
    size_t i = rng.below(static_cast<uint64_t>(n));
    i = i * i / static_cast<size_t>(n);  // more to the first
    if (ranks[i] < kWidth)
      ++ranks[i];
    else
      ++left;
  }
  code.offset.push_back(0);
  for (const int64_t rank : ranks) {
    code.rank.push_back(static_cast<uint16_t>(rank));
    code.offset.push_back(code.offset.back() + static_cast<uint64_t>(rank));
    for (int i = 0; i < 4; ++i) code.neighbours.push_back(static_cast<uint16_t>(rng.below(512)));
  }
  code.coefficients.resize(code.offset.back());
  ASSERT_EQ(std::ssize(code.coefficients), budget);
  for (float& x : code.coefficients) x = static_cast<float>(rng.gaussian());

  const KvShape shape{3, 9, 64, Scalar::f16};
  DenseLayer dense(shape);
  dense.reserve(kTokens);
  dense.resize(kTokens);
  std::vector<kernels::KvRun> runs;
  for (int head = 0; head < 3; ++head) runs.push_back(dense.run(head));
  const auto tokens = std::make_shared<const RankedTokens>(code);
  const auto share = [&](const CoefficientFormat& format) {
    ThreadPool pool(2);
    RankedLayer layer(shape, tokens, runs, code, format, nullptr, pool);
    layer.keep_key_norms(std::vector<float>(static_cast<size_t>(n * 3), 1.0f));  // for skipping
    const Bytes bytes = layer.bytes();
    EXPECT_LE(static_cast<double>(bytes.allocated), 1.02 * static_cast<double>(bytes.stored()));
    return static_cast<double>(bytes.stored() + tokens->bytes().stored() / 30) /
           static_cast<double>(shape.token_bytes() * kTokens);
  };
  EXPECT_LE(share({}), 0.225);
  EXPECT_LE(share({4}), 0.14);
}

}  // namespace
}  // namespace kvist
