// SPDX-License-Identifier: MIT
// The printed figures, in tenths of a percent, and the rule behind each row.
#include "kvist/methods/read/paper_cells.h"

#include <array>

namespace kvist {
namespace {

constexpr int64_t kDocument = 2048;
constexpr size_t kModels = 6;
constexpr int kNotRun = -1;

struct Row {
  int table;
  const char* name;
  std::array<LedgerRule, kModels> rules;
  bool dagger;  // first and last two layers dense
  std::array<int, kModels> reads, capacity;
};

std::array<LedgerRule, kModels> all(const LedgerRule& rule) {
  return {rule, rule, rule, rule, rule, rule};
}

std::vector<Row> rows(int64_t x) {
  const auto readkv = [x](int stored, int rate) { return all(readkv_rule(stored, {rate, 1}, x)); };
  std::array<LedgerRule, kModels> low_sparq = all(sparq_rule(16, 64));
  low_sparq[3] = sparq_rule(8, 64);  // Yi
  // clang-format off
  return {
      {2, "Full Reader (4,4)", readkv(4, 4), false,
       {256, 254, 253, 254, 252, 253}, {251, 251, 251, 251, 251, 251}},
      {2, "KIVI (2-bit K/V)", all(kivi_rule(2)), false,
       {262, 262, 262, 262, 262, 262}, {238, 238, 238, 238, 238, 238}},
      {2, "SparQ r32/k128", all(sparq_rule(32, 128)), false,
       {247, 247, 247, 247, 247, 247}, {1000, 1000, 1000, 1000, 1000, 1000}},
      {2, "ReadKV (4,2)", readkv(4, 2), false,
       {131, 129, 128, 129, 127, 128}, {251, 251, 251, 251, 251, 251}},
      {2, "ReadKV (8,2)", readkv(8, 2), false,
       {131, 129, 128, 129, 127, 128}, {501, 501, 501, 501, 501, 501}},
      {2, "ReadKV (8,4)", readkv(8, 4), false,
       {256, 254, 253, 254, 252, 253}, {501, 501, 501, 501, 501, 501}},
      {2, "TurboQuant K4/V4†", all(turboquant_rule()), true,
       {344, 367, 323, 354, 360, 354}, {344, 367, 323, 354, 360, 354}},
      {2, "ReadKV (8,4)†", readkv(8, 4), true,
       {339, 360, 315, 347, 352, 346}, {556, 572, 543, 563, 568, 563}},
      {6, "ReadKV (8,2)†", readkv(8, 2), true,
       {227, 253, 201, 238, 244, 237}, {556, 572, 543, 563, 568, 563}},
      {6, "KIVI (4-bit K/V)", all(kivi_rule(4)), false,
       {376, 376, 376, 376, 376, 376}, {355, 355, 355, 355, 355, 355}},
      {6, "Lloyd-2 (norm-corrected)", all(lloyd_rule()), false,
       {131, 131, kNotRun, 131, 131, 131}, {130, 130, kNotRun, 130, 130, 130}},
      {6, "SparQ (R=2 target)", low_sparq, false,
       {125, 125, 125, 94, 125, 125}, {1000, 1000, 1000, 1000, 1000, 1000}},
      {6, "SparQ + nested code", all(nested_rule(32, 128, x)), false,
       {83, 81, 80, 81, 79, 80}, {501, 501, 501, 501, 501, 501}},
  };
  // clang-format on
}

}  // namespace

const std::vector<PaperModel>& paper_models() {
  static const std::vector<PaperModel> models = {
      {"Qwen2.5 3B", {36, 2, 128}},       {"Qwen2.5 7B", {28, 4, 128}},
      {"Qwen2.5 14B", {48, 8, 128}},      {"Yi-1.5 6B", {32, 4, 128}},
      {"DeepSeek LLM-7B", {30, 32, 128}}, {"Mistral 7B-v0.3", {32, 8, 128}}};
  return models;
}

std::vector<PaperCell> paper_cells(int64_t table_bytes) {
  std::vector<PaperCell> out;
  for (const Row& row : rows(table_bytes)) {
    for (size_t i = 0; i < kModels; ++i) {
      const PaperModel& model = paper_models()[i];
      const LedgerRule rule = row.dagger ? protect(row.rules[i], model.geometry) : row.rules[i];
      const auto add = [&](const char* figure, const Share& ours, int printed) {
        if (printed == kNotRun) return;
        out.push_back({row.table, row.name, model.name, figure, ours.percent(), printed / 10.0,
                       ours.tenths() == printed});
      };
      add("reads", reads(rule, model.geometry, 1, kDocument), row.reads[i]);
      add("capacity", capacity(rule, model.geometry, kDocument), row.capacity[i]);
    }
  }
  return out;
}

}  // namespace kvist
