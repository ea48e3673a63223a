// SPDX-License-Identifier: MIT
// The three sources, and what each is checked for.
#include "kvist/cli/array_calibration.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "kvist/core/error.h"
#include "kvist/methods/read/accumulator.h"

namespace kvist {
namespace {

namespace fs = std::filesystem;
using Layer = ReadCalibration::Layer;

ReadSource source_of(const Dump& dump, const DecodeQueries& queries) {
  ReadSource source;
  source.shape = {dump.n_model_layers(), dump.kv_heads(), queries.heads(), dump.head_dim()};
  return source;
}

std::string described(const ReadShape& s) {
  return str(s.layers, " layers, ", s.kv_heads, " KV heads, ", s.heads, " heads, head_dim ",
             s.head_dim);
}

ReadCalibration from_file(const std::string& path, const ReadShape& shape, const ReadBasis& basis) {
  ReadCalibration calibration = load_calibration(path);
  if (!(calibration.source.shape == shape)) {
    throw Error(
        ErrorKind::invalid_argument,
        str(path, ": found a calibration of ", described(calibration.source.shape),
            "; expected that of the arrays, ", described(shape),
            " (meta.json says which layers of how many they are: \"layers\", \"n_layers\")"));
  }
  if (!(calibration.basis == basis)) {
    throw Error(ErrorKind::invalid_argument,
                str(path, " was measured under ", name_of(calibration.basis),
                    ", but the method asks for ", name_of(basis)));
  }
  return calibration;
}

ReadCalibration from_prompt(Dump& dump, DecodeQueries& queries, const ReadBasis& basis,
                            ThreadPool& pool) {
  const ReadSource source = source_of(dump, queries);
  CalibrationAccumulator sums(source, basis);
  // Layers without arrays see a row of zeros: the accumulator wants all, and nothing reads them.
  const std::vector<float> zeros(static_cast<size_t>(dump.kv_heads() * dump.head_dim()));
  std::vector<bool> seen(static_cast<size_t>(dump.n_model_layers()));
  for (int layer : dump.model_layers()) seen[static_cast<size_t>(layer)] = true;
  for (int layer = 0; layer < dump.n_model_layers(); ++layer)
    if (!seen[static_cast<size_t>(layer)]) sums.add(layer, 1, zeros.data(), zeros.data(), 0, {});
  for (int i = 0; i < dump.n_layers(); ++i) {
    const Dump::Layer layer = dump.load(i, true, pool);
    const std::vector<float> q = queries.load(i);
    sums.add(layer.input.layer, dump.tokens(), layer.k.data(), layer.v.data(), queries.n(),
             q.data());
  }
  return sums.finish();
}

bool holds(Scalar format, float x) {
  return format == Scalar::f16 ? to_float(to_f16(x)) == x : to_float(to_bf16(x)) == x;
}

// An array of one row of `rows` vectors a layer.
class CalibrationArray {
 public:
  CalibrationArray(const Dump& dump, const char* name, int rows)
      : file_((fs::path(dump.folder()) / name).string(), NpyType::float32),
        size_(int64_t{rows} * dump.head_dim()),
        head_dim_(dump.head_dim()) {
    std::vector<int64_t> expected{rows, dump.head_dim()};
    if (dump.has_layer_axis()) expected.insert(expected.begin(), dump.n_layers());
    if (file_.shape() != expected) {
      refuse_array(file_.path(), str("shape ", shape_text(file_.shape())), shape_text(expected));
    }
  }

  // Refuses what is not finite, and, of scales, what is not above 0.
  std::vector<float> load(int layer, bool scales) {
    std::vector<float> out(static_cast<size_t>(size_));
    file_.read(layer * size_, std::span(out));
    for (size_t i = 0; i < out.size(); ++i) {
      if (!std::isfinite(out[i]) || (scales && out[i] <= 0))
        refuse(layer, i, out[i], scales ? "finite numbers above 0" : "finite numbers");
    }
    return out;
  }
  void require_format(int layer, const std::vector<float>& values, Scalar format) const {
    const auto stray =
        std::find_if(values.begin(), values.end(), [&](float x) { return !holds(format, x); });
    if (stray != values.end())
      refuse(layer, static_cast<size_t>(stray - values.begin()), *stray,
             "numbers that f16 holds, or bf16 throughout the layer's four arrays");
  }

