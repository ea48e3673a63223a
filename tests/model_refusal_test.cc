// SPDX-License-Identifier: MIT
// Files the model must refuse by name, before ggml or libllama could abort: each is a small valid
// model with one thing wrong.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/model/model.h"
#include "kvist/model/tokenizer.h"
#include "tests/support/plain_attention.h"
#include "tests/support/tiny_gguf.h"

namespace kvist::testing {
namespace {

namespace fs = std::filesystem;

class ModelRefusal : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = (fs::temp_directory_path() / str("kvist-refusal-", getpid(), ".gguf")).string();
  }
  void TearDown() override { fs::remove(path_); }

  void write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  // What loading the file says; "" when it loads.
  std::string refusal() const {
    try {
      Model::load(path_, {});
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  }
  std::string vocabulary_refusal() const {
    try {
      Tokenizer::load(path_);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  }
  // The tiny model with one change must be refused with a message that names the file and every
  // part of `expected`.
  void expect(const std::function<void(GgufBuilder&)>& change,
              const std::vector<std::string>& expected, const TinyModel& shape = {}) const {
    GgufBuilder model = tiny_model(shape);
    change(model);
    model.write(path_);
    check(refusal(), expected);
  }
  void check(const std::string& message, const std::vector<std::string>& expected) const {
    EXPECT_NE(message.find(path_), std::string::npos) << message;
    for (const std::string& part : expected)
      EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
  }
  std::string path_;
};

TEST_F(ModelRefusal, TheUnchangedModelLoads) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    TinyModel shape;
    shape.architecture = architecture;
    tiny_model(shape).write(path_);
    EXPECT_EQ(refusal(), "");
    EXPECT_EQ(vocabulary_refusal(), "");
  }
}

TEST_F(ModelRefusal, FilesThatAreNotModels) {
  check(refusal(), {"cannot open"});
  write("");
  check(refusal(), {"0 bytes", "24"});
  write("GGUF");
  check(refusal(), {"4 bytes"});
  write(std::string(100, 'x'));
  check(refusal(), {"magic", "'xxxx'", "GGUF"});
  write("PK\x03\x04" + std::string(100, '\0'));
  check(refusal(), {"magic", "PK\\x03\\x04"});
  const std::string folder = fs::temp_directory_path().string();
  EXPECT_THROW(Model::load(folder, {}), Error);
}

TEST_F(ModelRefusal, OtherVersions) {
  for (const uint32_t version : {0u, 1u, 4u, 0x03000000u, 0xFFFFFFFFu}) {
    expect([&](GgufBuilder& m) { m.version = version; }, {"version", str(version), "2 or 3"});
  }
}

TEST_F(ModelRefusal, EveryTruncation) {
  const std::string whole = tiny_model({.n_layers = 1}).bytes();
  for (size_t n = 0; n < whole.size(); n += n < 4096 ? 97 : 20011) {
    write(whole.substr(0, n));
    EXPECT_NE(refusal(), "") << n;
  }
  write(whole.substr(0, whole.size() - 64));
  check(refusal(), {"truncated", "tensor", str(whole.size() - 64)});
}

TEST_F(ModelRefusal, AbsurdCountsAndLengths) {
  const std::string whole = tiny_model({}).bytes();
  const auto with = [&](size_t at, uint64_t value) {
    std::string bytes = whole;
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return bytes;
  };
  for (const uint64_t n : {uint64_t{1} << 21, uint64_t{1} << 40, uint64_t{1} << 63, UINT64_MAX}) {
    write(with(8, n));
    check(refusal(), {str(n), "tensors"});
    write(with(16, n));
    check(refusal(), {str(n), "keys"});
    write(with(24, n));
    check(refusal(), {"key 0", str(n)});
  }
  write(with(8, 100));  // a few tensors more than there are: their names are other bytes
  EXPECT_NE(refusal(), "");
}

TEST_F(ModelRefusal, ArraysLongerThanTheFile) {
  for (const uint32_t type : {0u, 4u, 8u, 12u}) {
    const uint64_t count = uint64_t{1} << 61;
    std::string value(16, '\0');
    const uint32_t array = 9;
    std::memcpy(value.data(), &array, 4);
    std::memcpy(value.data() + 4, &type, 4);
    std::memcpy(value.data() + 8, &count, 8);
    expect([&](GgufBuilder& m) { m.set_raw("general.name", value); }, {"general.name", str(count)});
  }
  expect(
      [](GgufBuilder& m) {
        m.set_raw("general.name", std::string("\x09\0\0\0\x09\0\0\0\0\0\0\0\0\0\0\0", 16));
      },
      {"general.name", "array of arrays"});
  expect([](GgufBuilder& m) { m.set_raw("general.name", std::string("\x63\0\0\0", 4)); },
         {"general.name", "value type 99"});
}

