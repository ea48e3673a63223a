// SPDX-License-Identifier: MIT
// Sums over layers: counted by the reader where a layer is coded, computed where it is read whole.
#include "kvist/runtime/read_share.h"

#include "kvist/cache/coded_prefix.h"
#include "kvist/cache/ranked_prefix.h"

namespace kvist {
namespace {

bool is_coded(const PrefixCache& prefix, int layer) {
  if (const auto* coded = dynamic_cast<const CodedPrefix*>(&prefix)) return coded->is_coded(layer);
  return dynamic_cast<const RankedPrefix*>(&prefix) != nullptr;
}

}  // namespace

ReadShare read_share(Session& session, std::span<const int> suffix) {
  const PrefixCache& prefix = session.prefix();
  KvShape f16 = prefix.shape();
  f16.type = Scalar::f16;
  const auto rows = static_cast<double>(suffix.size());
  double behind = 0;  // bytes of suffixes in one layer, as they are stored plainly, over all rows
  double behind_f16 = 0;
  for (int n : suffix) {
    behind += static_cast<double>(prefix.shape().token_bytes()) * n;
    behind_f16 += static_cast<double>(f16.token_bytes()) * n;
  }
  const double whole = static_cast<double>(prefix.n_layers()) *
                       (behind_f16 + rows * static_cast<double>(f16.token_bytes()) *
                                         static_cast<double>(session.n_prompt()));
  if (whole == 0) return {};
  double logical = 0, touched = 0;
  int n_coded = 0;
  for (int layer = 0; layer < prefix.n_layers(); ++layer) {
    if (is_coded(prefix, layer)) {
      ++n_coded;
      continue;
    }
    const double read = rows * static_cast<double>(prefix.bytes(layer).payload) + behind;
    logical += read;
    touched += read;
  }
  const ReadCounts& reads = session.read_trace();
  logical += static_cast<double>(reads.key_bits + reads.value_bits) / 8 +
             static_cast<double>(reads.dense_bytes);
  touched += static_cast<double>(64 * reads.lines + reads.dense_bytes);
  if (const RankedCounts& ranked = reads.ranked; ranked.passes > 0) {
    // A pass serves up to 16 rows; counted here as if each row had read alone.
    const double each = static_cast<double>(ranked.rows) / static_cast<double>(ranked.passes);
    logical +=
        each * static_cast<double>(ranked.exact_bytes + ranked.coded_bytes) + n_coded * behind;
    touched += each * static_cast<double>(ranked.bytes()) + n_coded * behind;
  }
  return {logical / whole, touched / whole};
}

}  // namespace kvist
