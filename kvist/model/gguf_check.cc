// SPDX-License-Identifier: MIT
// Turns the keys and tensors of a GGUF file into the sizes of a graph, refusing whatever the graph
// would not run exactly.
#include "kvist/model/gguf_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "kvist/core/error.h"
#include "kvist/model/rope_scaling.h"

namespace kvist {
namespace {

constexpr int kMaxHeadDim = 1024, kMaxLayers = 1024, kMaxHeads = 4096, kMaxWidth = 1 << 20;

// Reads the keys of one architecture and remembers which of them have been understood.
class Keys {
 public:
  Keys(const GgufFile& file, const Arch& arch) : file_(file), prefix_(str(arch.name, ".")) {}

  std::string full(std::string_view key) {
    std::string out = str(prefix_, key);
    seen_.insert(out);
    return out;
  }
  int integer(std::string_view key, int64_t low, int64_t high,
              std::optional<int64_t> otherwise = {}) {
    const std::string name = full(key);
    const auto found = file_.integer(name);
    if (!found && !otherwise) {
      throw Error(ErrorKind::corrupt, str(file_.path(), ": key ", name, " is missing"));
    }
    const int64_t value = found.value_or(otherwise.value_or(0));
    if (value < low || value > high) {
      throw Error(ErrorKind::unsupported, str(file_.path(), ": key ", name, " is ", value,
                                              ", expected ", low, " to ", high));
    }
    return static_cast<int>(value);
  }
  double number(std::string_view key, double low, double high,
                std::optional<double> otherwise = {}) {
    const std::string name = full(key);
    const auto found = file_.number(name);
    if (!found && !otherwise) {
      throw Error(ErrorKind::corrupt, str(file_.path(), ": key ", name, " is missing"));
    }
    const double value = found.value_or(otherwise.value_or(0));
    if (!(value >= low && value <= high)) {
      throw Error(ErrorKind::unsupported, str(file_.path(), ": key ", name, " is ", value,
                                              ", expected ", low, " to ", high));
    }
    return value;
  }
  std::string text(std::string_view key, std::string otherwise) {
    return file_.text(full(key)).value_or(std::move(otherwise));
  }
  bool has(std::string_view key) { return file_.has(full(key)); }

  // Every other key of the architecture changes the computation in a way we do not know, unless it
  // says 0 or false.
  void refuse_the_rest() {
    constexpr std::array<std::string_view, 4> kHarmless{"vocab_size", "tensor_data_layout",
                                                        "rope.scaling.finetuned",
                                                        "attention.layer_norm_epsilon"};
    for (const std::string_view key : kHarmless) full(key);
    for (const std::string& key : file_.keys_with_prefix(prefix_)) {
      if (seen_.contains(key) || file_.is_zero(key)) continue;
      throw Error(ErrorKind::unsupported, str(file_.path(), ": key ", key, " is ", file_.shown(key),
                                              ": ", reason(key.substr(prefix_.size()))));
    }
  }

 private:
  static std::string_view reason(std::string_view key) {
    if (key.find("sliding_window") != key.npos || key.ends_with("_swa")) {
      return "sliding-window attention is not supported";
    }
    if (key.find("expert") != key.npos) return "mixture-of-experts models are not supported";
    if (key.find("lora_rank") != key.npos || key.ends_with("_mla")) {
      return "multi-head latent attention is not supported";
    }
    if (key.find("rope") != key.npos) return "this kind of RoPE is not supported";
    return "this key is not known, and running without it may give wrong results";
  }

  const GgufFile& file_;
  std::string prefix_;
  std::set<std::string> seen_;
};

// Finds tensors, checks their shapes, and remembers which of them are used.
class Tensors {
 public:
  explicit Tensors(const GgufFile& file) : file_(file) {}

  const GgufTensor* optional(const std::string& name, int64_t n0, int64_t n1 = 1) {
    const GgufTensor* t = file_.find(name);
    if (t == nullptr) return nullptr;
    if (t->ne != std::array<int64_t, 4>{n0, n1, 1, 1}) {
      throw Error(ErrorKind::unsupported,
                  str(file_.path(), ": tensor ", name, " has shape ", t->shape(), ", expected ",
                      n1 == 1 ? str("[", n0, "]") : str("[", n0, ", ", n1, "]")));
    }
    const bool floats =
        t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16;
    if (n1 == 1 ? !floats
                : t->type != GGML_TYPE_F32 && ggml_get_type_traits(t->type)->to_float == nullptr) {
      throw Error(ErrorKind::unsupported,
                  str(file_.path(), ": tensor ", name, " has type ", ggml_type_name(t->type),
                      n1 == 1 ? ", expected f32, f16 or bf16" : ", expected a type of weights"));
    }
    used_.insert(name);
    return t;
  }
  const GgufTensor* required(const std::string& name, int64_t n0, int64_t n1 = 1) {
    const GgufTensor* t = optional(name, n0, n1);
    if (t == nullptr) {
      throw Error(ErrorKind::unsupported, str(file_.path(), ": tensor ", name, " is missing"));
    }
    return t;
  }
  void refuse_the_rest(const Arch& arch) const {
    for (const GgufTensor& t : file_.tensors()) {
      if (used_.contains(t.name)) continue;
      throw Error(ErrorKind::unsupported,
                  str(file_.path(), ": tensor ", quoted(t.name), " ", t.shape(),
                      " is not part of a ", arch.name, " model as kvist runs it"));
    }
  }