TEST_F(ModelRefusal, SplitFilesAndAlignment) {
  expect([](GgufBuilder& m) { m.set_u32("split.count", 3); }, {"split.count", "3", "merge"});
  expect([](GgufBuilder& m) { m.set_u32("general.alignment", 0); }, {"general.alignment", "0"});
  expect([](GgufBuilder& m) { m.set_u32("general.alignment", 48); }, {"general.alignment", "48"});
  expect([](GgufBuilder& m) { m.set_text("general.alignment", "wide"); },
         {"general.alignment", "'wide'", "integer"});
}

TEST_F(ModelRefusal, OtherArchitectures) {
  expect([](GgufBuilder& m) { m.set_text("general.architecture", "gemma3"); },
         {"general.architecture", "'gemma3'", "llama, qwen2, qwen3"});
  expect([](GgufBuilder& m) { m.set_text("general.architecture", std::string("\n\0", 2)); },
         {"\\x0a\\x00"});
  expect([](GgufBuilder& m) { m.remove("general.architecture"); },
         {"general.architecture", "nothing"});
  expect([](GgufBuilder& m) { m.set_u32("general.architecture", 7); },
         {"general.architecture", "7", "string"});
}

TEST_F(ModelRefusal, MissingAndMistypedKeys) {
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length",
        "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    const std::string full = std::string("llama.") + key;
    expect([&](GgufBuilder& m) { m.remove(full); }, {full, "missing"});
    expect([&](GgufBuilder& m) { m.set_text(full, "many"); }, {full, "'many'"});
    expect([&](GgufBuilder& m) { m.set_i32s(full, {1, 2, 3}); }, {full, "array of 3 i32"});
  }
  expect([](GgufBuilder& m) { m.set_f32("llama.block_count", 2.5f); },
         {"llama.block_count", "2.5", "integer"});
}

TEST_F(ModelRefusal, SizesOutOfRange) {
  for (const char* key : {"block_count", "context_length", "embedding_length",
                          "feed_forward_length", "attention.head_count", "attention.head_count_kv",
                          "attention.key_length", "rope.dimension_count"}) {
    const std::string full = std::string("llama.") + key;
    expect([&](GgufBuilder& m) { m.set_u32(full, 0); }, {full, "0"});
    expect([&](GgufBuilder& m) { m.set_u32(full, 0xFFFFFFF0u); }, {full, "4294967280"});
  }
  expect([](GgufBuilder& m) { m.set_f32("llama.attention.layer_norm_rms_epsilon", NAN); },
         {"rms_epsilon", "nan"});
  expect([](GgufBuilder& m) { m.set_f32("llama.attention.layer_norm_rms_epsilon", -1); },
         {"rms_epsilon", "-1"});
  expect([](GgufBuilder& m) { m.set_f32("llama.rope.freq_base", 0); }, {"freq_base", "0"});
  expect([](GgufBuilder& m) { m.set_f32("llama.rope.freq_base", INFINITY); }, {"freq_base", "inf"});
}

TEST_F(ModelRefusal, HeadsThatDoNotDivide) {
  expect([](GgufBuilder& m) { m.set_u32("llama.attention.head_count_kv", 3); },
         {"head_count", "4", "head_count_kv = 3"});
  expect(
      [](GgufBuilder& m) {
        m.set_u32("llama.attention.head_count", 3);
        m.set_u32("llama.attention.head_count_kv", 3);
        m.remove("llama.attention.key_length");
      },
      {"embedding_length", "128", "3"});
  expect([](GgufBuilder& m) { m.set_u32("llama.attention.value_length", 32); },
         {"64", "32", "value_length"});
  expect([](GgufBuilder& m) { m.set_u32("llama.rope.dimension_count", 33); },
         {"dimension_count", "33", "even"});
  expect([](GgufBuilder& m) { m.set_u32("llama.rope.dimension_count", 128); },
         {"dimension_count", "128", "64"});
}

