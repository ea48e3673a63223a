// SPDX-License-Identifier: MIT
// Vocabulary, chat template and sampling, on the tiny model's vocabulary.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <set>

#include "kvist/core/error.h"
#include "kvist/model/tokenizer.h"
#include "tests/support/tiny_gguf.h"

namespace kvist::testing {
namespace {

namespace fs = std::filesystem;

class TinyTokenizer : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> load(const std::function<void(GgufBuilder&)>& change = {}) {
    GgufBuilder model = tiny_model({});
    if (change) change(model);
    const std::string path =
        (fs::temp_directory_path() / str("kvist-tokenizer-", getpid(), ".gguf")).string();
    model.write(path);
    auto out = Tokenizer::load(path);
    fs::remove(path);
    return out;
  }
};

TEST_F(TinyTokenizer, DecodingUndoesEncoding) {
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->vocab(), kTinyVocab);
  std::string bytes;
  for (int b = 1; b < 128; ++b) bytes += static_cast<char>(b);
  for (const std::string& text :
       {std::string("the theater"), std::string("h\xC3\xA9llo \xF0\x9F\x8D\x8E\n\n\tx"), bytes}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, false)), text);
  }
  EXPECT_TRUE(tokenizer->encode("", true).empty());
  EXPECT_TRUE(tokenizer->bos().empty());
}

TEST_F(TinyTokenizer, SpecialTokensAreReadOnlyWhenAsked) {
  const auto tokenizer = load();
  const std::vector<int32_t> special = tokenizer->encode("<|im_start|>", true);
  EXPECT_EQ(special, std::vector<int32_t>{kTinyVocab - 3});
  EXPECT_GT(tokenizer->encode("<|im_start|>", false).size(), 1u);
  EXPECT_EQ(tokenizer->decode(special), "");
  EXPECT_EQ(tokenizer->piece(kTinyVocab - 3, true), "<|im_start|>");
  EXPECT_TRUE(tokenizer->is_end(kTinyVocab - 2));
  EXPECT_FALSE(tokenizer->is_end(0));
  EXPECT_THROW(tokenizer->piece(kTinyVocab), Error);
  EXPECT_THROW(tokenizer->piece(-1), Error);
}

TEST_F(TinyTokenizer, BosIsWhatTheFileAsksFor) {
  const auto tokenizer =
      load([](GgufBuilder& m) { m.set_bool("tokenizer.ggml.add_bos_token", true); });
  EXPECT_EQ(tokenizer->bos(), std::vector<int32_t>{kTinyVocab - 4});
}

TEST_F(TinyTokenizer, ChatPartsSurroundTheUsersMessage) {
  const auto parts = load()->chat_parts();
  EXPECT_TRUE(parts.found);
  EXPECT_EQ(parts.head, "<|im_start|>user\n");
  EXPECT_EQ(parts.tail, "<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(TinyTokenizer, ADefaultSystemMessageOfTheTemplateIsKept) {
  const auto with = [&](const std::string& before) {
    return load([&](GgufBuilder& m) {
             m.set_text(
                 "tokenizer.chat_template",
                 before +
                     "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                     "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}");
           })
        ->chat_parts();
  };
  const std::string guard = "{% if messages[0]['role'] != 'system' %}";
  for (const char* newline : {"\n", "\\n"}) {
    const auto parts = with(guard + "{{ '<|im_start|>system" + newline + "You are tiny.<|im_end|>" +
                            newline + "' }}{% endif %}");
    EXPECT_EQ(parts.head, "<|im_start|>system\nYou are tiny.<|im_end|>\n<|im_start|>user\n");
  }
  EXPECT_EQ(with("{{ '<|im_start|>system\n' + text + '<|im_end|>\n' }}").head,
            "<|im_start|>user\n");
}

TEST_F(TinyTokenizer, NoTemplateAndUnknownTemplatesHaveNoParts) {
  EXPECT_FALSE(
      load([](GgufBuilder& m) { m.remove("tokenizer.chat_template"); })->chat_parts().found);
  EXPECT_FALSE(load([](GgufBuilder& m) { m.set_text("tokenizer.chat_template", "{{ messages }}"); })
                   ->chat_parts()
                   .found);
}

TEST(SamplerPick, GreedyTakesTheSmallestIdAmongEquals) {
  Sampler greedy({});
  const std::vector<float> logits{0.5f, 2, -1, 2, 2};
  EXPECT_EQ(greedy.pick(logits), 1);
  const std::vector<float> with_nan{NAN, -3, NAN, -2};
  EXPECT_EQ(greedy.pick(with_nan), 3);
  EXPECT_THROW(greedy.pick({}), Error);
}

TEST(SamplerPick, FollowsSeedTopKAndTopP) {
  std::vector<float> logits(50);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = 0.1f * static_cast<float>(i);
  const auto draws = [&](SamplingOptions o) {
    Sampler sampler(o);
    std::vector<int32_t> out;
    for (int i = 0; i < 300; ++i) out.push_back(sampler.pick(logits));
    return out;
  };
  EXPECT_EQ(draws({.temperature = 1, .seed = 5}), draws({.temperature = 1, .seed = 5}));
  EXPECT_NE(draws({.temperature = 1, .seed = 5}), draws({.temperature = 1, .seed = 6}));
  const auto distinct = [&](SamplingOptions o) {
    const auto all = draws(o);
    return std::set<int32_t>(all.begin(), all.end());
  };
  EXPECT_EQ(distinct({.temperature = 1, .top_k = 3, .seed = 1}), (std::set<int32_t>{47, 48, 49}));
  EXPECT_EQ(distinct({.temperature = 1, .top_k = 1, .seed = 1}), (std::set<int32_t>{49}));
  EXPECT_LT(distinct({.temperature = 1, .top_p = 0.2f, .seed = 1}).size(), 8u);
  EXPECT_GT(distinct({.temperature = 1, .seed = 1}).size(), 20u);
}

TEST(SamplerPick, RefusesOptionsOutOfRange) {
  EXPECT_THROW(Sampler({.temperature = -1}), Error);
  EXPECT_THROW(Sampler({.temperature = NAN}), Error);
  EXPECT_THROW(Sampler({.top_k = -1}), Error);
  EXPECT_THROW(Sampler({.top_p = 0}), Error);
  EXPECT_THROW(Sampler({.top_p = 1.5f}), Error);
}

}  // namespace
}  // namespace kvist::testing
