// SPDX-License-Identifier: MIT
// What prefixes do alike: the ledger over all layers, and the workspace of plain runs.
#include "kvist/cache/prefix.h"

#include "kvist/cache/suffix.h"

namespace kvist {

Bytes PrefixCache::bytes() const {
  Bytes all;
  for (int layer = 0; layer < n_layers(); ++layer) all += bytes(layer);
  return all;
}

void PrefixCache::reserve(AttendWorkspace& workspace, int n_rows, int n_tokens,
                          int n_workers) const {
  workspace.reserve(shape(), n_rows, longest_head() + n_tokens, n_workers);
}

std::vector<SuffixLayer> PrefixCache::new_suffix() const {
  std::vector<SuffixLayer> layers;
  for (int layer = 0; layer < n_layers(); ++layer) layers.emplace_back(DenseLayer(shape()));
  return layers;
}

}  // namespace kvist
