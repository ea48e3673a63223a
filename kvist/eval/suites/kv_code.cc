// SPDX-License-Identifier: MIT
// The next line of a source file, after as much of it as fits: what LongBench's lcc asks.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "kvist/core/error.h"
#include "kvist/core/sha256.h"
#include "kvist/eval/similarity.h"
#include "kvist/eval/suite.h"
#include "kvist/eval/unicode.h"

namespace kvist {
namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 1, kAnswerTokens = 64;
constexpr size_t kShortest = 10, kLongest = 120;  // characters of a line that is asked for
constexpr const char* kInstruction = "Please complete the code given below. \n";
constexpr const char* kQuestion = "Next line of code:\n";

struct SourceFile {
  std::string name;
  std::vector<std::string> lines;  // without line breaks
};

SourceFile read_source(const fs::path& path) {
  SourceFile file{path.filename().string(), {}};
  std::ifstream in(path, std::ios::binary);
  for (std::string line; std::getline(in, line);) file.lines.push_back(line);
  return file;
}

std::vector<SourceFile> source_files(const std::string& data) {
  const fs::path folder = fs::path(data) / "code";
  std::vector<SourceFile> files;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder, failure))
    if (entry.is_regular_file()) files.push_back(read_source(entry.path()));
  if (files.empty()) {
    throw Error(ErrorKind::not_found, str(folder.string(),
                                          ": no source files; `tools/texts.py code` fetches some "
                                          "(Debian), or put files of your own there (--data DIR)"));
  }
  return files;
}

// In an order of the seed's own, the same for every number of rows.
void shuffle(std::vector<SourceFile>* files, const SuiteInput& input, int length) {
  const auto key = [&](const SourceFile& file) {
    return sha256_hex(std::string_view(str(input.seed, "/", length, "/", file.name)));
  };
  std::sort(files->begin(), files->end(),
            [&](const SourceFile& a, const SourceFile& b) { return key(a) < key(b); });
}

// No comment, also none at the end: the metric would not see such a line in an answer.
bool may_be_asked(const std::string& line) {
  const std::string_view text = stripped(line);
  return line.size() >= kShortest && line.size() <= kLongest && !text.empty() &&
         !text.starts_with("/*") && !text.starts_with("*") && code_line(line) == line;
}

std::string first_lines(const SourceFile& file, int n) {
  std::string text = kInstruction;
  for (int i = 0; i < n; ++i) text += file.lines[static_cast<size_t>(i)] + "\n";
  return text;
}

// As many lines as fit, and the next that may be asked for. Nothing where the file is too short to
// fill the prompt.
std::optional<EvalRow> sample(const SuiteInput& input, int length, const SourceFile& file) {
  const auto fits = [&](int n) {
    return input.count_tokens(first_lines(file, n) + kQuestion) + kAnswerTokens <= length;
  };
  const int all = static_cast<int>(file.lines.size());
  int n = largest_fit(0, all, fits, "kv-code", length);
  if (n == all) return std::nullopt;
  while (n > 0 && !may_be_asked(file.lines[static_cast<size_t>(n)])) --n;
  if (n == 0) return std::nullopt;
  EvalRow row;
  row.suite = row.task = "kv-code";
  row.length = length;
  row.context = first_lines(file, n);
  row.question = kQuestion;
  row.answers = {std::string(file.lines[static_cast<size_t>(n)])};
  row.max_new_tokens = kAnswerTokens;
  row.meta = {{"metric", "code_sim"}, {"file", file.name}, {"lines", n}};
  return row;
}

std::vector<EvalRow> rows(const SuiteInput& input) {
  std::vector<EvalRow> out;
  std::vector<SourceFile> files = source_files(input.data);
  for (int length : input.lengths) {
    shuffle(&files, input, length);
    int made = 0;
    for (size_t i = 0; i < files.size() && made < input.limit; ++i) {
      if (auto row = sample(input, length, files[i])) {
        row->id = sample_id(kVersion, input, made++);
        out.push_back(std::move(*row));
      }
    }
    if (made == 0) {
      throw Error(ErrorKind::invalid_argument, str("kv-code at ", length, " tokens: every file of ",
                                                   input.data, "/code is shorter"));
    }
  }
  return out;
}

}  // namespace

extern constinit const Suite kv_code_suite{"kv-code", "the next line of a source file", "code",
                                           rows};

}  // namespace kvist