TEST_F(ModelRefusal, ComputationsWeDoNotKnow) {
  const auto refuse = [&](const char* key, uint32_t value, const char* reason) {
    expect([&](GgufBuilder& m) { m.set_u32(key, value); }, {key, str(value), reason});
  };
  refuse("llama.attention.sliding_window", 4096, "sliding-window");
  refuse("llama.expert_count", 8, "mixture-of-experts");
  refuse("llama.attention.kv_lora_rank", 512, "latent attention");
  refuse("llama.attention.key_length_mla", 192, "latent attention");
  refuse("llama.something_new", 1, "not known");
  expect([](GgufBuilder& m) { m.set_f32("llama.logit_scale", 0.5f); },
         {"llama.logit_scale", "0.5"});
  expect([](GgufBuilder& m) { m.set_f32("llama.embedding_scale", 12); },
         {"llama.embedding_scale", "12"});
  expect([](GgufBuilder& m) { m.set_f32("llama.attention.clamp_kqv", 8); }, {"clamp_kqv", "8"});
  expect([](GgufBuilder& m) { m.set_bool("llama.attention.causal", false); },
         {"attention.causal", "false"});
  expect([](GgufBuilder& m) { m.set_text("llama.rope.scaling.type", "longrope"); },
         {"rope.scaling.type", "longrope"});
  expect([](GgufBuilder& m) { m.set_f32("llama.rope.scaling.yarn_log_multiplier", 0.1f); },
         {"yarn_log_multiplier", "0.1"});
  expect([](GgufBuilder& m) { m.set_f32("qwen2.attention.scale", 0.1f); },
         {"qwen2.attention.scale", "0.1"}, {.architecture = "qwen2"});
}

TEST_F(ModelRefusal, KeysThatSayNothingAreFine) {
  GgufBuilder model = tiny_model({});
  model.set_u32("llama.expert_count", 0);
  model.set_u32("llama.attention.sliding_window", 0);
  model.set_bool("llama.use_parallel_residual", false);
  model.set_u32("llama.vocab_size", kTinyVocab);
  model.set_text("other.key", "x");
  model.write(path_);
  EXPECT_EQ(refusal(), "");
}

TEST_F(ModelRefusal, MissingAndLeftOverTensors) {
  for (const char* name :
       {"token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.1.attn_q.weight",
        "blk.1.attn_k.weight", "blk.0.attn_v.weight", "blk.0.attn_output.weight",
        "blk.1.ffn_norm.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight",
        "blk.1.ffn_down.weight"}) {
    expect([&](GgufBuilder& m) { m.remove_tensor(name); }, {name, "missing"});
  }
  expect([](GgufBuilder& m) { m.remove_tensor("blk.1.attn_k.bias"); },
         {"blk.1.attn_k.bias", "missing"}, {.architecture = "qwen2"});
  expect([](GgufBuilder& m) { m.remove_tensor("blk.0.attn_q_norm.weight"); },
         {"blk.0.attn_q_norm.weight", "missing"}, {.architecture = "qwen3"});
  const std::vector<float> numbers(64, 0.5f);
  for (const char* name :
       {"blk.2.attn_norm.weight", "blk.0.attn_output.bias", "blk.0.ffn_gate_inp.weight", "odd"}) {
    expect([&](GgufBuilder& m) { m.set_tensor(name, {64}, GGML_TYPE_F32, numbers); },
           {name, "[64]"});
  }
  expect(
      [&](GgufBuilder& m) {
        m.set_tensor("blk.0.attn_k.bias", {128}, GGML_TYPE_F32, std::vector<float>(128));
      },
      {"only 1 of"});
}

TEST_F(ModelRefusal, OddlyShapedTensors) {
  const auto reshape = [&](const char* name, std::vector<int64_t> ne,
                           const std::vector<std::string>& expected) {
    int64_t n = 1;
    for (const int64_t x : ne) n *= x;
    expect(
        [&](GgufBuilder& m) {
          m.set_tensor(name, ne, GGML_TYPE_F32, std::vector<float>(static_cast<size_t>(n)));
        },
        expected);
  };
  reshape("blk.0.attn_q.weight", {128, 64}, {"blk.0.attn_q.weight", "[128, 64]", "[128, 256]"});
  reshape("blk.0.attn_k.weight", {64, 256}, {"blk.0.attn_k.weight", "[64, 256]", "[128, 128]"});
  reshape("blk.0.attn_norm.weight", {64}, {"blk.0.attn_norm.weight", "[64]", "[128]"});
  reshape("blk.0.ffn_down.weight", {160, 128, 2}, {"blk.0.ffn_down.weight", "[160, 128, 2]"});
  reshape("token_embd.weight", {64, 320}, {"token_embd.weight", "[64, 320]"});
  reshape("token_embd.weight", {128, 100}, {"tokenizer.ggml.tokens", "320", "100"});
  reshape("output.weight", {128, 100}, {"output.weight", "[128, 100]"});
  reshape("rope_freqs.weight", {7}, {"rope_freqs.weight", "[7]", "[32]"});
}

