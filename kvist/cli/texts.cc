// SPDX-License-Identifier: MIT
// Looking into folders.
#include "kvist/cli/texts.h"

#include <algorithm>
#include <filesystem>

#include "kvist/cli/document.h"
#include "kvist/core/error.h"

namespace kvist {

namespace fs = std::filesystem;

std::vector<std::string> text_files(const std::vector<std::string>& texts) {
  std::vector<std::string> files;
  for (const std::string& text : texts) {
    if (!fs::is_directory(text)) {
      files.push_back(text);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : fs::recursive_directory_iterator(text)) {
      const std::string end = entry.path().extension().string();
      if (entry.is_regular_file() && (end == ".txt" || end == ".md"))
        inside.push_back(entry.path().string());
    }
    if (inside.empty())
      throw Error(ErrorKind::not_found, str(text, ": no .txt or .md file in this folder"));
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

std::vector<std::vector<int32_t>> tokenized(const std::vector<std::string>& texts,
                                            const Tokenizer& tokenizer) {
  std::vector<std::vector<int32_t>> documents;
  for (const std::string& file : text_files(texts))
    documents.push_back(tokenizer.encode(read_document(file), false));
  return documents;
}

}  // namespace kvist
