// SPDX-License-Identifier: MIT
// Rows in and out, every key checked where it is read.
#include "kvist/eval/row.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <tuple>

#include "kvist/core/error.h"
#include "kvist/core/sha256.h"
#include "kvist/eval/score.h"

namespace kvist {
namespace {

using Json = nlohmann::ordered_json;

std::string shown(const Json& value) {
  return kvist::quoted(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

bool is_text_list(const Json& value) {
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const Json& item) { return item.is_string(); });
}

bool is_text_object(const Json& value) {
  return value.is_object() &&
         std::all_of(value.begin(), value.end(), [](const Json& item) { return item.is_string(); });
}

EvalRow row_of(const Json& object, const std::string& place) {
  Fields fields(object, place);
  EvalRow row;
  row.suite = fields.text("suite");
  row.task = fields.text("task");
  row.id = fields.text("id");
  if (const auto length = fields.integer_or_null("length", 1))
    row.length = static_cast<int>(*length);
  row.context = fields.text("context");
  row.question = fields.text("question");
  row.answer_prefix = fields.text_or("answer_prefix", "");
  row.answers = fields.at("answers");
  if (!is_text_list(row.answers) && !is_text_object(row.answers))
    fields.fail("answers", "a list of texts, or an object of texts");
  if (row.answers.empty()) fields.fail("answers", "at least one");
  if (const Json* classes = fields.find("all_classes")) {
    if (!is_text_list(*classes)) fields.fail("all_classes", "a list of texts, or null");
    row.all_classes = classes->get<std::vector<std::string>>();
  }
  row.max_new_tokens = static_cast<int>(fields.integer("max_new_tokens", 1));
  if (row.max_new_tokens > 1 << 20) fields.fail("max_new_tokens", "at most 1048576");
  row.meta = fields.at("meta");
  if (!row.meta.is_object()) fields.fail("meta", "an object");
  seal(&row);
  if (fields.find("group") != nullptr && fields.text("group") != row.group)
    fields.fail("group", str("the SHA-256 of the context, ", row.group));
  fields.done();
  try {
    require_metrics(row);
  } catch (const Error& error) {
    throw Error(error.kind(), str(place, ": ", error.what()));
  }
  return row;
}

using RowKey = std::tuple<std::string, std::string, std::optional<int>, std::string>;
RowKey key_of(const EvalRow& row) { return {row.suite, row.task, row.length, row.id}; }

}  // namespace

std::string EvalRow::name() const {
  return str(suite, "/", task, "/", length ? str(*length) : "-", "/", id);
}

std::vector<std::string> EvalRow::metrics() const {
  const auto found = meta.find("metric");
  if (found == meta.end()) return {};
  if (found->is_string()) return {found->get<std::string>()};
  return is_text_list(*found) ? found->get<std::vector<std::string>>() : std::vector<std::string>{};
}

std::vector<std::string> EvalRow::answer_list() const {
  return answers.is_array() ? answers.get<std::vector<std::string>>() : std::vector<std::string>{};
}

void seal(EvalRow* row) { row->group = sha256_hex(std::string_view(row->context)); }

Json to_json(const EvalRow& row) {
  return {{"suite", row.suite},
          {"task", row.task},
          {"id", row.id},
          {"length", row.length ? Json(*row.length) : Json(nullptr)},
          {"context", row.context},
          {"question", row.question},
          {"answer_prefix", row.answer_prefix},
          {"answers", row.answers},
          {"all_classes", row.all_classes ? Json(*row.all_classes) : Json(nullptr)},
          {"max_new_tokens", row.max_new_tokens},
          {"group", row.group},
          {"meta", row.meta}};
}

std::string fingerprint_text(const EvalRow& row) {
  nlohmann::json answers = row.answers;  // objects of this type sort their keys
  if (answers.is_array()) std::sort(answers.begin(), answers.end());
  return nlohmann::json::array({row.task, row.question, answers}).dump();
}

std::string fingerprint(const EvalRow& row) {
  return sha256_hex(std::string_view(fingerprint_text(row)));
}

std::vector<JsonLine> read_json_lines(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(ErrorKind::not_found, str(path, ": cannot be opened"));
  std::vector<JsonLine> lines;
  std::string text;
  for (int line = 1; std::getline(in, text); ++line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      lines.push_back({line, Json::parse(text)});
    } catch (const Json::parse_error& error) {
      throw Error(ErrorKind::corrupt,
                  str(path, ":", line, ": not JSON: at byte ", error.byte, " of the line"));
    }
    if (!lines.back().value.is_object())
      throw Error(ErrorKind::corrupt, str(path, ":", line, ": expected a JSON object"));
  }
  if (in.bad()) throw Error(ErrorKind::io, str(path, ": cannot be read"));
  return lines;
}

