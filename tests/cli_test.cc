// SPDX-License-Identifier: MIT
// The built program as a user meets it: exit codes, which stream says what, and messages that name
// the thing.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace {

namespace fs = std::filesystem;

struct Outcome {
  int code = -1;
  std::string out, err;
};

std::string slurp(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(KVIST_BINARY_DIR "/kvist"))
      GTEST_SKIP() << "the program is not built: " KVIST_BINARY_DIR "/kvist";
    dir_ = fs::temp_directory_path() / ("kvist_cli_test_" + std::to_string(getpid()));
    fs::create_directories(dir_);
    write("doc.txt", "A short document.\n");
    write("not_a_model.gguf", "this is no GGUF file, whatever its name says\n");
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }

  // Through a shell, in a clean environment; `arguments` may redirect standard input.
  Outcome kvist(const std::string& arguments, const std::string& environment = "") const {
    const std::string command = "env -u KVIST_MODEL " + environment +
                                " '" KVIST_BINARY_DIR "/kvist' " + arguments + " >'" + path("out") +
                                "' 2>'" + path("err") + "' </dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(path("out")), slurp(path("err"))};
  }
  std::string with_model() const { return "-m '" + path("not_a_model.gguf") + "' "; }
  std::string with_document() const { return "-f '" + path("doc.txt") + "' "; }

  // Fails with `code`, says every one of `parts` on stderr, and nothing on stdout.
  void expect_refusal(const std::string& arguments, int code,
                      std::initializer_list<std::string> parts) const {
    const Outcome got = kvist(arguments);
    EXPECT_EQ(got.code, code) << arguments << "\n" << got.err;
    EXPECT_EQ(got.out, "") << arguments;
    for (const std::string& part : parts) {
      EXPECT_NE(got.err.find(part), std::string::npos)
          << arguments << "\nwanted: " << part << "\ngot: " << got.err;
    }
  }

  fs::path dir_;
};

TEST_F(Cli, NamesTheNearestFlagAndCommand) {
  expect_refusal("run --methd none", 2,
                 {"kvist run --help", "unknown option '--methd'", "'--method'"});
  expect_refusal("rum", 2, {"unknown command 'rum'", "'run'"});
  expect_refusal("inspect --zzzzzzzz -f x", 2, {"unknown option '--zzzzzzzz'"});
  expect_refusal("run -f x stray", 2, {"stray"});
  expect_refusal("", 2, {"run", "inspect", "methods", "apply", "bench"});
}

TEST_F(Cli, ChecksValuesOfFlags) {
  expect_refusal("run -f x --threads 0", 2, {"--threads"});
  expect_refusal("run -f x --chunk 0", 2, {"--chunk"});
  expect_refusal("run -f x --cache-type f8", 2, {"--cache-type", "f16"});
  expect_refusal("run -f x -n nine", 2, {"nine"});
  expect_refusal("run -q hello", 2, {"--file"});
  expect_refusal("run " + with_model() + with_document() + "-q x --method 'twinkv(ratio=2)'", 2,
                 {"ratio"});
  expect_refusal("run " + with_model() + with_document() + "-q x --method snapkw", 2, {"snapkw"});
}

TEST_F(Cli, SaysHowToGetAModel) {
  expect_refusal("run -q x " + with_document(), 2, {"no model", "-m", "KVIST_MODEL", "make demo"});
  const Outcome got = kvist("run -q x " + with_document(), "KVIST_MODEL=/nowhere/m.gguf");
  EXPECT_EQ(got.code, 1);
  EXPECT_NE(got.err.find("/nowhere/m.gguf"), std::string::npos) << got.err;
}

TEST_F(Cli, RefusesModelsThatAreNone) {
  expect_refusal("run -q x -m /nowhere/m.gguf " + with_document(), 1, {"/nowhere/m.gguf"});
  expect_refusal("run -q x " + with_model() + with_document(), 1, {"not_a_model.gguf"});
  expect_refusal("run -q x -m '" + dir_.string() + "' " + with_document(), 2, {dir_.string()});
}

TEST_F(Cli, RefusesDocumentsThatAreNone) {
  const auto refused = [&](const std::string& file, int code,
                           std::initializer_list<std::string> parts) {
    expect_refusal("run -q x " + with_model() + "-f '" + file + "'", code, parts);
    expect_refusal("inspect " + with_model() + "-f '" + file + "'", code, parts);
  };
  refused(path("missing.txt"), 1, {"missing.txt", "no such document"});
  refused(dir_.string(), 2, {dir_.string(), "directory"});
  write("empty.txt", "");
  refused(path("empty.txt"), 2, {"empty.txt", "empty"});
  write("latin1.txt", "caf\xE9 au lait");
  refused(path("latin1.txt"), 2, {"latin1.txt", "0xe9", "offset 3", "UTF-8"});
}

TEST_F(Cli, NeedsAQuestionWhereItCannotChat) {
  expect_refusal("run " + with_model() + with_document(), 2, {"-q"});
  expect_refusal("run " + with_model() + "-f -", 2, {"standard input", "-q"});
  expect_refusal("run --json " + with_model() + with_document(), 2, {"--json", "-q"});
}

TEST_F(Cli, TellsBeforeTheWorkThatAPictureCannotBeWritten) {
  expect_refusal("inspect " + with_model() + with_document() + "--svg /nowhere/p.svg", 1,
                 {"/nowhere/p.svg"});
}

TEST_F(Cli, PrintsItsVersionAndHelpOnStdout) {
  const Outcome version = kvist("--version");
  EXPECT_EQ(version.code, 0);
  for (const char* part : {"kvist ", "SIMD target", "ggml"})
    EXPECT_NE(version.out.find(part), std::string::npos) << version.out;
  EXPECT_EQ(version.err, "");
  const Outcome help = kvist("run --help");
  EXPECT_EQ(help.code, 0);
  for (const char* flag :
       {"--model", "--file", "--method", "--question", "--answer-prefix", "--raw", "--threads",
        "--json", "--seed", "--cache-type", "--batch-weights", "--rope-scaling", "--together"}) {
    EXPECT_NE(help.out.find(flag), std::string::npos) << flag;
  }
}

TEST_F(Cli, PinsTheInstructionSetItIsToldTo) {
  const Outcome wrong = kvist("--version", "KVIST_SIMD=quantum");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("quantum"), std::string::npos) << wrong.err;
}

}  // namespace
