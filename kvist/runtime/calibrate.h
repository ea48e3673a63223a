// SPDX-License-Identifier: MIT
// Measures what ReadKV and VarRate must know about a model: runs held-out text through it and looks
// at keys, values and queries. Says where such measurements are kept.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kvist/methods/rank/basis.h"
#include "kvist/methods/rank/plan.h"
#include "kvist/methods/read/calibration.h"
#include "kvist/model/model.h"
#include "kvist/runtime/session.h"

namespace kvist {

// What a calibration of this model belongs to.
ReadSource read_source(const ModelInfo& info);

// Over windows of token ids, each prefilled alone, as the paper does (its section 4: 32 documents,
// a window of 2,048 tokens each); one calibration a basis. RoPE turns keys by their position, slow
// channels so slowly that a window shows a small part of where they get to: so each window counts
// as if it stood elsewhere in [0, span), its keys and queries turned by as much, which changes no
// attention within it, and what leaves the span comes in at 0. Windows shorter together than twice
// the span stand in several places.
// on_progress counts tokens; *stop becoming true throws Error(interrupted).
std::vector<ReadCalibration> calibrate(Session& session, const ReadSource& source,
                                       std::span<const ReadBasis> bases,
                                       std::span<const std::vector<int32_t>> windows, int span,
                                       const std::function<void(const Progress&)>& on_progress = {},
                                       const std::atomic<bool>* stop = nullptr);

// Over the uncompressed prefix of the session alone. Queries are those that prefill recorded.
ReadCalibration calibrate_on_prefix(Session& session, const ReadSource& source,
                                    const ReadBasis& basis);

// What VarRate needs instead: residuals of every window under the anchors of `plan`, and whole
// tokens; at most `n_rows` directions a layer of each of `kinds`.
std::vector<RankBasis> learn_bases(Session& session, const ReadSource& source, const RankPlan& plan,
                                   std::span<const RankPlan::Basis> kinds, int n_rows,
                                   std::span<const std::vector<int32_t>> windows,
                                   const std::function<void(const Progress&)>& on_progress = {},
                                   const std::atomic<bool>* stop = nullptr);

// Where `kvist calibrate` puts a calibration and `readkv` looks for it: a folder of the user's
// (KVIST_CALIBRATION, else $XDG_DATA_HOME/kvist, else ~/.local/share/kvist), the file named by the
// model's hash and the transforms.
std::string calibration_folder();
std::string calibration_path(const ReadSource& source, const ReadBasis& basis);
// The same of varrate's basis of a kind, whose anchors and scale of values are not part of the
// name.
std::string basis_path(const ReadSource& source, RankPlan::Basis kind);

}  // namespace kvist
