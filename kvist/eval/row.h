// SPDX-License-Identifier: MIT
// The one format of every suite: a context, a question about it, the answers that count. JSON
// lines.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kvist {

struct EvalRow {
  std::string suite, task, id;     // id: unique within (suite, task, length)
  std::optional<int> length;       // nominal tokens of the cell
  std::string context;             // what is compressed
  std::string question;            // asked after compression; may be empty
  std::string answer_prefix;       // the answer starts with it; prefilled, not scored
  nlohmann::ordered_json answers;  // list of strings, or an object of strings (cloze)
  std::optional<std::vector<std::string>> all_classes;
  int max_new_tokens = 0;
  std::string group;            // SHA-256 of context: rows of a group share a cache
  nlohmann::ordered_json meta;  // an object; meta.metric names the scorer

  // "passkey/passkey/512/17-v1", for messages.
  std::string name() const;
  // Scorers by name, the first is the row's score: meta.metric, a string or a list of them.
  std::vector<std::string> metrics() const;
  std::vector<std::string> answer_list() const;  // empty for cloze
};

// Fills `group`.
void seal(EvalRow* row);
nlohmann::ordered_json to_json(const EvalRow& row);

// SHA-256 of the compact UTF-8 JSON array [task, question, sorted answers], cloze with sorted keys.
std::string fingerprint_text(const EvalRow& row);
std::string fingerprint(const EvalRow& row);

// Objects of a JSON-lines file, empty lines left out, and the line each came from. Throws corrupt
// naming file and line of what is no JSON object, and not_found or io.
struct JsonLine {
  int line = 0;
  nlohmann::ordered_json value;
};
std::vector<JsonLine> read_json_lines(const std::string& path);

// Throws invalid_argument naming file and line, the key, what was found and what was expected; also
// for a scorer that does not exist, and for an id that came before.
std::vector<EvalRow> read_rows(const std::string& path);
// The same for rows that a suite made: throws naming the row.
void require_distinct(const std::vector<EvalRow>& rows);

// Keys of one JSON object, checked one by one; what is missing or of another type is named with the
// place. An unknown key is refused by done().
class Fields {
 public:
  Fields(const nlohmann::ordered_json& object, std::string place);
  std::string text(const char* key);
  std::string text_or(const char* key, const std::string& fallback);
  int64_t integer(const char* key, int64_t least);
  std::optional<int64_t> integer_or_null(const char* key, int64_t least);
  double number(const char* key);
  const nlohmann::ordered_json* find(const char* key);  // null where it is absent or null
  const nlohmann::ordered_json& at(const char* key);
  void done() const;
  [[noreturn]] void fail(const char* key, const std::string& expected) const;

 private:
  const nlohmann::ordered_json& object_;
  std::string place_;
  std::vector<std::string> seen_;
};

}  // namespace kvist