 private:
  const GgufFile& file_;
  std::set<std::string> used_;
};

const Arch& arch_of(const GgufFile& file) {
  const auto name = file.text("general.architecture");
  const Arch* arch = name ? find_arch(*name) : nullptr;
  if (arch != nullptr) return *arch;
  std::string known;
  for (const Arch& a : architectures()) known += str(known.empty() ? "" : ", ", a.name);
  throw Error(ErrorKind::unsupported,
              str(file.path(), ": key general.architecture is ", file.shown("general.architecture"),
                  ", expected one of: ", known));
}

void read_heads(const GgufFile& file, Keys& keys, CheckedModel& m) {
  m.heads = keys.integer("attention.head_count", 1, kMaxHeads);
  m.kv_heads = keys.integer("attention.head_count_kv", 1, kMaxHeads, m.heads);
  if (m.heads % m.kv_heads != 0) {
    throw Error(ErrorKind::unsupported,
                str(file.path(), ": key ", keys.full("attention.head_count"), " is ", m.heads,
                    ", not a multiple of attention.head_count_kv = ", m.kv_heads));
  }
  if (!keys.has("attention.key_length") && m.width % m.heads != 0) {
    throw Error(ErrorKind::unsupported,
                str(file.path(), ": key ", keys.full("embedding_length"), " is ", m.width,
                    ", not a multiple of attention.head_count = ", m.heads));
  }
  m.head_dim = keys.integer("attention.key_length", 2, kMaxHeadDim, m.width / m.heads);
  const int value_length = keys.integer("attention.value_length", 1, kMaxHeadDim, m.head_dim);
  if (value_length != m.head_dim || m.head_dim % 2 != 0) {
    throw Error(ErrorKind::unsupported,
                str(file.path(), ": keys of ", m.head_dim, " and values of ", value_length,
                    " channels (", keys.full("attention.key_length"),
                    ", attention.value_length), expected one even number"));
  }
}

void read_rope(const GgufFile& file, Keys& keys, const std::string& user, CheckedModel& m) {
  RopeKeys k;
  k.dims = keys.integer("rope.dimension_count", 2, m.head_dim, m.head_dim);
  k.theta = keys.number("rope.freq_base", 1, 1e12, 10000);
  k.context = keys.integer("context_length", 1, 1 << 30);
  k.original_context = keys.integer("rope.scaling.original_context_length", 0, 1 << 30, 0);
  k.type = keys.text("rope.scaling.type", "");
  const double linear = keys.number("rope.scale_linear", 0, 1e6, 0);
  k.factor = keys.number("rope.scaling.factor", 0, 1e6, linear);
  k.attn_factor = keys.number("rope.scaling.attn_factor", 0, 1e6, 1);
  k.beta_fast = keys.number("rope.scaling.yarn_beta_fast", 0, 1e6, 32);
  k.beta_slow = keys.number("rope.scaling.yarn_beta_slow", 0, 1e6, 1);
  k.freq_factors = m.rope_freqs != nullptr;
  k.adjacent = m.arch->rope_adjacent;
  if (k.dims % 2 != 0) {
    throw Error(ErrorKind::unsupported,
                str(file.path(), ": key ", keys.full("rope.dimension_count"), " is ", k.dims,
                    ", expected an even number"));
  }
  const RopePlan plan = plan_rope(file.path(), k, user);
  m.rope = plan.params;
  m.rope_info = plan.info;
  m.context = plan.context;
}

LayerTensors layer_tensors(Tensors& tensors, const CheckedModel& m, int layer) {
  const std::string p = str("blk.", layer, ".");
  const int64_t q_width = int64_t{m.heads} * m.head_dim,
                kv_width = int64_t{m.kv_heads} * m.head_dim;
  LayerTensors t{};
  t.attn_norm = tensors.required(p + "attn_norm.weight", m.width);
  t.q = tensors.required(p + "attn_q.weight", m.width, q_width);
  t.k = tensors.required(p + "attn_k.weight", m.width, kv_width);
  t.v = tensors.required(p + "attn_v.weight", m.width, kv_width);
  t.o = tensors.required(p + "attn_output.weight", q_width, m.width);
  const auto bias = [&](const char* name, int64_t n) {
    return m.arch->qkv_bias ? tensors.required(p + name, n) : tensors.optional(p + name, n);
  };
  t.q_bias = bias("attn_q.bias", q_width);
  t.k_bias = bias("attn_k.bias", kv_width);
  t.v_bias = bias("attn_v.bias", kv_width);
  if (m.arch->qk_norm) {
    t.q_norm = tensors.required(p + "attn_q_norm.weight", m.head_dim);
    t.k_norm = tensors.required(p + "attn_k_norm.weight", m.head_dim);
  }
  t.ffn_norm = tensors.required(p + "ffn_norm.weight", m.width);
  t.gate = tensors.required(p + "ffn_gate.weight", m.width, m.ffn_width);
  t.up = tensors.required(p + "ffn_up.weight", m.width, m.ffn_width);
  t.down = tensors.required(p + "ffn_down.weight", m.ffn_width, m.width);
  return t;
}

}  // namespace

CheckedModel check_model(const GgufFile& file, const std::string& rope_scaling) {
  CheckedModel m;
  m.arch = &arch_of(file);
  m.name = file.text("general.name").value_or("");
  Keys keys(file, *m.arch);
  if (!file.boolean(keys.full("attention.causal")).value_or(true)) {
    throw Error(ErrorKind::unsupported, str(file.path(), ": key ", keys.full("attention.causal"),
                                            " is false: encoders are not supported"));
  }
  m.n_layers = keys.integer("block_count", 1, kMaxLayers);
  m.width = keys.integer("embedding_length", 1, kMaxWidth);
  m.ffn_width = keys.integer("feed_forward_length", 1, kMaxWidth);
  m.norm_eps = static_cast<float>(keys.number("attention.layer_norm_rms_epsilon", 0, 1));
  read_heads(file, keys, m);
  const double usual = 1 / std::sqrt(static_cast<double>(m.head_dim));
  const bool scaled =
      m.arch->attention_scale && file.number(keys.full("attention.scale")).value_or(0) != 0;
  m.attention_scale =
      static_cast<float>(scaled ? keys.number("attention.scale", 1e-6, 1e6) : usual);

  Tensors tensors(file);
  const GgufTensor* embed = file.find("token_embd.weight");
  m.vocab = static_cast<int>(std::min<int64_t>(embed ? embed->ne[1] : 0, INT32_MAX));
  m.embed = tensors.required("token_embd.weight", m.width, m.vocab);
  m.output_norm = tensors.required("output_norm.weight", m.width);
  const GgufTensor* untied = tensors.optional("output.weight", m.width, m.vocab);
  m.head = untied ? untied : m.embed;
  const int dims = keys.integer("rope.dimension_count", 2, m.head_dim, m.head_dim);
  if (m.arch->rope_freqs) m.rope_freqs = tensors.optional("rope_freqs.weight", dims / 2);
  for (int layer = 0; layer < m.n_layers; ++layer)
    m.layers.push_back(layer_tensors(tensors, m, layer));
  read_rope(file, keys, rope_scaling, m);
  keys.refuse_the_rest();
  tensors.refuse_the_rest(*m.arch);

  const auto listed = file.array("tokenizer.ggml.tokens", GgufFile::kString);
  if (listed && *listed != static_cast<uint64_t>(m.vocab)) {
    throw Error(ErrorKind::corrupt,
                str(file.path(), ": key tokenizer.ggml.tokens has ", *listed,
                    " tokens, tensor token_embd.weight has ", m.vocab, " rows"));
  }
  return m;
}

void check_vocabulary(const GgufFile& file) {
  arch_of(file);
  const auto model = file.text("tokenizer.ggml.model");
  if (!model || (*model != "gpt2" && *model != "llama")) {
    throw Error(ErrorKind::unsupported,
                str(file.path(), ": key tokenizer.ggml.model is ",
                    file.shown("tokenizer.ggml.model"), ", expected gpt2 or llama"));
  }
  const auto tokens = file.array("tokenizer.ggml.tokens", GgufFile::kString);
  if (!tokens || *tokens == 0) {
    throw Error(ErrorKind::corrupt,
                str(file.path(), ": key tokenizer.ggml.tokens is ",
                    file.shown("tokenizer.ggml.tokens"), ", expected the tokens"));
  }
  std::set<std::string_view> distinct;
  for (const std::string_view token : file.strings("tokenizer.ggml.tokens")) {
    if (!token.empty() && !distinct.insert(token).second) {
      throw Error(ErrorKind::corrupt,
                  str(file.path(), ": key tokenizer.ggml.tokens lists ", quoted(token), " twice"));
    }
  }
  const auto as_long = [&](const char* key, uint32_t element) {
    const auto n = file.array(key, element);
    if (n && *n < *tokens) {
      throw Error(ErrorKind::corrupt, str(file.path(), ": key ", key, " has ", *n, " entries for ",
                                          *tokens, " tokens"));
    }
  };
  as_long("tokenizer.ggml.scores", GgufFile::kFloat32);
  as_long("tokenizer.ggml.token_type", GgufFile::kInt32);
  file.array("tokenizer.ggml.merges", GgufFile::kString);
  file.text("tokenizer.ggml.pre");
  file.text("tokenizer.chat_template");
  for (const char* special : {"bos", "eos", "unknown", "separator", "padding"}) {
    const std::string key = str("tokenizer.ggml.", special, "_token_id");
    const auto id = file.integer(key);
    if (id && (*id < 0 || *id >= static_cast<int64_t>(*tokens)) && *id != -1 && *id != 0xFFFFFFFF) {
      throw Error(ErrorKind::corrupt, str(file.path(), ": key ", key, " is ", *id,
                                          ", expected a token below ", *tokens));
    }
  }
}

}  // namespace kvist
