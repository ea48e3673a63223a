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
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "support/embedded_model.h"

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

TEST_F(Cli, RecomputesThePapersFigures) {
  const Outcome text = kvist("bench --paper readkv");
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.out.find("154 of 154 figures equal"), std::string::npos) << text.out;
  const Outcome got = kvist("bench --paper readkv --json");
  EXPECT_EQ(got.code, 0);
  const auto document = nlohmann::json::parse(got.out);
  EXPECT_EQ(document["cells"].size(), 154u);
  EXPECT_EQ(document["differ"], 0);
  expect_refusal("bench --paper other", 2, {"--paper", "readkv"});
}

TEST_F(Cli, SaysHowToGetACalibration) {
  const std::string model = kvist::testing::embedded_model();
  if (model.empty()) GTEST_SKIP() << "no embedded model: run `make test`, or set KVIST_MODEL";
  const std::string here = "KVIST_CALIBRATION='" + dir_.string() + "'";
  const std::string ask = "run -m '" + model + "' " + with_document() + "-q x -n 1 --method ";
  const Outcome none = kvist(ask + "readkv", here);
  EXPECT_EQ(none.code, 1);
  for (const char* part : {"kvist calibrate", "--calibration", "calibration=prompt"})
    EXPECT_NE(none.err.find(part), std::string::npos) << none.err;
  EXPECT_EQ(kvist(ask + "'readkv(calibration=prompt)'", here).code, 0);
  // What calibrate makes is what run finds.
  const std::string calibrate = "calibrate -m '" + model + "' --documents 1 --window 64 --text '";
  EXPECT_EQ(kvist(calibrate + KVIST_SOURCE_DIR "/examples/demo.txt'", here).code, 0);
  EXPECT_EQ(kvist(ask + "readkv", here).code, 0);
  EXPECT_EQ(kvist(ask + "'readkv(transform=klt,sinks=4)'", here).code, 0);
  // Another transform than the file's.
  const Outcome where = kvist("calibrate --where -m '" + model + "'", here);
  const std::string file = where.out.substr(0, where.out.find('\n'));
  const Outcome other = kvist(ask + "'readkv(transform=klt)' --calibration '" + file + "'", here);
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("hadamard"), std::string::npos) << other.err;
  // What is there is not made again, what cannot be read is.
  EXPECT_EQ(kvist("calibrate --missing --where -m '" + model + "'", here).out, "");
  const std::string made = slurp(file);
  write(file.substr(file.rfind('/') + 1), made.substr(0, 5000));
  EXPECT_EQ(kvist("calibrate --missing --where -m '" + model + "'", here).out, file + "\n");
  const Outcome again = kvist(calibrate + KVIST_SOURCE_DIR "/examples/demo.txt' --missing", here);
  EXPECT_EQ(again.code, 0);
  EXPECT_EQ(again.out.find("klt"), std::string::npos) << again.out;
  EXPECT_EQ(slurp(file), made);
  // A prompt that the calibration does not reach.
  EXPECT_EQ(kvist(calibrate + KVIST_SOURCE_DIR "/examples/demo.txt' --span 8", here).code, 0);
  const Outcome beyond = kvist(ask + "readkv", here);
  EXPECT_EQ(beyond.code, 0);
  EXPECT_NE(beyond.err.find("positions below 8"), std::string::npos) << beyond.err;
  write("broken.readkv", made.substr(0, 5000));
  const Outcome broken = kvist(ask + "readkv --calibration '" + path("broken.readkv") + "'", here);
  EXPECT_EQ(broken.code, 1);
  EXPECT_NE(broken.err.find("broken.readkv"), std::string::npos) << broken.err;
}