 private:
  [[noreturn]] void refuse(int layer, size_t i, float found, const char* expected) const {
    const auto at = static_cast<int64_t>(i);
    refuse_array(file_.path(),
                 str(found, " at [layer, head, channel] = [", layer, ", ", at / head_dim_, ", ",
                     at % head_dim_, "]"),
                 expected);
  }

  NpyFile file_;
  int64_t size_, head_dim_;
};

ReadCalibration from_arrays(const Dump& dump, const DecodeQueries& queries,
                            const ReadBasis& basis) {
  if (basis.klt) {
    throw Error(ErrorKind::unsupported,
                str(dump.folder(),
                    ": arrays of means and scales have no bases for transform=klt; give "
                    "--calibration FILE or calibration=prompt"));
  }
  ReadCalibration out;
  out.source = source_of(dump, queries);
  out.basis = basis;
  out.tokens = dump.tokens();
  const auto width = static_cast<size_t>(dump.kv_heads() * dump.head_dim());
  Layer unused;
  unused.mu_k = unused.mu_v = std::vector<float>(width);
  unused.sigma_k = unused.sigma_v = std::vector<float>(width, 1.0f);
  out.layers.assign(static_cast<size_t>(dump.n_model_layers()), unused);
  CalibrationArray mu_k(dump, "mu_k.npy", dump.kv_heads());
  CalibrationArray sigma_k(dump, "sigma_k.npy", dump.kv_heads());
  CalibrationArray mu_v(dump, "mu_v.npy", dump.kv_heads());
  CalibrationArray sigma_v(dump, "sigma_v.npy", dump.kv_heads());
  const bool has_m2q = fs::exists(fs::path(dump.folder()) / "m2q.npy");
  if (has_m2q) {
    CalibrationArray m2q(dump, "m2q.npy", queries.heads());
    const std::vector<float> none(static_cast<size_t>(queries.heads() * dump.head_dim()));
    for (Layer& layer : out.layers) layer.m2q = none;
    for (int i = 0; i < dump.n_layers(); ++i)
      out.layers[static_cast<size_t>(dump.model_layers()[static_cast<size_t>(i)])].m2q =
          m2q.load(i, false);
  }
  for (int i = 0; i < dump.n_layers(); ++i) {
    Layer& layer = out.layers[static_cast<size_t>(dump.model_layers()[static_cast<size_t>(i)])];
    layer.mu_k = mu_k.load(i, false);
    layer.sigma_k = sigma_k.load(i, true);
    layer.mu_v = mu_v.load(i, false);
    layer.sigma_v = sigma_v.load(i, true);
    const auto all = {&layer.mu_k, &layer.sigma_k, &layer.mu_v, &layer.sigma_v};
    const bool wide = std::all_of(all.begin(), all.end(), [](const auto* values) {
      return std::all_of(values->begin(), values->end(),
                         [](float x) { return holds(Scalar::bf16, x); });
    });
    const bool narrow = std::all_of(all.begin(), all.end(), [](const auto* values) {
      return std::all_of(values->begin(), values->end(),
                         [](float x) { return holds(Scalar::f16, x); });
    });
    layer.format = wide && !narrow ? Scalar::bf16 : Scalar::f16;
    mu_k.require_format(i, layer.mu_k, layer.format);
    sigma_k.require_format(i, layer.sigma_k, layer.format);
    mu_v.require_format(i, layer.mu_v, layer.format);
    sigma_v.require_format(i, layer.sigma_v, layer.format);
  }
  return out;
}

}  // namespace

ArrayCalibration calibration_of(Dump& dump, DecodeQueries& queries, const Reading& reading,
                                const std::string& file, ThreadPool& pool) {
  if (reading.calibrate_on_prompt) {
    if (!file.empty())
      throw Error(
          ErrorKind::invalid_argument,
          str("--calibration ", file, " and calibration=prompt exclude each other: leave one out"));
    return {from_prompt(dump, queries, reading.basis, pool), "prompt"};
  }
  if (!file.empty()) return {from_file(file, source_of(dump, queries).shape, reading.basis), file};
  if (fs::exists(fs::path(dump.folder()) / "mu_k.npy"))
    return {from_arrays(dump, queries, reading.basis), "arrays"};
  throw Error(ErrorKind::not_found,
              str(dump.folder(),
                  ": no calibration: give --calibration FILE, put mu_k, sigma_k, mu_v and sigma_v "
                  "(.npy) there, or let the arrays calibrate themselves with "
                  "readkv(calibration=prompt)"));
}

}  // namespace kvist
