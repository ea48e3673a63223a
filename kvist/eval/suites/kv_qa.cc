// SPDX-License-Identifier: MIT
// Questions about countries over their descriptions, one and two hops: in the place of RULER's qa_1
// and qa_2, under names of their own.
#include <algorithm>
#include <array>
#include <filesystem>

#include "kvist/core/error.h"
#include "kvist/eval/fit.h"

namespace kvist {
namespace {

constexpr int kGenerate = 32;
constexpr const char* kAsk =
    "Answer the question based on the given documents. Only give me the answer and do not output "
    "any "
    "other words.";

struct Country {
  std::string name, text;
  std::vector<std::pair<std::string, std::string>> facts;  // field and value
  const std::string* fact(const std::string& field) const {
    for (const auto& [key, value] : facts)
      if (key == field) return &value;
    return nullptr;
  }
};

struct Asking {
  const char* field;
  const char* before;  // the country's name stands between
};
constexpr Asking kAskings[] = {{"capital", "What is the capital of "},
                               {"highest point", "What is the highest point of "},
                               {"national anthem", "What is the national anthem of "},
                               {"currency", "What is the currency of "}};

// A question, and the documents that answer it.
struct Quest {
  std::string question, answer;
  size_t document;
};

std::vector<Country> countries(const std::string& data) {
  const std::string path = (std::filesystem::path(data) / "factbook.jsonl").string();
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorKind::not_found,
                str(path, ": not there; `tools/texts.py factbook` fetches it (--data DIR)"));
  }
  std::vector<Country> all;
  for (const JsonLine& line : read_json_lines(path)) {
    Fields fields(line.value, str(path, ":", line.line));
    Country& country = all.emplace_back();
    country.name = fields.text("name");
    country.text = fields.text("text");
    const auto& facts = fields.at("facts");
    if (!facts.is_object()) fields.fail("facts", "an object of texts");
    for (const auto& [key, value] : facts.items()) {
      if (!value.is_string()) fields.fail("facts", "an object of texts");
      country.facts.emplace_back(key, value.get<std::string>());
    }
    fields.done();
  }
  return all;
}

size_t documents_with(const std::vector<Country>& all, const std::string& text) {
  return static_cast<size_t>(std::count_if(all.begin(), all.end(), [&](const Country& country) {
    return country.text.find(text) != std::string::npos;
  }));
}

// One hop: the answer stands in exactly one document of all.
std::vector<Quest> direct(const std::vector<Country>& all) {
  std::vector<Quest> out;
  for (size_t i = 0; i < all.size(); ++i) {
    for (const Asking& asking : kAskings) {
      const std::string* answer = all[i].fact(asking.field);
      if (answer != nullptr && documents_with(all, *answer) == 1)
        out.push_back({str(asking.before, all[i].name, "?"), *answer, i});
    }
  }
  return out;
}

// Two hops: from the highest point to the country to its capital; the country is not named.
std::vector<Quest> bridged(const std::vector<Country>& all) {
  std::vector<Quest> out;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string* peak = all[i].fact("highest point");
    const std::string* capital = all[i].fact("capital");
    if (peak == nullptr || capital == nullptr) continue;
    if (documents_with(all, *peak) != 1 || documents_with(all, *capital) != 1) continue;
    if (peak->find(all[i].name) != std::string::npos) continue;
    out.push_back({str("What is the capital of the country whose highest point is ", *peak, "?"),
                   *capital, i});
  }
  return out;
}

FitSample sample(const std::vector<Country>& all, const std::vector<Quest>& quests, int n,
                 Rng& rng) {
  const Quest& quest = quests[rng.below(quests.size())];
  std::vector<size_t> order(all.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::swap(order[0], order[quest.document]);
  shuffle(std::span(order).subspan(1), rng);
  order.resize(static_cast<size_t>(n));
  shuffle(std::span(order), rng);
  FitSample s;
  s.context = str(kAsk, "\n\nThe following are given documents.\n\n");
  for (size_t i = 0; i < order.size(); ++i) {
    s.context += str("Document ", i + 1, ":\n", all[order[i]].text, "\n\n");
    if (order[i] == quest.document)
      s.meta["depth"] = static_cast<double>(i) / static_cast<double>(order.size());
  }
  s.question = str(kAsk, "\n\nQuestion: ", quest.question, " ");
  s.answer_prefix = "Answer:";
  s.answers = {quest.answer};
  return s;
}

std::vector<EvalRow> rows(const SuiteInput& input) {
  const std::vector<Country> all = countries(input.data);
  std::vector<EvalRow> out;
  for (const std::string& name : chosen_tasks(input, {"kv-qa-1", "kv-qa-2"})) {
    const std::vector<Quest> quests = name == "kv-qa-1" ? direct(all) : bridged(all);
    if (quests.empty())
      throw Error(ErrorKind::invalid_argument,
                  str(input.data, "/factbook.jsonl: no question for ", name));
    for (int length : input.lengths) {
      FitTask task{.suite = "kv-qa", .task = name.c_str(), .metric = "part"};
      task.generate = kGenerate;
      task.most = std::min(static_cast<int>(all.size()), 3 * length / 100);
      task.make = [&](int n, Rng& rng) { return sample(all, quests, n, rng); };
      auto some = fitted_rows(input, length, task);
      std::move(some.begin(), some.end(), std::back_inserter(out));
    }
  }
  return out;
}

}  // namespace

extern constinit const Suite kv_qa_suite{
    "kv-qa", "kv-qa-1 and kv-qa-2: countries, one and two hops, over their descriptions",
    "factbook", rows};

}  // namespace kvist
