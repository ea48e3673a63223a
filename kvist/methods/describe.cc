// SPDX-License-Identifier: MIT
// Rendering of the method table.
#include "kvist/methods/describe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kvist/core/error.h"
#include "kvist/methods/option_value.h"

namespace kvist {
namespace {

const char* kind_name(OptionSpec::Kind kind) {
  switch (kind) {
    case OptionSpec::Kind::integer:
      return "integer";
    case OptionSpec::Kind::ratio:
      return "ratio";
    case OptionSpec::Kind::number:
      return "number";
    case OptionSpec::Kind::boolean:
      return "boolean";
    case OptionSpec::Kind::choice:
      return "choice";
    case OptionSpec::Kind::scorer:
      return "scorer";
  }
  return "";
}

// "4 tokens", "twin".
std::string default_text(const OptionSpec& option) {
  const std::string value = *option.fallback == '\0' ? "required" : option.fallback;
  const bool is_number = value[0] >= '0' && value[0] <= '9';
  return *option.unit == '\0' || !is_number ? value : str(value, " ", option.unit);
}

// What may be written, for a table: "0, 1, 2 ...", "a, b, x:N".
std::string values_text(const OptionSpec& option) {
  switch (option.kind) {
    case OptionSpec::Kind::integer:
      return option.most == INT64_MAX ? str("at least ", option.least)
                                      : str(option.least, " to ", option.most);
    case OptionSpec::Kind::ratio:
      return "0.7, 7/10, 70%";
    case OptionSpec::Kind::number:
      return str(*option.choices == '\0' ? "" : str(option.choices, ", "),
                 option.most == INT64_MAX ? str("at least ", option.least)
                                          : str(option.least, " to ", option.most),
                 ", as 1.5 or 3/2");
    case OptionSpec::Kind::boolean:
      return "true, false";
    case OptionSpec::Kind::choice: {
      std::string out;
      for (const char* c = option.choices; *c != '\0'; ++c)
        out += *c == '|' ? ", " : std::string(1, *c);
      return out;
    }
    case OptionSpec::Kind::scorer:
      return scorer_names(", ");
  }
  return "";
}

nlohmann::ordered_json json_of(const Method& method) {
  nlohmann::ordered_json options = nlohmann::ordered_json::array();
  for (const OptionSpec& option : method.options) {
    options.push_back({{"name", option.name},
                       {"kind", kind_name(option.kind)},
                       {"default", option.fallback},
                       {"unit", option.unit},
                       {"values", values_text(option)},
                       {"help", option.help}});
  }
  return {{"name", method.name},
          {"paper", method.paper},
          {"summary", method.summary},
          {"decides", method.decides},
          {"bounds_growth", method.evict != nullptr},
          {"options", options}};
}

const char* growth_text(const Method& method) {
  return method.evict == nullptr ? "" : "; bounds a cache that grows too (run --max-cache)";
}

}  // namespace

std::string methods_text() {
  size_t name_width = 0, paper_width = 0;
  for (const Method* method : methods()) {
    name_width = std::max(name_width, std::string_view(method->name).size());
    paper_width = std::max(paper_width, std::string_view(method->paper).size());
  }
  std::string out;
  for (const Method* method : methods()) {
    out += fmt::format("{:<{}}  {:<10}  {:<{}}  {}\n", method->name, name_width, method->decides,
                       method->paper, paper_width, method->summary);
  }
  return out +
         "\n'none' is the uncompressed cache; 'kvist methods NAME' shows a method's options.\n";
}

std::string method_text(const Method& method) {
  size_t name_width = 0, default_width = 0, values_width = 0;
  for (const OptionSpec& option : method.options) {
    name_width = std::max(name_width, std::string_view(option.name).size());
    default_width = std::max(default_width, default_text(option).size());
    values_width = std::max(values_width, values_text(option).size());
  }
  std::string out = str(method.name, ": ", method.summary, "\n");
  out += str("decides ", method.decides);
  out += growth_text(method);
  if (*method.paper != '\0') out += str("; ", method.paper);
  out += fmt::format("\n\n  {:<{}}  {:<{}}  {:<{}}  {}\n", "option", name_width, "default",
                     default_width, "values", values_width, "meaning");
  for (const OptionSpec& option : method.options) {
    out +=
        fmt::format("  {:<{}}  {:<{}}  {:<{}}  {}\n", option.name, name_width, default_text(option),
                    default_width, values_text(option), values_width, option.help);
  }
  return out;
}

std::string method_markdown(const Method& method) {
  std::string out = str("## ", method.name, "\n\n", method.summary,
                        ".\n\nDecides: ", method.decides, growth_text(method), ".");
  if (*method.paper != '\0') out += str(" Source: ", method.paper, ".");
  out += "\n\n| option | default | values | meaning |\n| --- | --- | --- | --- |\n";
  for (const OptionSpec& option : method.options) {
    out += str("| `", option.name, "` | ", default_text(option), " | ", values_text(option), " | ",
               option.help, " |\n");
  }
  return out;
}

std::string methods_markdown() {
  std::string out =
      "# Methods\n\n"
      "Printed by `kvist methods --markdown` from the table of methods; a test compares.\n\n"
      "A method spec is a name, with options where they differ from the defaults: "
      "`twinkv(ratio=0.75)`. "
      "`none` is the\nuncompressed cache. A ratio is a decimal, a fraction or a percentage, read "
      "exactly. "
      "`N` in a value stands for a number: `permuted:11`.\n";
  for (const Method* method : methods()) out += str("\n", method_markdown(*method));
  return out;
}

std::string methods_json() {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Method* method : methods()) all.push_back(json_of(*method));
  return nlohmann::ordered_json{{"methods", all}}.dump(2) + "\n";
}

std::string method_json(const Method& method) { return json_of(method).dump(2) + "\n"; }

}  // namespace kvist
