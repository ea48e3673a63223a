// SPDX-License-Identifier: MIT
// The parser of method specs, and the search for the word that was meant.
#include "kvist/methods/spec.h"

#include <algorithm>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/methods/option_value.h"

namespace kvist {
namespace {

constexpr size_t kLongestSpec = 4096;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Insertions, deletions, replacements and swaps of neighbours that turn a into b, letter case
// ignored.
int edits(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  std::iota(above.begin(), above.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
          lower(a[i - 2]) == lower(b[j - 1])) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}
bool is_value(char c) { return is_word(c) || c == '.' || c == '/' || c == '%' || c == ':'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Spec parse();

 private:
  MethodCall call(const std::string& name, size_t name_at);
  std::vector<OptionSpec> specs_of(const Method& method);
  std::pair<std::string, std::string> option(const Method& method,
                                             std::span<const OptionSpec> specs,
                                             std::vector<std::pair<std::string, std::string>> seen);
  std::string word(const char* what);
  std::string take(bool (*belongs)(char), const char* what);

  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  // Throws: columns count from 1.
  [[noreturn]] void fail(size_t at, std::string_view problem) const {
    throw Error(ErrorKind::invalid_argument,
                str("method spec ", quoted(text_), ", column ", at + 1, ": ", problem));
  }
  [[noreturn]] void expected(std::string_view what) const {
    const std::string found = at_ == text_.size() ? "the end" : quoted(text_.substr(at_, 1));
    fail(at_, str("expected ", what, ", found ", found));
  }
  // Runs fn and adds the place in the text to what it throws.
  template <typename Fn>
  auto located(size_t at, const Fn& fn) const {
    try {
      return fn();
    } catch (const Error& error) {
      fail(at, error.what());
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

std::string Parser::take(bool (*belongs)(char), const char* what) {
  skip_space();
  const size_t begin = at_;
  while (at_ < text_.size() && belongs(text_[at_])) ++at_;
  if (at_ == begin) expected(what);
  return std::string(text_.substr(begin, at_ - begin));
}

// The options that may stand in the parentheses which begin here: the method's own, and those of
// the scorer it names, wherever in the list that is. The place stays as it was.
std::vector<OptionSpec> Parser::specs_of(const Method& method) {
  std::vector<OptionSpec> specs(method.options.begin(), method.options.end());
  const auto chooser = std::find_if(specs.begin(), specs.end(), [](const OptionSpec& spec) {
    return spec.kind == OptionSpec::Kind::scorer;
  });
  if (chooser == specs.end()) return specs;
  std::string scorer = chooser->fallback;
  const size_t begin = at_;
  const size_t end = std::min(text_.find_first_of(")+", begin), text_.size());
  while (at_ < end) {
    if (!is_word(text_[at_])) {
      ++at_;
    } else if (take(is_word, "a word") == chooser->name && accept('=')) {
      skip_space();
      const size_t value_at = at_;
      scorer = take(is_value, "a value");
      located(value_at, [&] {
        return Options(method.options, {{chooser->name, scorer}}, method.name);
      });
    }
  }
  at_ = begin;
  for (const OptionSpec& passed : find_scorer(scorer)->options) {
    const bool known = std::any_of(specs.begin(), specs.end(), [&](const OptionSpec& spec) {
      return std::string_view(spec.name) == passed.name;
    });
    if (!known) specs.push_back(passed);
  }
  return specs;
}

std::pair<std::string, std::string> Parser::option(
    const Method& method, std::span<const OptionSpec> specs,
    std::vector<std::pair<std::string, std::string>> seen) {
  skip_space();
  const size_t name_at = at_;
  seen.emplace_back(take(is_word, "an option name"), "");
  const std::string& name = seen.back().first;
  const bool known = std::any_of(specs.begin(), specs.end(),
                                 [&](const OptionSpec& spec) { return name == spec.name; });
  if (!known) {
    located(name_at, [&] { return Options(specs, {{name, ""}}, method.name); });
  }
  if (!accept('=')) expected(str("'=' after ", name));
  skip_space();
  const size_t value_at = at_;
  seen.back().second = take(is_value, "a value");
  // One option alone shows a bad value; all so far show a repeated one.
  located(value_at, [&] { return Options(specs, {seen.back()}, method.name); });
  located(name_at, [&] { return Options(specs, seen, method.name); });
  return seen.back();
}

MethodCall Parser::call(const std::string& name, size_t name_at) {
  const Method& method = *located(name_at, [&] { return &find_method(name); });
  std::vector<std::pair<std::string, std::string>> given;
  const bool listed = accept('(');
  const std::vector<OptionSpec> specs = specs_of(method);
  if (listed && !accept(')')) {
    do {
      given.push_back(option(method, specs, given));
    } while (accept(','));
    if (!accept(')')) expected("',' or ')'");
  }
  MethodCall made{&method, Options(specs, given, method.name)};
  // A combination that the method refuses is refused here, where its place is known.
  if (method.select != nullptr)
    located(name_at, [&] {
      Scorers alone;
      return method.select(made.options, alone) != nullptr;
    });
  if (method.read != nullptr)
    located(name_at, [&] { return method.read(made.options).plan.width; });
  return made;
}

std::string canonical(const MethodCall& call) {
  std::string options;
  for (const OptionSpec& spec : call.options.specs()) {
    if (!call.options.given(spec.name)) continue;
    options += str(options.empty() ? "" : ",", spec.name, "=", call.options.text(spec.name));
  }
  return options.empty() ? call.method->name : str(call.method->name, "(", options, ")");
}

Spec Parser::parse() {
  if (text_.size() > kLongestSpec) {
    throw Error(
        ErrorKind::invalid_argument,
        str("method spec of ", text_.size(), " characters; at most ", kLongestSpec, " are read"));
  }
  Spec spec;
  const char* selector = nullptr;
  const char* reader = nullptr;
  const char* ranker = nullptr;
  do {
    skip_space();
    const size_t name_at = at_;
    const std::string name = take(is_word, "a method name or 'none'");
    if (name == "none") {
      if (!spec.calls.empty()) fail(name_at, "'none' is not combined with other methods");
      skip_space();
      if (at_ != text_.size()) expected("nothing after 'none'");
      spec.text = "none";
      return spec;
    }
    spec.calls.push_back(call(name, name_at));
    const Method& method = *spec.calls.back().method;
    if (method.select != nullptr) {
      if (selector != nullptr) {
        fail(name_at, str(selector, " and ", name,
                          " both decide which entries stay; the second would see what the first "
                          "left, not the document: use one of them"));
      }
      if (reader != nullptr) {
        fail(name_at,
             str(reader, " codes what stays, so ", name, " comes first: ", name, "+", reader));
      }
      selector = method.name;
    }
    if (method.read != nullptr) {
      if (reader != nullptr)
        fail(name_at, str(reader, " and ", name, " both decide how numbers are coded: use one"));
      reader = method.name;
    }
    if (method.rank != nullptr) ranker = method.name;
    if (ranker != nullptr && spec.calls.size() > 1)
      fail(name_at,
           str(ranker, " codes every token of a whole layer: nothing goes before or after it"));
    spec.text += str(spec.text.empty() ? "" : "+", canonical(spec.calls.back()));
  } while (accept('+'));
  if (at_ != text_.size()) expected("'(', '+' or the end");
  return spec;
}

}  // namespace

Spec parse_spec(std::string_view text) { return Parser(text).parse(); }

std::unique_ptr<Selector> Spec::make_selector() const {
  Scorers alone;
  return make_selector(alone);
}

std::unique_ptr<Selector> Spec::make_selector(Scorers& shared) const {
  for (const MethodCall& call : calls) {
    if (call.method->select != nullptr) return call.method->select(call.options, shared);
  }
  return nullptr;
}

int64_t Spec::kept(const PromptShape& shape) const {
  for (const MethodCall& call : calls) {
    if (call.method->select != nullptr && removed().num > 0)
      return call.method->kept(call.options, shape);
  }
  return shape.entries();
}

Needs Spec::needs() const {
  Needs all;
  if (const auto selector = make_selector()) all.also(selector->needs());
  if (const auto plan = ranking()) all.also({.window_queries = plan->window_queries()});
  return all;
}

std::unique_ptr<Evictor> Spec::make_evictor() const {
  if (calls.size() != 1 || calls[0].method->evict == nullptr) {
    std::string names;
    for (const Method* method : methods())
      if (method->evict != nullptr) names += str(names.empty() ? "" : ", ", method->name);
    throw Error(ErrorKind::invalid_argument,
                str(text, " does not bound a cache that grows; expected one of: ", names));
  }
  for (const char* name : {"ratio", "keep"}) {
    if (calls[0].options.given(name))
      throw Error(ErrorKind::invalid_argument,
                  str(text, ": a cache that grows is bounded by entries; leave out ", name));
  }
  return calls[0].method->evict(calls[0].options);
}

std::optional<Reading> Spec::reading() const {
  for (const MethodCall& call : calls) {
    if (call.method->read != nullptr) return call.method->read(call.options);
  }
  return std::nullopt;
}

std::optional<RankPlan> Spec::ranking() const {
  for (const MethodCall& call : calls) {
    if (call.method->rank != nullptr) return call.method->rank(call.options);
  }
  return std::nullopt;
}

Ratio Spec::removed() const {
  for (const MethodCall& call : calls) {
    if (call.method->select != nullptr) return call.options.removed();
  }
  return {0, 1};
}

namespace {

// "name(option,...)" with `option` before those it has.
std::string with_option(const MethodCall& call, const std::string& option) {
  const std::string one = canonical(call);
  const std::string_view name = call.method->name;
  const std::string rest = one.size() > name.size() ? "," + one.substr(name.size() + 1) : ")";
  return str(name, "(", option, rest);
}

}  // namespace

std::string Spec::text_at(Ratio removed) const {
  if (none()) return text;
  std::string out;
  for (const MethodCall& call : calls) {
    const bool open = call.method->select != nullptr && !call.options.given("ratio") &&
                      !call.options.given("keep");
    out += str(out.empty() ? "" : "+",
               open ? with_option(call, str("ratio=", removed.text())) : canonical(call));
  }
  return out;
}

std::optional<std::string> Spec::text_at_budget(Ratio removed) const {
  if (!none() && calls.front().method->rank != nullptr) {
    const MethodCall& call = calls.front();
    if (call.options.given("keep")) return std::nullopt;
    return with_option(call, str("keep=", removed.complement().text()));
  }
  std::string out = text_at(removed);
  if (out == text) return std::nullopt;
  return out;
}

std::string nearest(std::string_view word, const std::vector<std::string>& words) {
  constexpr size_t kLongestWord = 64;
  if (word.size() > kLongestWord) return "";
  std::string best;
  int fewest = static_cast<int>(std::max<size_t>(1, word.size() / 3)) + 1;
  for (const std::string& candidate : words) {
    const bool begins = word.size() >= 3 && candidate.starts_with(word);
    const int distance = begins ? 1 : edits(word, candidate);
    if (distance < fewest) {
      fewest = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace kvist
