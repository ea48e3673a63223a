// SPDX-License-Identifier: MIT
// Products of bf16 matrices on AMX tiles, by way of oneDNN: ggml multiplies bf16 without tiles, at
// a tenth of the speed.
#include "kvist/model/bf16_product.h"

#include "kvist/core/amx_state.h"
#include "kvist/core/error.h"

#ifdef KVIST_DNNL

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

namespace kvist {
namespace {

using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

constexpr int64_t kSlice = 64;  // rows of weights that one block of oneDNN's layout holds
constexpr int64_t kFewRows =
    32;  // below this many rows of x, workers share the weights; else the rows
constexpr int64_t kWeightUnits = 8;  // units of a product of few rows
constexpr int64_t kRowBlock = 64;    // rows of x in a unit of a product of many

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// Workers call products from inside a team of threads, one product each: oneDNN must not count on a
// team of its own.
class OneOpenMpThread {
 public:
  OneOpenMpThread() {
    if (get_ == nullptr || set_ == nullptr) return;
    before_ = get_();
    set_(1);
  }
  ~OneOpenMpThread() {
    if (before_ > 0) set_(before_);
  }

 private:
  int (*get_)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set_)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  int before_ = 0;
};

struct Shape {
  int64_t columns, rows, n;
  bool packed;
};

dnnl::matmul::primitive_desc describe(const Shape& s) {
  const dnnl::memory::desc x({s.n, s.columns}, Type::bf16, Tag::ab);
  const dnnl::memory::desc w({s.columns, s.rows}, Type::bf16, s.packed ? Tag::any : Tag::ba);
  const dnnl::memory::desc y({s.n, s.rows}, Type::f32, Tag::ab);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(engine(), x, w, y, attributes);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(x, w, y), attributes, engine());
#endif
}

[[noreturn]] void fail(const dnnl::error& e, const char* what) {
  throw Error(ErrorKind::exhausted, str("oneDNN could not ", what, ": ", e.what()));
}

// Rows [first, first + n_rows) of plain weights in the layout of a product with `n` rows.
void reorder(const uint16_t* weights, int64_t columns, int64_t n_rows, uint8_t* out,
             const dnnl::memory::desc& layout) {
  const dnnl::memory::desc plain({columns, n_rows}, Type::bf16, Tag::ba);
  dnnl::memory from(plain, engine(), const_cast<uint16_t*>(weights)), to(layout, engine(), out);
  dnnl::stream stream(engine());
  dnnl::reorder(from, to).execute(stream, from, to);
  stream.wait();
}

}  // namespace

bool bf16_product_available() {
  static const bool available = [] {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto tiles = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_amx);
    return (isa & tiles) == tiles && amx_tiles_usable();
  }();
  return available;
}

PackedBf16 pack_bf16(const uint16_t* weights, int64_t columns, int64_t rows) try {
  const OneOpenMpThread alone;
  const KeepAmxState keep;
  const dnnl::memory::desc layout = describe({columns, rows, kSlice, true}).weights_desc();
  PackedBf16 out{Buffer<uint8_t>(layout.get_size()), false};
  reorder(weights, columns, rows, out.data.data(), layout);
  if (rows < 2 * kSlice) return out;
  const dnnl::memory::desc slice = describe({columns, kSlice, kSlice, true}).weights_desc();
  Buffer<uint8_t> second(slice.get_size());
  reorder(weights + kSlice * columns, columns, kSlice, second.data(), slice);
  out.sliceable = 2 * second.size() <= out.data.size() &&
                  std::memcmp(second.data(), out.data.data() + second.size(), second.size()) == 0;
  return out;
} catch (const dnnl::error& e) {
  fail(e, "pack weights");
}

// A unit of work: some rows of x with all weights, or all rows of x with some of the weights.
// oneDNN may order the sums of products of different shapes differently, so the units depend on the
// product alone and not on the number of workers.
struct Bf16Product::Unit {
  dnnl::matmul primitive;
  dnnl::memory x, w, y, scratch;
  dnnl::stream stream{engine()};
  int64_t first_x = 0, n_x = 0, first_row = 0, n_rows = 0;
  size_t weight_offset = 0;  // bytes
  std::vector<float> apart;  // [n_x][n_rows] where y's rows are wider than the unit
  Buffer<uint8_t> scratch_bytes;
};

struct Bf16Product::Impl {
  int64_t columns, rows;
  int n_workers;
  const PackedBf16* packed;
  std::vector<Unit> units;

