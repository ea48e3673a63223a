// SPDX-License-Identifier: MIT
// kvist inspect for methods that read: the depths of one query, layer by layer, and their
// certificate.
#pragma once

#include <string>
#include <vector>

#include "kvist/cli/command.h"
#include "kvist/cli/inputs.h"

namespace kvist {

struct ReadInspection {
  std::string question;  // "": the last token of the document is the query
  bool certificate = false;
  std::vector<std::string> pictures;
};

// The prompt, with the question if there is one, runs through the model uncompressed; its last
// token is the query. Then every layer is coded alone and read by that query: errors of layers do
// not add up. Returns kBoundNotMet where a certificate's bound is below the true error.
int inspect_reading(const ReadInspection& options, Loaded& loaded, const Context& context);

}  // namespace kvist