std::vector<EvalRow> read_rows(const std::string& path) {
  std::vector<EvalRow> rows;
  std::map<RowKey, int> line_of;
  for (const JsonLine& line : read_json_lines(path)) {
    const std::string place = str(path, ":", line.line);
    rows.push_back(row_of(line.value, place));
    const auto [before, fresh] = line_of.emplace(key_of(rows.back()), line.line);
    if (!fresh) {
      throw Error(ErrorKind::invalid_argument,
                  str(place, ": ", rows.back().name(), " was on line ", before->second,
                      " already; ids are unique within suite, task and length"));
    }
  }
  if (rows.empty()) throw Error(ErrorKind::invalid_argument, str(path, ": no row in it"));
  return rows;
}

void require_distinct(const std::vector<EvalRow>& rows) {
  std::set<RowKey> seen;
  for (const EvalRow& row : rows) {
    if (!seen.insert(key_of(row)).second)
      throw Error(ErrorKind::invalid_argument, str("two rows are called ", row.name()));
  }
}

Fields::Fields(const Json& object, std::string place) : object_(object), place_(std::move(place)) {}

void Fields::fail(const char* key, const std::string& expected) const {
  const auto found = object_.find(key);
  throw Error(ErrorKind::invalid_argument,
              str(place_, ": \"", key, "\" is ", found == object_.end() ? "missing" : shown(*found),
                  ", expected ", expected));
}

const Json* Fields::find(const char* key) {
  seen_.emplace_back(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json& Fields::at(const char* key) {
  const Json* found = find(key);
  if (found == nullptr) fail(key, "a value");
  return *found;
}

std::string Fields::text(const char* key) {
  const Json* found = find(key);
  if (found == nullptr || !found->is_string()) fail(key, "a text");
  return found->get<std::string>();
}

std::string Fields::text_or(const char* key, const std::string& fallback) {
  return find(key) == nullptr ? fallback : text(key);
}

std::optional<int64_t> Fields::integer_or_null(const char* key, int64_t least) {
  const Json* found = find(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_number_integer() || found->get<int64_t>() < least ||
      found->get<int64_t>() > INT32_MAX)
    fail(key, str("a whole number, at least ", least, " and at most ", INT32_MAX));
  return found->get<int64_t>();
}

int64_t Fields::integer(const char* key, int64_t least) {
  const auto value = integer_or_null(key, least);
  if (!value) fail(key, str("a whole number, at least ", least));
  return *value;
}

double Fields::number(const char* key) {
  const Json* found = find(key);
  if (found == nullptr || !found->is_number()) fail(key, "a number");
  return found->get<double>();
}

void Fields::done() const {
  for (const auto& [key, value] : object_.items()) {
    if (std::find(seen_.begin(), seen_.end(), key) == seen_.end())
      throw Error(ErrorKind::invalid_argument, str(place_, ": unknown key ", kvist::quoted(key),
                                                   "; what a suite adds goes into meta"));
  }
}

}  // namespace kvist
