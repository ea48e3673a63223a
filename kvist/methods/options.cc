// SPDX-License-Identifier: MIT
// Checking and reading the options of one method.
#include <charconv>
#include <optional>

#include "kvist/core/error.h"
#include "kvist/methods/method.h"
#include "kvist/methods/option_value.h"
#include "kvist/methods/spec.h"

namespace kvist {
namespace {

template <typename Int>
std::optional<Int> parse_integer(std::string_view text) {
  Int value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The entries of "a|b|x:N" one by one.
template <typename Fn>
void for_each_choice(std::string_view choices, const Fn& fn) {
  while (!choices.empty()) {
    const size_t bar = std::min(choices.find('|'), choices.size());
    fn(choices.substr(0, bar));
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
}

std::string canonical_choice(std::string_view choices, std::string_view value) {
  const size_t colon = value.find(':');
  const std::string_view head = value.substr(0, colon);
  std::string found;
  for_each_choice(choices, [&](std::string_view entry) {
    const bool numbered = entry.ends_with(":N");
    const std::string_view name = numbered ? entry.substr(0, entry.size() - 2) : entry;
    if (name != head || numbered != (colon != std::string_view::npos)) return;
    if (!numbered) {
      found = std::string(name);
    } else if (const auto number = parse_integer<uint64_t>(value.substr(colon + 1))) {
      found = str(name, ":", *number);
    }
  });
  return found;
}

// `ratio` removes less than everything, `keep` leaves something, any other ratio lies in [0, 1].
bool in_range(std::string_view option, Ratio value) {
  if (option == "ratio") return value.num < value.den;
  if (option == "keep") return value.num > 0 && value.num <= value.den;
  return value.num <= value.den;
}

std::string canonical_ratio(std::string_view option, std::string_view value) {
  try {
    const Ratio ratio = Ratio::parse(value);
    return in_range(option, ratio) ? ratio.text() : "";
  } catch (const Error&) {
    return "";
  }
}

// A number between the bounds, or one of the words that may stand for it.
std::string canonical_number(const OptionSpec& spec, std::string_view value) {
  if (const std::string word = canonical_choice(spec.choices, value); !word.empty()) return word;
  try {
    const Ratio number = Ratio::parse(value);
    const int64_t whole = number.num / number.den;
    const bool fits = whole >= spec.least && (whole < spec.most || number == Ratio{spec.most, 1});
    return fits ? number.text() : "";
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

std::string expected_value(const OptionSpec& spec) {
  switch (spec.kind) {
    case OptionSpec::Kind::integer:
      if (spec.most == INT64_MAX) return str("an integer of at least ", spec.least);
      return str("an integer from ", spec.least, " to ", spec.most);
    case OptionSpec::Kind::ratio: {
      const std::string_view name = spec.name;
      return str("a decimal, a fraction or a percentage ",
                 name == "ratio"  ? "from 0 to below 1 (the share removed)"
                 : name == "keep" ? "above 0 and at most 1 (the share kept)"
                                  : "from 0 to 1");
    }
    case OptionSpec::Kind::number:
      return str("a decimal or a fraction of at least ", spec.least,
                 spec.most == INT64_MAX ? "" : str(" and at most ", spec.most),
                 *spec.choices == '\0' ? "" : str(", or ", spec.choices));
    case OptionSpec::Kind::boolean:
      return "true or false";
    case OptionSpec::Kind::choice:
      return str("one of ", spec.choices);
    case OptionSpec::Kind::scorer:
      return str("a method that scores: ", scorer_names(", "));
  }
  return "";
}

std::string scorer_names(std::string_view separator) {
  std::string names;
  for (const Method* method : methods()) {
    if (method->score != nullptr) names += str(names.empty() ? "" : separator, method->name);
  }
  return names;
}

const Method* find_scorer(std::string_view name) {
  for (const Method* method : methods()) {
    if (method->score != nullptr && name == method->name) return method;
  }
  return nullptr;
}

std::string canonical_value(const OptionSpec& spec, std::string_view value) {
  switch (spec.kind) {
    case OptionSpec::Kind::integer: {
      const auto number = parse_integer<int64_t>(value);
      return number && *number >= spec.least && *number <= spec.most ? str(*number) : "";
    }
    case OptionSpec::Kind::ratio:
      return canonical_ratio(spec.name, value);
    case OptionSpec::Kind::number:
      return canonical_number(spec, value);
    case OptionSpec::Kind::boolean:
      return value == "true" || value == "false" ? std::string(value) : "";
    case OptionSpec::Kind::choice:
      return canonical_choice(spec.choices, value);
    case OptionSpec::Kind::scorer:
      return find_scorer(value) != nullptr ? std::string(value) : "";
  }
  return "";
}

Options::Options(std::span<const OptionSpec> specs,
                 std::vector<std::pair<std::string, std::string>> given, std::string_view method)
    : specs_(specs.begin(), specs.end()), given_(specs.size(), false), method_(method) {
  for (const OptionSpec& spec : specs) values_.emplace_back(spec.name, spec.fallback);
  for (const auto& [name, value] : given) {
    size_t at = 0;
    while (at < specs.size() && name != specs[at].name) ++at;
    if (at == specs.size()) {
      std::vector<std::string> names;
      for (const OptionSpec& spec : specs) names.emplace_back(spec.name);
      const std::string near = nearest(name, names);
      throw Error(ErrorKind::invalid_argument,
                  str(method, " has no option ", quoted(name),
                      near.empty() ? str("; 'kvist methods ", method, "' lists them")
                                   : str("; did you mean '", near, "'?")));
    }
    if (given_[at]) {
      throw Error(ErrorKind::invalid_argument, str(method, ": ", name, " is given twice"));
    }
    values_[at].second = canonical_value(specs[at], value);
    if (values_[at].second.empty()) {
      throw Error(ErrorKind::invalid_argument, str(method, ": ", name, "=", quoted(value),
                                                   ": expected ", expected_value(specs[at])));
    }
    given_[at] = true;
  }
  for (size_t at = 0; at < specs.size(); ++at) {
    if (values_[at].second.empty()) {
      throw Error(
          ErrorKind::invalid_argument,
          str(method, ": ", specs[at].name, " is missing: expected ", expected_value(specs[at])));
    }
  }
  if (this->given("ratio") && this->given("keep")) {
    throw Error(ErrorKind::invalid_argument,
                str(method, ": ratio=", text("ratio"), " and keep=", text("keep"),
                    " are both given; keep is 1 - ratio, give one of them"));
  }
}

std::string Options::text(std::string_view name) const {
  for (const auto& [option, value] : values_) {
    if (option == name) return value;
  }
  KVIST_ASSERT(!"an option that its method declares");
  return "";
}

bool Options::given(std::string_view name) const {
  for (size_t at = 0; at < values_.size(); ++at) {
    if (values_[at].first == name) return given_[at];
  }
  return false;
}

int64_t Options::integer(std::string_view name) const {
  return parse_integer<int64_t>(text(name)).value();
}

bool Options::boolean(std::string_view name) const { return text(name) == "true"; }

Ratio Options::ratio(std::string_view name) const { return Ratio::parse(text(name)); }

Options::Choice Options::choice(std::string_view name) const {
  const std::string value = text(name);
  const size_t colon = value.find(':');
  if (colon == std::string::npos) return {value, 0};
  return {value.substr(0, colon),
          parse_integer<uint64_t>(std::string_view(value).substr(colon + 1)).value()};
}

Ratio Options::removed() const {
  return given("keep") ? ratio("keep").complement() : ratio("ratio");
}

Options Options::passed_to(const Method& inner) const {
  std::vector<std::pair<std::string, std::string>> passed;
  for (const OptionSpec& spec : inner.options) {
    if (given(spec.name)) passed.emplace_back(spec.name, text(spec.name));
  }
  return Options(inner.options, std::move(passed), inner.name);
}

}  // namespace kvist
