// SPDX-License-Identifier: MIT
// Prompts of the embedded model: the parts are the template's, and what users write stays text.
#include "kvist/cli/prompt.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kvist/cli/repeat.h"
#include "support/embedded_model.h"

namespace kvist {
namespace {

using Ids = std::vector<int32_t>;

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class PromptOfEmbeddedModel : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = testing::embedded_model();
    if (path.empty()) GTEST_SKIP() << "the embedded model is not installed: run tools/setup.sh";
    tokenizer_ = Tokenizer::load(path);
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(PromptOfEmbeddedModel, IsTheTemplateCutAtTheBoundary) {
  const Prompt prompt(*tokenizer_, false);
  const auto parts = tokenizer_->chat_parts();
  ASSERT_TRUE(parts.found);
  for (const std::string text :
       {"Call me Ishmael.", "\n\nleading breaks", " leading space", "\ttab", "1234 digits"}) {
    EXPECT_EQ(prompt.document(text), tokenizer_->encode(parts.head + text, true)) << text;
    EXPECT_EQ(prompt.question(text, "The answer is"),
              tokenizer_->encode(text + parts.tail + "The answer is", true))
        << text;
  }
}

TEST_F(PromptOfEmbeddedModel, KeepsSpecialTokensOfUsersAsText) {
  const Prompt prompt(*tokenizer_, false);
  const Ids special = tokenizer_->encode("<|im_end|>", true);
  ASSERT_EQ(special.size(), 1u);
  const auto count = [&](const Ids& ids) { return std::count(ids.begin(), ids.end(), special[0]); };
  EXPECT_EQ(count(prompt.document("a<|im_end|>b")), count(prompt.document("ab")));
  EXPECT_EQ(count(prompt.question("a<|im_end|>b", "")), count(prompt.question("ab", "")));
}

TEST_F(PromptOfEmbeddedModel, RawHasNoTemplate) {
  const Prompt prompt(*tokenizer_, true);
  EXPECT_FALSE(prompt.has_template());
  EXPECT_EQ(prompt.document("text"), tokenizer_->bos() + tokenizer_->encode("text", false));
  EXPECT_EQ(prompt.question("q?", "A:"), tokenizer_->encode("q?\nA:", false));
}

TEST_F(PromptOfEmbeddedModel, FollowsUpLikeTheTemplateOfALongerChat) {
  const Prompt prompt(*tokenizer_, false);
  const auto ids = prompt.follow_up("And then?", "");
  ASSERT_TRUE(ids.has_value());
  EXPECT_EQ(*ids, tokenizer_->encode(
                      "<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n",
                      true));
}

// The lengths that the reference's second pass has: rows 259 of 245 tokens in the chat template;
// 59, 72 and 41 of 50, 50 and 19 without.
TEST_F(PromptOfEmbeddedModel, AsksForRepetitionsOfTheDocumentAlone) {
  const Prompt prompt(*tokenizer_, false), raw(*tokenizer_, true);
  const std::string text = "Call me Ishmael. Some years ago, never mind how long precisely.";
  const Ids ids = prompt.document(text), head = prompt.document("");
  const auto whole = repeat_requests(*tokenizer_, prompt, ids, 2048);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(head.size(), 24u);
  EXPECT_EQ(whole[0].begin, 24);
  EXPECT_EQ(whole[0].end, static_cast<int>(ids.size()));
  EXPECT_EQ(whole[0].input.size(), ids.size() - 24 + 14);
  const Ids many(119, ids.back());
  const auto parts = repeat_requests(*tokenizer_, raw, many, 50);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].input.size(), 59u);
  EXPECT_EQ(parts[1].input.size(), 72u);
  EXPECT_EQ(parts[2].input.size(), 41u);
  EXPECT_EQ(parts[2].begin, 100);
  EXPECT_EQ(parts[2].end, 119);
}

}  // namespace
}  // namespace kvist
