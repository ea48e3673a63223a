// SPDX-License-Identifier: MIT
// The contract of a compressed prefix: immutable once built, read by any number of questions, each
// with a private dense suffix.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvist/cache/bytes.h"
#include "kvist/cache/dense.h"
#include "kvist/core/buffer.h"
#include "kvist/core/digest.h"
#include "kvist/core/thread_pool.h"
#include "kvist/kernels/attend.h"

namespace kvist {

class CodedLayer;
class RankedWorkspace;
class ReadWorkspace;
class SuffixLayer;
struct ReadTrace;

// Query rows that share a suffix store: rows [row, row + n_rows) of the call, the tokens at the
// suffix indices first_token, first_token + 1, ...: row i of them sees first_token + i + 1 suffix
// tokens.
struct SuffixRows {
  const DenseLayer* store = nullptr;
  int row = 0;
  int n_rows = 0;
  int first_token = 0;
  const CodedLayer* coded = nullptr;  // instead of `store`, behind a layer that is coded
};

// One attention of one layer. Every worker makes the call with the same arguments; when all have
// returned, out is complete.
struct AttendCall {
  int layer = 0;
  const float* q = nullptr;  // [rows][heads][head_dim] f32 after RoPE
  float* out = nullptr;      // [rows][heads][head_dim]
  int n_rows = 0;
  float logit_scale = 0;
  std::span<const SuffixRows> suffixes;  // cover the rows, in order, without gaps
  kernels::Precision precision = kernels::Precision::fast;
  ReadTrace* trace = nullptr;  // filled by coded layers
};

// Scratch and partial results of one AttendCall after another; sized before the workers start, so
// that they never allocate. One workspace serves one call at a time: a barrier of the workers lies
// between two calls. The last worker to leave a call makes the workspace ready for the next, so a
// step through all layers needs no single-threaded point.
class AttendWorkspace {
 public:
  AttendWorkspace();
  ~AttendWorkspace();
  // Before the workers start on calls of up to n_rows rows over at most n_tokens tokens (prefix and
  // suffix) a head.
  void reserve(const KvShape& shape, int n_rows, int n_tokens, int n_workers);
  // Forgets a call that was cut short; not needed after one that every worker finished. Not
  // thread-safe.
  void begin();

  struct State;
  State& state() { return *state_; }
  ReadWorkspace& read() { return *read_; }        // what coded layers need instead; they reserve it
  RankedWorkspace& ranked() { return *ranked_; }  // the same of ranked layers
  uint64_t allocated_bytes() const;

 private:
  std::unique_ptr<State> state_;
  std::unique_ptr<ReadWorkspace> read_;
  std::unique_ptr<RankedWorkspace> ranked_;
};

// The tokens every question sees. Calls on different layers, or with different workspaces, may run
// at once.
class PrefixCache {
 public:
  virtual ~PrefixCache() = default;
  virtual const KvShape& shape() const = 0;
  virtual int n_layers() const = 0;
  // Where the suffix begins: the number of tokens that were prefilled, never the number kept.
  virtual int next_position() const = 0;
  // Most tokens that one head of any layer holds.
  virtual int longest_head() const = 0;
  virtual Bytes bytes(int layer) const = 0;
  // Sizes a workspace for calls of up to n_rows rows whose suffixes hold at most n_tokens tokens.
  virtual void reserve(AttendWorkspace& workspace, int n_rows, int n_tokens, int n_workers) const;
  Bytes bytes() const;
  // Workspace that a prefix in use keeps beside what it stores.
  virtual uint64_t expanded_bytes() const { return 0; }
  // What a question appends to, one a layer: in the form that attend() reads.
  virtual std::vector<SuffixLayer> new_suffix() const;
  // Attention over prefix and suffix with one softmax; cooperative, same bytes for any number of
  // workers.
  virtual void attend(const AttendCall& call, AttendWorkspace& workspace,
                      Worker worker) const noexcept = 0;
  // Adds all that is stored, so that a change shows.
  virtual void add_to(Digest& digest) const = 0;
  // Positions kept by a head, ascending.
  virtual std::vector<int32_t> kept(int layer, int head) const = 0;
  // Keys and values of a head as attention reads them, [kept][head_dim]: the oracle for every
  // reader.
  virtual void reconstruct(int layer, int head, std::vector<float>* k,
                           std::vector<float>* v) const = 0;
};

// Shared by every reader of plain runs: attention of call.q over prefix runs (one per KV head;
// n_tokens 0 where there is none; all of a run is visible to all rows) and the suffixes. Work is
// cut at fixed segments of each head (512 tokens where rows are few) and at fixed row tiles;
// partial softmaxes are merged in segment order.
void attend_runs(std::span<const kernels::KvRun> prefix, const KvShape& shape,
                 const AttendCall& call, AttendWorkspace& workspace, Worker worker) noexcept;

}  // namespace kvist
