// SPDX-License-Identifier: MIT
// Lines in and out, and the file they are appended to.
#include "kvist/eval/prediction.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kvist/core/error.h"

namespace kvist {
namespace {

using Json = nlohmann::ordered_json;

std::string cause() { return std::strerror(errno); }

template <typename T>
T list_of(Fields& fields, const char* key, const char* expected) {
  try {
    return fields.at(key).get<T>();
  } catch (const Json::exception&) {
    fields.fail(key, expected);
  }
}

// 0 where the key is absent.
uint64_t bytes_or_none(Fields& fields, const char* key) {
  return fields.find(key) == nullptr ? 0 : list_of<uint64_t>(fields, key, "a number of bytes");
}

// Ends the file after its last line break; whether something was cut off.
bool cut_unfinished_line(int file, const std::string& path) {
  const off_t size = ::lseek(file, 0, SEEK_END);
  off_t end = size;
  for (char c = 0; end > 0; --end) {
    if (::pread(file, &c, 1, end - 1) != 1)
      throw Error(ErrorKind::io, str(path, ": cannot be read: ", cause()));
    if (c == '\n') break;
  }
  if (end == size) return false;
  if (::ftruncate(file, end) != 0)
    throw Error(ErrorKind::io, str(path, ": cannot be cut: ", cause()));
  return true;
}

std::map<std::string, size_t> by_key(const std::vector<Prediction>& all, const std::string& path) {
  std::map<std::string, size_t> at;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto [before, fresh] = at.emplace(all[i].key(), i);
    if (!fresh) {
      throw Error(ErrorKind::corrupt, str(path, ": prediction ", i + 1, ", ", all[i].name(),
                                          ", has the key of prediction ", before->second + 1));
    }
  }
  return at;
}

}  // namespace

std::string Prediction::key() const {
  return Json::array({model, suite, task, id, length ? Json(*length) : Json(nullptr), method, mode,
                      boundary, seed})
      .dump();
}

std::string Prediction::name() const {
  return str(suite, "/", task, "/", length ? str(*length) : "-", "/", id, " by ", method);
}

Json to_json(const Prediction& p) {
  return {{"model", p.model},
          {"suite", p.suite},
          {"task", p.task},
          {"id", p.id},
          {"length", p.length ? Json(*p.length) : Json(nullptr)},
          {"method", p.method},
          {"mode", p.mode},
          {"boundary", p.boundary},
          {"seed", p.seed},
          {"text", p.text},
          {"token_ids", p.token_ids},
          {"stop", p.stop},
          {"n_prompt", p.n_prompt},
          {"n_context", p.n_context},
          {"n_kept", p.n_kept},
          {"kept", p.kept},
          {"stored_bytes", p.stored_bytes},
          {"allocated_bytes", p.allocated_bytes},
          {"reference_bytes", p.reference_bytes},
          {"read_share", p.read_share},
          {"touched_share", p.touched_share},
          {"construct_bytes", p.construct_bytes},
          {"answering_bytes", p.answering_bytes},
          {"peak_rss_bytes", p.peak_rss_bytes},
          {"context_hash", p.context_hash},
          {"question_hash", p.question_hash},
          {"answer_fingerprint", p.answer_fingerprint},
          {"prefill_ms", p.prefill_ms},
          {"construct_ms", p.construct_ms},
          {"first_ms", p.first_ms},
          {"decode_ms", p.decode_ms}};
}

Prediction prediction_of(const Json& object, const std::string& place) {
  Fields fields(object, place);
  Prediction p;
  p.model = fields.text("model");
  p.suite = fields.text("suite");
  p.task = fields.text("task");
  p.id = fields.text("id");
  if (const auto length = fields.integer_or_null("length", 1)) p.length = static_cast<int>(*length);
  p.method = fields.text("method");
  p.mode = fields.text("mode");
  p.boundary = fields.text("boundary");
  p.seed = list_of<uint64_t>(fields, "seed", "a whole number");
  p.text = fields.text("text");
  p.token_ids = list_of<std::vector<int32_t>>(fields, "token_ids", "a list of numbers");
  p.stop = fields.text("stop");
  p.n_prompt = static_cast<int>(fields.integer("n_prompt", 0));
  p.n_context = static_cast<int>(fields.integer("n_context", 0));
  p.n_kept = fields.number("n_kept");
  p.kept = list_of<std::vector<std::vector<int>>>(fields, "kept", "a list of lists of numbers");
  p.stored_bytes = list_of<uint64_t>(fields, "stored_bytes", "a number of bytes");
  p.allocated_bytes = list_of<uint64_t>(fields, "allocated_bytes", "a number of bytes");
  p.reference_bytes = list_of<uint64_t>(fields, "reference_bytes", "a number of bytes");
  p.read_share = fields.number("read_share");
  if (fields.find("touched_share") != nullptr) p.touched_share = fields.number("touched_share");
  p.construct_bytes = bytes_or_none(fields, "construct_bytes");
  p.answering_bytes = bytes_or_none(fields, "answering_bytes");
  p.peak_rss_bytes = bytes_or_none(fields, "peak_rss_bytes");
  p.context_hash = fields.text("context_hash");
  p.question_hash = fields.text("question_hash");
  p.answer_fingerprint = fields.text("answer_fingerprint");
  p.prefill_ms = fields.number("prefill_ms");
  p.construct_ms = fields.number("construct_ms");
  p.first_ms = fields.number("first_ms");
  p.decode_ms = fields.number("decode_ms");
  fields.done();
  return p;
}

std::vector<Prediction> read_predictions(const std::string& path) {
  std::vector<Prediction> all;
  for (const JsonLine& line : read_json_lines(path))
    all.push_back(prediction_of(line.value, str(path, ":", line.line)));
  by_key(all, path);
  return all;
}

PredictionLog::PredictionLog(const std::string& path) : path_(path) {
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) throw Error(ErrorKind::io, str(path, ": cannot be opened: ", cause()));
  try {
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0)
      throw Error(ErrorKind::io, str(path, ": another run is writing there"));
    cut_ = cut_unfinished_line(file_, path);
    all_ = read_predictions(path);
    at_ = by_key(all_, path);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

PredictionLog::~PredictionLog() { ::close(file_); }

void PredictionLog::append(Prediction prediction) {
  const std::string line =
      to_json(prediction).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  const off_t before = ::lseek(file_, 0, SEEK_END);
  for (size_t at = 0; at < line.size();) {
    const ssize_t n = ::write(file_, line.data() + at, line.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const std::string why = cause();
      const bool whole = ::ftruncate(file_, before) == 0;
      throw Error(ErrorKind::io, str(path_, ": cannot be written: ", why, "; ", all_.size(),
                                     whole ? " finished predictions are kept"
                                           : " predictions are whole, a part of one follows"));
    }
    at += static_cast<size_t>(n);
  }
  at_.emplace(prediction.key(), all_.size());
  all_.push_back(std::move(prediction));
}

const Prediction* PredictionLog::finished(const Prediction& p) const {
  const auto found = at_.find(p.key());
  if (found == at_.end()) return nullptr;
  const Prediction& there = all_[found->second];
  const char* other = there.context_hash != p.context_hash               ? "context"
                      : there.question_hash != p.question_hash           ? "question"
                      : there.answer_fingerprint != p.answer_fingerprint ? "answers"
                                                                         : nullptr;
  if (other != nullptr) {
    throw Error(
        ErrorKind::invalid_argument,
        str(path_, ": prediction ", found->second + 1, ", ", p.name(), ", was made with another ",
            other, "; give another folder with -o, or remove this one"));
  }
  return &there;
}

}  // namespace kvist