// Three kinds from one reading of the texts, each found by the method that asks for it.
TEST_F(Cli, MakesABasisOfEveryKind) {
  const std::string model = kvist::testing::embedded_model();
  if (model.empty()) GTEST_SKIP() << "no embedded model: run `make test`, or set KVIST_MODEL";
  const std::string here = "KVIST_CALIBRATION='" + dir_.string() + "'";
  const std::string demo = KVIST_SOURCE_DIR "/examples/demo.txt";
  write("some.txt", slurp(demo).substr(0, 1500));
  const std::string ask = "run -m '" + model + "' -f '" + path("some.txt") +
                          "' -q x -n 1 --json --method 'varrate(keep=0.5,";
  const Outcome none = kvist(ask + "basis=token)'", here);
  EXPECT_EQ(none.code, 1);
  for (const char* part : {"varrate(basis=token)", "kvist calibrate --basis"})
    EXPECT_NE(none.err.find(part), std::string::npos) << none.err;
  const std::string calibrate =
      "calibrate --basis -m '" + model + "' --documents 1 --window 1024 --text '" + demo + "' ";
  const Outcome one_file = kvist(calibrate + "--out '" + path("x.varrate") + "'", here);
  EXPECT_EQ(one_file.code, 2);
  EXPECT_NE(one_file.err.find("--kind"), std::string::npos) << one_file.err;
  const Outcome made = kvist(calibrate + "--json", here);
  ASSERT_EQ(made.code, 0) << made.err;
  const auto bases = nlohmann::json::parse(made.out)["bases"];
  ASSERT_EQ(bases.size(), 3u);
  for (const char* method :
       {"basis=residual)'", "basis=token)'", "basis=heads)'", "strict=true)'"}) {
    const Outcome got = kvist(ask + method, here);
    ASSERT_EQ(got.code, 0) << got.err;
    EXPECT_NEAR(nlohmann::json::parse(got.out)["ranked"]["bits_per_coefficient"].get<double>(), 16,
                0);
  }
  const Outcome read = kvist(ask + "bits=8,code=sigma,read=3)'", here);
  ASSERT_EQ(read.code, 0) << read.err;
  const auto ranked = nlohmann::json::parse(read.out)["ranked"];
  EXPECT_LE(ranked["bits_per_coefficient"].get<double>(), 3);
  EXPECT_GT(ranked["bits_per_coefficient"].get<double>(), 2.9);
  // A file of another kind, and one of the format without kinds.
  const std::string token = bases[1]["file"];
  const Outcome other = kvist(ask + "basis=heads)' --basis '" + token + "'", here);
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("kind token"), std::string::npos) << other.err;
  std::string bytes = slurp(token);
  bytes[8] = 1;
  write("old.varrate", bytes);
  const Outcome old = kvist(ask + "basis=token)' --basis '" + path("old.varrate") + "'", here);
  EXPECT_EQ(old.code, 1);
  EXPECT_NE(old.err.find("version: found 1; expected 2"), std::string::npos) << old.err;
}

TEST_F(Cli, ChecksWhatIsCompared) {
  const std::string all = "compare " + with_model() + with_document() + "-q x ";
  expect_refusal("compare " + with_model() + with_document(), 2, {"--question"});
  expect_refusal(all + "--methods snapkv,snapkw", 2, {"snapkw", "did you mean 'snapkv'"});
  expect_refusal(all + "--methods snapkv,", 2, {"method name"});
  expect_refusal(all + "--methods 'adakv(scorer=foo)'", 2, {"foo", "snapkv, h2o"});
  expect_refusal(all + "--methods 'snapkv+keydiff'", 2, {"both decide"});
  expect_refusal(all + "--ratio 1", 2, {"--ratio 1"});
  expect_refusal(all + "--ratio much", 2, {"much"});
  expect_refusal(all + "--json --csv", 2, {"--json and --csv"});
  expect_refusal(all + "--html /nowhere/c.html", 1, {"/nowhere/c.html"});
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

// With the model that the set-up installs.
class CliWithModel : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    if (IsSkipped()) return;
    model_ = kvist::testing::embedded_model();
    if (model_.empty()) GTEST_SKIP() << "the embedded model is not installed: run tools/setup.sh";
    std::string text;
    for (int i = 0; i < 12; ++i)
      text += "The grass is green. The sky is blue. The sun is yellow. Here we go. ";
    write("facts.txt", text + "The special magic number is 58016. Remember it.\n");
  }
  std::string inputs() const { return "-m '" + model_ + "' -f '" + path("facts.txt") + "' "; }

  std::string model_;
};

const char kAsk[] = "-q 'What is the special magic number?' ";

TEST_F(CliWithModel, AnswersFromTheSamePrefixWhateverWasAskedBefore) {
  const std::string questions = std::string(kAsk) + "-q 'What is green?' " + kAsk + "-n 12 --json";
  const Outcome got = kvist("run " + inputs() + questions);
  ASSERT_EQ(got.code, 0) << got.err;
  const auto run = nlohmann::json::parse(got.out);
  for (const char* key : {"model", "architecture", "n_prompt", "method", "ratio", "reference_bytes",
                          "payload_bytes", "metadata_bytes", "allocated_bytes", "factor", "kept",
                          "prefill_ms", "construct_ms", "answers", "peak_rss_bytes"}) {
    EXPECT_TRUE(run.contains(key)) << key;
  }
  ASSERT_EQ(run["answers"].size(), 3u);
  for (const char* key :
       {"question", "text", "token_ids", "n_tokens", "first_token_ms", "decode_tok_s"}) {
    EXPECT_TRUE(run["answers"][0].contains(key)) << key;
  }
  EXPECT_EQ(run["answers"][0]["token_ids"], run["answers"][2]["token_ids"]);
  EXPECT_NE(run["answers"][0]["text"].get<std::string>().find("58016"), std::string::npos);
  const int n = run["n_prompt"];
  EXPECT_EQ(run["kept"].size(), 30u);
  int kept = 0;
  for (const int head : run["kept"][0]) kept += head;
  EXPECT_EQ(kept, 3 * (n / 2));
  EXPECT_EQ(run["payload_bytes"], 30 * kept * 2 * 64 * 2);
  EXPECT_EQ(run["reference_bytes"], 30 * 3 * n * 2 * 64 * 2);
}

