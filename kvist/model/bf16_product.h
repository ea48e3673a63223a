// SPDX-License-Identifier: MIT
// Products of bf16 matrices on AMX tiles, by way of oneDNN: ggml multiplies bf16 without tiles, at
// a tenth of the speed.
#pragma once

#include <cstdint>
#include <memory>

#include "kvist/core/buffer.h"
#include "kvist/core/thread_pool.h"

namespace kvist {

// Whether kvist was built with oneDNN and this CPU multiplies bf16 on tiles.
bool bf16_product_available();

// Weights [rows][columns] in the layout the products like best.
struct PackedBf16 {
  Buffer<uint8_t> data;
  bool sliceable = false;  // 64 rows are contiguous, so that workers can share the rows
};
PackedBf16 pack_bf16(const uint16_t* weights, int64_t columns, int64_t rows);

// y[n][rows] = x[n][columns] . weights[rows][columns], f32 sums, for one shape and a fixed number
// of workers.
class Bf16Product {
 public:
  // packed: null for weights that will be plain rows.
  Bf16Product(int64_t columns, int64_t rows, int64_t n, int n_workers, const PackedBf16* packed);
  ~Bf16Product();

  // One worker's share; workers 0 to n_workers - 1 do it all, at the same time or not. weights:
  // plain rows, or null where the product was made for packed ones. False where oneDNN failed; y is
  // then undefined.
  bool run(int worker, const uint16_t* x, const uint16_t* weights, float* y) noexcept;

 private:
  struct Unit;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvist
