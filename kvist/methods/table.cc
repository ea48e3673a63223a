// SPDX-License-Identifier: MIT
// The list of all methods.
#include "kvist/core/error.h"
#include "kvist/methods/method.h"
#include "kvist/methods/option_value.h"
#include "kvist/methods/spec.h"

namespace kvist {

extern constinit const Method twinkv;
extern constinit const Method streamingllm;
extern constinit const Method snapkv;
extern constinit const Method pyramidkv;
extern constinit const Method adakv;
extern constinit const Method h2o;
extern constinit const Method keydiff;
extern constinit const Method expected_attention;
extern constinit const Method kvzip;
extern constinit const Method fisher;
extern constinit const Method knorm;
extern constinit const Method random_control;
extern constinit const Method readkv;
extern constinit const Method varrate;

std::span<const Method* const> methods() {
  static constexpr const Method* kMethods[] = {
      &twinkv,    &varrate, &readkv, &streamingllm,   &snapkv,
      &pyramidkv, &adakv,   &h2o,    &keydiff,        &expected_attention,
      &kvzip,     &fisher,  &knorm,  &random_control,
  };
  return kMethods;
}

const Method& find_method(std::string_view name) {
  std::vector<std::string> names;
  for (const Method* method : methods()) {
    if (name == method->name) return *method;
    names.emplace_back(method->name);
  }
  names.emplace_back("none");
  const std::string near = nearest(name, names);
  throw Error(ErrorKind::invalid_argument, str("no method is called ", quoted(name),
                                               near.empty() ? "; 'kvist methods' lists them"
                                                            : str("; did you mean '", near, "'?")));
}

}  // namespace kvist