TEST_F(CliWithModel, ComparesMethodsOverOnePrefill) {
  const std::string methods =
      "--methods 'none,twinkv(recent=16),snapkv(window_size=16),adakv(scorer=h2o),"
      "expected_attention,kvzip(chunk_size=128),random(ratio=0.75),"
      "readkv(read=3,calibration=prompt),snapkv+readkv(read=8,calibration=prompt)' "
      "--ratio 0.5 -n 12 --json ";
  const Outcome got =
      kvist("compare " + inputs() + kAsk + methods + "--html '" + path("c.html") + "'");
  ASSERT_EQ(got.code, 0) << got.err;
  const auto all = nlohmann::json::parse(got.out)["methods"];
  ASSERT_EQ(all.size(), 9u);
  EXPECT_EQ(all[0]["method"], "none");
  EXPECT_EQ(all[1]["method"], "twinkv(ratio=0.5,recent=16)");
  EXPECT_EQ(all[6]["method"], "random(ratio=0.75)");
  EXPECT_EQ(all[0]["kl"], 0);
  EXPECT_EQ(all[0]["same_top"], 1);
  EXPECT_EQ(all[8]["method"], "snapkv(ratio=0.5)+readkv(read=8,calibration=prompt)");
  const std::vector<double> factors{1, 1.97, 1.97, 1.97, 1.97, 1.97, 3.94, 2, 3.88};
  for (size_t i = 1; i < all.size(); ++i) {
    EXPECT_NEAR(all[i]["factor"].get<double>(), factors[i], 0.04) << all[i]["method"];
    EXPECT_NEAR(all[i]["read_bits"].get<double>(), i < 7 ? 16 : i == 7 ? 3 : 8, 0.01);
    EXPECT_GT(all[i]["kl"], 0);
    EXPECT_GT(all[i]["construct_ms"], 0);
    EXPECT_EQ(all[i]["compared_tokens"], all[0]["compared_tokens"]);
    EXPECT_EQ(all[i]["answers"].size(), 1u);  // of random, it may be the empty one
  }
  EXPECT_NE(all[0]["answers"][0]["text"].get<std::string>().find("58016"), std::string::npos);
  EXPECT_NE(slurp(path("c.html")).find("<circle"), std::string::npos);
}

TEST_F(CliWithModel, ReadsWithinABound) {
  const Outcome got = kvist("run " + inputs() + kAsk + "-q 'And again?' --method 'streamingllm' " +
                            "--max-cache 256 -n 12 --json");
  ASSERT_EQ(got.code, 0) << got.err;
  const auto run = nlohmann::json::parse(got.out);
  EXPECT_EQ(run["answers"].size(), 2u);
  EXPECT_LE(run["kept"][0][0], 256);
  EXPECT_GT(run["n_prompt"], 256);
  EXPECT_EQ(run["payload_bytes"], 30 * 3 * 2 * 64 * 2 * run["kept"][0][0].get<int>());
  for (const char* wrong : {"--method twinkv", "--method 'keydiff(ratio=0.5)'", "--together"})
    EXPECT_EQ(kvist("run " + inputs() + kAsk + "--max-cache 256 " + wrong).code, 2) << wrong;
}

TEST_F(CliWithModel, StreamsOnlyTheAnswerToStdout) {
  const Outcome got = kvist("run " + inputs() + kAsk + "-n 12 --method none");
  ASSERT_EQ(got.code, 0) << got.err;
  EXPECT_NE(got.out.find("58016"), std::string::npos) << got.out;
  EXPECT_EQ(got.out.find("payload"), std::string::npos);
  EXPECT_EQ(got.out.find('\x1b'), std::string::npos);
  EXPECT_NE(got.err.find("payload"), std::string::npos);
}

TEST_F(CliWithModel, DrawsWhatInspectPrints) {
  const Outcome got = kvist("inspect " + inputs() + "--json --svg '" + path("p.svg") + "' --svg '" +
                            path("p.html") + "'");
  ASSERT_EQ(got.code, 0) << got.err;
  const auto shown = nlohmann::json::parse(got.out);
  EXPECT_EQ(shown["share"].size(), 30u);
  EXPECT_EQ(shown["mean_count"].size(), 30u);
  EXPECT_EQ(shown["position_share"].size(), shown["n_prompt"].get<size_t>());
  EXPECT_TRUE(slurp(path("p.svg")).ends_with("</svg>\n"));
  EXPECT_NE(slurp(path("p.html")).find("magic"), std::string::npos);
}

TEST_F(CliWithModel, RefusesAPromptBeyondTheContextWithBothNumbers) {
  std::string text;
  for (int i = 0; i < 9000; ++i) text += "word ";
  write("long.txt", text);
  const Outcome got = kvist("run -q x -m '" + model_ + "' -f '" + path("long.txt") + "'");
  EXPECT_EQ(got.code, 2);
  for (const char* part : {"90", "8192", "--rope-scaling"})
    EXPECT_NE(got.err.find(part), std::string::npos) << got.err;
}

}  // namespace