TEST_F(ModelRefusal, TensorsWithAbsurdHeaders) {
  const auto change = [&](const std::function<void(GgufBuilder::Tensor&)>& f,
                          const std::vector<std::string>& expected) {
    expect([&](GgufBuilder& m) { f(*m.tensor("blk.0.attn_q.weight")); }, expected);
  };
  change([](auto& t) { t.ne = {0, 256}; }, {"blk.0.attn_q.weight", "0 elements"});
  change([](auto& t) { t.ne = {-1, 256}; }, {"blk.0.attn_q.weight", "18446744073709551615"});
  change(
      [](auto& t) {
        t.ne = {int64_t{1} << 39, int64_t{1} << 39};
      },
      {"blk.0.attn_q.weight", "549755813888"});
  change([](auto& t) { t.ne = {1, 1, 1, 1, 1}; }, {"blk.0.attn_q.weight", "5 dimensions"});
  change([](auto& t) { t.ne = {}; }, {"blk.0.attn_q.weight", "0 dimensions"});
  change([](auto& t) { t.type = 12345; }, {"blk.0.attn_q.weight", "12345"});
  change([](auto& t) { t.type = 4; }, {"blk.0.attn_q.weight", "4"});  // q4_2, long gone from ggml
  change([](auto& t) { t.type = GGML_TYPE_I32; }, {"blk.0.attn_q.weight", "i32"});
  change([](auto& t) { t.name = "blk.0.attn_k.weight"; }, {"blk.0.attn_k.weight", "twice"});
  change([](auto& t) { t.name = std::string(64, 'n'); }, {"64", "63"});
  expect([](GgufBuilder& m) { m.tensor("blk.0.attn_norm.weight")->type = GGML_TYPE_I32; },
         {"blk.0.attn_norm.weight", "i32"});
  change(
      [](auto& t) {
        t.type = GGML_TYPE_Q8_0, t.ne = {100, 256};
      },
      {"blk.0.attn_q.weight", "100", "32"});
}

TEST_F(ModelRefusal, Vocabularies) {
  const auto refuse = [&](const std::function<void(GgufBuilder&)>& change,
                          const std::vector<std::string>& expected) {
    GgufBuilder model = tiny_model({});
    change(model);
    model.write(path_);
    check(vocabulary_refusal(), expected);
  };
  refuse([](GgufBuilder& m) { m.remove("tokenizer.ggml.model"); },
         {"tokenizer.ggml.model", "nothing"});
  refuse([](GgufBuilder& m) { m.set_text("tokenizer.ggml.model", "bert"); },
         {"tokenizer.ggml.model", "'bert'"});
  refuse([](GgufBuilder& m) { m.remove("tokenizer.ggml.tokens"); },
         {"tokenizer.ggml.tokens", "nothing"});
  refuse(
      [](GgufBuilder& m) {
        m.set_i32s("tokenizer.ggml.tokens", {1, 2});
      },
      {"tokenizer.ggml.tokens", "array of 2 i32"});
  refuse(
      [](GgufBuilder& m) {
        m.set_texts("tokenizer.ggml.tokens", {"a", "b", "a"});
      },
      {"'a' twice"});
  refuse([](GgufBuilder& m) { m.set_i32s("tokenizer.ggml.token_type", {1}); },
         {"token_type", "1", "320"});
  refuse([](GgufBuilder& m) { m.set_i32s("tokenizer.ggml.merges", {1}); },
         {"tokenizer.ggml.merges"});
  refuse([](GgufBuilder& m) { m.set_u32("tokenizer.ggml.eos_token_id", 99999); },
         {"eos_token_id", "99999"});
  refuse([](GgufBuilder& m) { m.set_text("tokenizer.ggml.pre", "no such"); }, {"no such"});
}

// Flipped bytes anywhere in the header: refused or harmless, never a crash.
TEST_F(ModelRefusal, RandomDamageNeverCrashes) {
  const std::string whole =
      tiny_model({.n_layers = 1, .heads = 2, .kv_heads = 1, .width = 64, .ffn_width = 64}).bytes();
  Rng rng(20240607);
  int loaded = 0;
  for (int i = 0; i < 400; ++i) {
    std::string bytes = whole;
    const uint64_t header = 9000;
    for (uint64_t n = 1 + rng.below(4); n > 0; --n)
      bytes[rng.below(header)] = static_cast<char>(rng.below(256));
    write(bytes);
    if (refusal().empty()) ++loaded;
    vocabulary_refusal();
  }
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, 400);
}

}  // namespace
}  // namespace kvist::testing
