// SPDX-License-Identifier: MIT
// What every prefix does alike: the ledger over all layers.
#include "kvist/cache/prefix.h"

namespace kvist {

Bytes PrefixCache::bytes() const {
  Bytes all;
  for (int layer = 0; layer < n_layers(); ++layer) all += bytes(layer);
  return all;
}

}  // namespace kvist