  void add(Unit unit, bool apart) {
    const auto d = describe({columns, unit.n_rows, unit.n_x, packed != nullptr});
    const size_t slices = static_cast<size_t>((rows + kSlice - 1) / kSlice);
    unit.weight_offset = packed == nullptr ? static_cast<size_t>(unit.first_row * columns) * 2
                                           : static_cast<size_t>(unit.first_row / kSlice) *
                                                 (packed->data.size() / slices);
    unit.primitive = dnnl::matmul(d);
    unit.x = dnnl::memory(d.src_desc(), engine(), nullptr);
    unit.w = dnnl::memory(d.weights_desc(), engine(), nullptr);
    unit.y = dnnl::memory(d.dst_desc(), engine(), nullptr);
    unit.scratch_bytes = Buffer<uint8_t>(std::max<size_t>(d.scratchpad_desc().get_size(), 64));
    unit.scratch = dnnl::memory(d.scratchpad_desc(), engine(), unit.scratch_bytes.data());
    if (apart) unit.apart.resize(static_cast<size_t>(unit.n_x * unit.n_rows));
    units.push_back(std::move(unit));
  }

  void run(Unit& unit, const uint16_t* x, const uint8_t* w, float* y) {
    float* out = unit.apart.empty() ? y + unit.first_x * rows : unit.apart.data();
    unit.x.set_data_handle(const_cast<uint16_t*>(x + unit.first_x * columns));
    unit.w.set_data_handle(const_cast<uint8_t*>(w + unit.weight_offset));
    unit.y.set_data_handle(out);
    unit.primitive.execute(unit.stream, {{DNNL_ARG_SRC, unit.x},
                                         {DNNL_ARG_WEIGHTS, unit.w},
                                         {DNNL_ARG_DST, unit.y},
                                         {DNNL_ARG_SCRATCHPAD, unit.scratch}});
    unit.stream.wait();
    if (unit.apart.empty()) return;
    for (int64_t i = 0; i < unit.n_x; ++i) {
      std::memcpy(y + i * rows + unit.first_row, out + i * unit.n_rows,
                  static_cast<size_t>(unit.n_rows) * sizeof(float));
    }
  }
};

Bf16Product::Bf16Product(int64_t columns, int64_t rows, int64_t n, int n_workers,
                         const PackedBf16* packed) try
    : impl_(new Impl{columns, rows, n_workers, packed, {}}) {
  const OneOpenMpThread alone;
  const KeepAmxState keep;
  if (n < kFewRows && (packed == nullptr || packed->sliceable)) {
    const int64_t width = (rows / kWeightUnits + kSlice - 1) / kSlice * kSlice;
    for (int64_t at = 0; at < rows; at += std::max(width, kSlice)) {
      Unit unit;
      unit.n_x = n;
      unit.first_row = at;
      unit.n_rows = std::min(std::max(width, kSlice), rows - at);
      impl_->add(std::move(unit), true);
    }
    return;
  }
  for (int64_t at = 0; at < n; at += kRowBlock) {
    Unit unit;
    unit.first_x = at;
    unit.n_x = std::min(kRowBlock, n - at);
    unit.n_rows = rows;
    impl_->add(std::move(unit), false);
  }
} catch (const dnnl::error& e) {
  fail(e, "set up a product");
}

Bf16Product::~Bf16Product() = default;

bool Bf16Product::run(int worker, const uint16_t* x, const uint16_t* weights, float* y) noexcept {
  const KeepAmxState keep;
  const auto* w = impl_->packed != nullptr ? impl_->packed->data.data()
                                           : reinterpret_cast<const uint8_t*>(weights);
  const int64_t n = static_cast<int64_t>(impl_->units.size());
  const int64_t first = n * worker / impl_->n_workers, last = n * (worker + 1) / impl_->n_workers;
  try {
    for (int64_t i = first; i < last; ++i)
      impl_->run(impl_->units[static_cast<size_t>(i)], x, w, y);
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace kvist

#else

namespace kvist {

struct Bf16Product::Impl {};

bool bf16_product_available() { return false; }
PackedBf16 pack_bf16(const uint16_t*, int64_t, int64_t) {
  throw Error(ErrorKind::unsupported, "built without oneDNN");
}
Bf16Product::Bf16Product(int64_t, int64_t, int64_t, int, const PackedBf16*) {
  throw Error(ErrorKind::unsupported, "built without oneDNN");
}
Bf16Product::~Bf16Product() = default;
bool Bf16Product::run(int, const uint16_t*, const uint16_t*, float*) noexcept { return false; }

}  // namespace kvist

#endif
