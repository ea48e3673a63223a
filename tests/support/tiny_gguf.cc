// SPDX-License-Identifier: MIT
// Writes small GGUF files: random models of each architecture with a real vocabulary, damaged ones,
// and widened copies.
#include "tests/support/tiny_gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/model/gguf_file.h"

namespace kvist::testing {
namespace {

constexpr uint64_t kAlignment = 32;

template <typename T>
std::string raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

std::string raw_text(std::string_view text) {
  return raw(uint64_t{text.size()}) + std::string(text);
}

uint64_t aligned(uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

// GPT-2's printable stand-in for a byte, in UTF-8.
std::string byte_token(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

void set_vocabulary(GgufBuilder& out) {
  std::vector<std::string> tokens, merges;
  for (int b = 0; b < 256; ++b) tokens.push_back(byte_token(b));
  const std::string letters = "etaoinshrdlu";
  for (const char first : letters) {
    for (const char second : letters) {
      if (tokens.size() >= static_cast<size_t>(kTinyVocab - 4)) break;
      tokens.push_back({first, second});
      merges.push_back({first, ' ', second});
    }
  }
  std::vector<int32_t> types(tokens.size(), 1);
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|spare|>"}) {
    tokens.push_back(special);
    types.push_back(3);
  }
  out.set_text("tokenizer.ggml.model", "gpt2");
  out.set_text("tokenizer.ggml.pre", "gpt-2");
  out.set_texts("tokenizer.ggml.tokens", tokens);
  out.set_i32s("tokenizer.ggml.token_type", types);
  out.set_texts("tokenizer.ggml.merges", merges);
  out.set_u32("tokenizer.ggml.bos_token_id", kTinyVocab - 4);
  out.set_u32("tokenizer.ggml.eos_token_id", kTinyVocab - 2);
  out.set_bool("tokenizer.ggml.add_bos_token", false);
  out.set_text("tokenizer.chat_template",
               "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
               "message['content'] + "
               "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
               "'<|im_start|>assistant\n' }}{% endif "
               "%}");
}

void set_keys(GgufBuilder& out, const TinyModel& m) {
  const std::string p = m.architecture + ".";
  out.set_text("general.architecture", m.architecture);
  out.set_text("general.name", "tiny");
  const auto set = [&](const char* key, int value) {
    out.set_u32(p + key, static_cast<uint32_t>(value));
  };
  set("block_count", m.n_layers);
  set("context_length", m.context);
  set("embedding_length", m.width);
  set("feed_forward_length", m.ffn_width);
  set("attention.head_count", m.heads);
  set("attention.head_count_kv", m.kv_heads);
  set("attention.key_length", m.head_dim);
  set("attention.value_length", m.head_dim);
  set("rope.dimension_count", m.head_dim);
  out.set_f32(p + "attention.layer_norm_rms_epsilon", 1e-5f);
  out.set_f32(p + "rope.freq_base", 10000.0f);
  if (!m.rope_scaling.empty()) {
    out.set_text(p + "rope.scaling.type", m.rope_scaling);
    out.set_f32(p + "rope.scaling.factor", m.rope_factor);
    set("rope.scaling.original_context_length", m.context / 4);
  }
}

// Random weights, scaled so that activations stay of order one.
class Random {
 public:
  Random(GgufBuilder& out, const TinyModel& shape)
      : out_(out), type_(shape.weights), rng_(shape.seed) {}

  void matrix(const std::string& name, int64_t columns, int64_t rows) {
    out_.set_tensor(name, {columns, rows}, type_,
                    numbers(columns * rows, 0, 1.5 / std::sqrt(double(columns))));
  }
  void vector(const std::string& name, int64_t n, double mean, double spread) {
    out_.set_tensor(name, {n}, GGML_TYPE_F32, numbers(n, mean, spread));
  }

 private:
  std::vector<float> numbers(int64_t n, double mean, double spread) {
    std::vector<float> out(static_cast<size_t>(n));
    for (float& x : out) x = static_cast<float>(mean + spread * rng_.gaussian());
    return out;
  }
  GgufBuilder& out_;
  ggml_type type_;
  Rng rng_;
};

}  // namespace

void GgufBuilder::set_u32(const std::string& key, uint32_t value) {
  values_[key] = raw(uint32_t{4}) + raw(value);
}
void GgufBuilder::set_f32(const std::string& key, float value) {
  values_[key] = raw(uint32_t{6}) + raw(value);
}
void GgufBuilder::set_bool(const std::string& key, bool value) {
  values_[key] = raw(uint32_t{7}) + raw(uint8_t{value});
}
void GgufBuilder::set_text(const std::string& key, std::string_view value) {
  values_[key] = raw(uint32_t{8}) + raw_text(value);
}
void GgufBuilder::set_texts(const std::string& key, const std::vector<std::string>& values) {
  std::string& out = values_[key] =
      raw(uint32_t{9}) + raw(uint32_t{8}) + raw(uint64_t{values.size()});
  for (const std::string& value : values) out += raw_text(value);
}
void GgufBuilder::set_i32s(const std::string& key, const std::vector<int32_t>& values) {
  std::string& out = values_[key] =
      raw(uint32_t{9}) + raw(uint32_t{5}) + raw(uint64_t{values.size()});
  for (const int32_t value : values) out += raw(value);
}

void GgufBuilder::set_tensor(const std::string& name, const std::vector<int64_t>& ne,
                             ggml_type type, const std::vector<float>& values) {
  Tensor t{name, ne, static_cast<uint32_t>(type), {}};
  const auto n = static_cast<int64_t>(values.size());
  t.data.resize(static_cast<size_t>(n / ne[0]) * ggml_row_size(type, ne[0]));
  if (type == GGML_TYPE_F32) {
    std::memcpy(t.data.data(), values.data(), t.data.size());
  } else {
    ggml_quantize_chunk(type, values.data(), t.data.data(), 0, n / ne[0], ne[0], nullptr);
  }
  if (Tensor* old = tensor(name)) {
    *old = std::move(t);
  } else {
    tensors_.push_back(std::move(t));
  }
}

void GgufBuilder::remove_tensor(const std::string& name) {
  std::erase_if(tensors_, [&](const Tensor& t) { return t.name == name; });
}

GgufBuilder::Tensor* GgufBuilder::tensor(const std::string& name) {
  const auto it = std::find_if(tensors_.begin(), tensors_.end(),
                               [&](const Tensor& t) { return t.name == name; });
  return it == tensors_.end() ? nullptr : &*it;
}

std::string GgufBuilder::bytes() const {
  std::string out =
      "GGUF" + raw(version) + raw(uint64_t{tensors_.size()}) + raw(uint64_t{values_.size()});
  for (const auto& [key, value] : values_) out += raw_text(key) + value;
  uint64_t offset = 0;
  for (const Tensor& t : tensors_) {
    out += raw_text(t.name) + raw(static_cast<uint32_t>(t.ne.size()));
    for (const int64_t n : t.ne) out += raw(n);
    out += raw(t.type) + raw(offset);
    offset = aligned(offset + t.data.size());
  }
  out.resize(aligned(out.size()), '\0');
  for (const Tensor& t : tensors_) {
    out.append(t.data.begin(), t.data.end());
    out.resize(aligned(out.size()), '\0');
  }
  return out;
}

void GgufBuilder::write(const std::string& path) const {
  const std::string all = bytes();
  std::ofstream(path, std::ios::binary).write(all.data(), static_cast<std::streamsize>(all.size()));
}

GgufBuilder tiny_model(const TinyModel& m) {
  GgufBuilder out;
  set_keys(out, m);
  set_vocabulary(out);
  Random random(out, m);
  const int64_t q = int64_t{m.heads} * m.head_dim, kv = int64_t{m.kv_heads} * m.head_dim;
  random.matrix("token_embd.weight", m.width, kTinyVocab);
  random.vector("output_norm.weight", m.width, 1, 0.1);
  if (!m.tied) random.matrix("output.weight", m.width, kTinyVocab);
  if (m.rope_freqs) random.vector("rope_freqs.weight", m.head_dim / 2, 2, 0.2);
  for (int i = 0; i < m.n_layers; ++i) {
    const std::string p = str("blk.", i, ".");
    random.vector(p + "attn_norm.weight", m.width, 1, 0.1);
    random.matrix(p + "attn_q.weight", m.width, q);
    random.matrix(p + "attn_k.weight", m.width, kv);
    random.matrix(p + "attn_v.weight", m.width, kv);
    random.matrix(p + "attn_output.weight", q, m.width);
    if (m.architecture == "qwen2") {
      random.vector(p + "attn_q.bias", q, 0, 0.3);
      random.vector(p + "attn_k.bias", kv, 0, 0.3);
      random.vector(p + "attn_v.bias", kv, 0, 0.3);
    }
    if (m.architecture == "qwen3") {
      random.vector(p + "attn_q_norm.weight", m.head_dim, 1, 0.2);
      random.vector(p + "attn_k_norm.weight", m.head_dim, 1, 0.2);
    }
    random.vector(p + "ffn_norm.weight", m.width, 1, 0.1);
    random.matrix(p + "ffn_gate.weight", m.width, m.ffn_width);
    random.matrix(p + "ffn_up.weight", m.width, m.ffn_width);
    random.matrix(p + "ffn_down.weight", m.ffn_width, m.width);
  }
  return out;
}

void dequantize_gguf(const std::string& from, const std::string& to) {
  const GgufFile in(from);
  std::ofstream out(to, std::ios::binary);
  out.write(reinterpret_cast<const char*>(in.data()),
            static_cast<std::streamsize>(in.keys_bytes()));
  uint64_t offset = 0, at = in.keys_bytes();
  for (const GgufTensor& t : in.tensors()) {
    uint32_t rank = 4;
    while (rank > 1 && t.ne[rank - 1] == 1) --rank;
    std::string entry = raw_text(t.name) + raw(rank);
    for (uint32_t i = 0; i < rank; ++i) entry += raw(t.ne[i]);
    entry += raw(uint32_t{GGML_TYPE_F32}) + raw(offset);
    out << entry;
    at += entry.size();
    const int64_t n = t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3];
    offset = aligned(offset + static_cast<uint64_t>(n) * sizeof(float));
  }
  out << std::string(aligned(at) - at, '\0');
  for (const GgufTensor& t : in.tensors()) {
    const int64_t n = t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3];
    std::vector<float> values(aligned(static_cast<uint64_t>(n) * sizeof(float)) / sizeof(float));
    if (t.type == GGML_TYPE_F32) {
      std::memcpy(values.data(), in.data() + t.offset, t.size_bytes);
    } else {
      ggml_get_type_traits(t.type)->to_float(in.data() + t.offset, values.data(), n);
    }
    out.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
  if (!out.flush()) throw Error(ErrorKind::io, str(to, ": cannot be written"));
}

}  // namespace kvist::testing
