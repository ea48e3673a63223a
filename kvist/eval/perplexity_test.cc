// SPDX-License-Identifier: MIT
// Where windows of a corpus begin and end.
#include "kvist/eval/perplexity.h"

#include <gtest/gtest.h>

namespace kvist {
namespace {

using Windows = std::vector<std::vector<int32_t>>;

TEST(CorpusWindows, RunAcrossTextsAndDropTheRest) {
  const Windows texts{{1, 2, 3}, {}, {4, 5, 6, 7, 8}};
  EXPECT_EQ(corpus_windows(texts, 3, {}), (Windows{{1, 2, 3}, {4, 5, 6}}));
  EXPECT_EQ(corpus_windows(texts, 4, {}), (Windows{{1, 2, 3, 4}, {5, 6, 7, 8}}));
  const std::vector<int32_t> bos{9};
  EXPECT_EQ(corpus_windows(texts, 4, bos), (Windows{{9, 2, 3, 4}, {9, 6, 7, 8}}));
  EXPECT_TRUE(corpus_windows(texts, 9, bos).empty());
}

}  // namespace
}  // namespace kvist
