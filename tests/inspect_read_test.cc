// SPDX-License-Identifier: MIT
// kvist inspect of one query's reading, on a small random model: the certificate holds in every
// layer, and what is printed agrees with itself.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kvist/cli/test_command.h"
#include "kvist/core/error.h"
#include "tests/support/tiny_gguf.h"

namespace kvist {

extern const Command inspect_command;

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class InspectRead : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / str("kvist_inspect_read_test_", getpid());
    fs::create_directories(root_);
    testing::tiny_model({.n_layers = 6}).write(path("tiny.gguf"));
    std::ofstream document(path("doc.txt"));
    for (int i = 0; i < 12; ++i) document << "The grass is green " << i << " and the sky blue. ";
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string path(const std::string& name) const { return (root_ / name).string(); }
  std::string inspect(const std::string& method, std::vector<std::string> more, bool as_json) {
    std::vector<std::string> args = {"--raw",    "-m",  path("tiny.gguf"), "-f", path("doc.txt"),
                                     "--method", method};
    args.insert(args.end(), more.begin(), more.end());
    std::string out;
    EXPECT_EQ(run_command(inspect_command, args, &out, as_json), kDone);
    return out;
  }

  fs::path root_;
};

TEST_F(InspectRead, CertificatesHoldInEveryLayer) {
  for (const char* method :
       {"readkv(read=2,calibration=prompt)", "readkv(store=4,read=1,calibration=prompt)",
        "readkv(read_keys=3,read_values=1,calibration=prompt,sinks=4,recent=2)",
        "readkv(read=2,calibration=prompt,transform=klt)"}) {
    SCOPED_TRACE(method);
    const json got = json::parse(inspect(method, {"--certificate", "-q", "What is green?"}, true));
    EXPECT_EQ(got["certificate_holds"], true);
    EXPECT_EQ(got["question"], "What is green?");
    EXPECT_EQ(got["query_position"], got["n_prompt"].get<int>() - 1);
    ASSERT_EQ(got["layers"].size(), 6u);
    for (const json& layer : got["layers"]) {
      const json& c = layer["certificate"];
      EXPECT_EQ(c["holds"], true);
      EXPECT_GT(c["error"].get<double>(), 0);
      EXPECT_GE(c["bound"].get<double>(), c["error"].get<double>());
      EXPECT_DOUBLE_EQ(c["ratio"].get<double>(),
                       c["bound"].get<double>() / c["error"].get<double>());
      for (const char* key :
           {"s_keys", "s_values", "gamma_keys", "gamma_values", "kappa_keys", "kappa_values"})
        EXPECT_GT(c[key].get<double>(), 0) << key;
      EXPECT_LE(layer["key_bits"], layer["key_bits_budget"]);
      EXPECT_LE(layer["value_bits"], layer["value_bits_budget"]);
    }
  }
}

TEST_F(InspectRead, TheQueryIsTheLastTokenOfTheDocumentOrOfTheQuestion) {
  const std::string method = "readkv(read=2,calibration=prompt)";
  const json alone = json::parse(inspect(method, {}, true));
  EXPECT_TRUE(alone["question"].is_null());
  EXPECT_FALSE(alone.contains("certificate_holds"));
  const json asked = json::parse(inspect(method, {"-q", "What is green?"}, true));
  EXPECT_GT(asked["query_position"], alone["query_position"]);
  EXPECT_EQ(alone["position_value_bits"].size(), alone["n_prompt"].get<size_t>());
  EXPECT_NEAR(alone["rate"].get<double>(), 2, 0.01);
}

TEST_F(InspectRead, ProtectedLayersStayUncompressed) {
  const std::string method = "readkv(read=2,calibration=prompt,protect=2)";
  const json got = json::parse(inspect(method, {"--certificate"}, true));
  for (size_t i = 0; i < 6; ++i) {
    const json& layer = got["layers"][i];
    EXPECT_EQ(layer["coded"], i >= 2 && i < 4);
    EXPECT_EQ(layer.contains("certificate"), i >= 2 && i < 4);
  }
  const std::string text = inspect(method, {"--certificate"}, false);
  EXPECT_NE(text.find("uncompressed"), std::string::npos) << text;
  EXPECT_NE(text.find("holds in all 2 layers"), std::string::npos) << text;
}

TEST_F(InspectRead, DrawsWhatItPrints) {
  inspect("readkv(read=2,calibration=prompt)",
          {"-q", "What is <green>?", "--svg", path("p.svg"), "--svg", path("p.html")}, false);
  std::stringstream svg, html;
  svg << std::ifstream(path("p.svg")).rdbuf();
  html << std::ifstream(path("p.html")).rdbuf();
  EXPECT_TRUE(svg.str().ends_with("</svg>\n"));
  EXPECT_NE(svg.str().find("What is &lt;green&gt;?"), std::string::npos);
  EXPECT_NE(html.str().find("</span>"), std::string::npos);
}

TEST_F(InspectRead, OtherMethodsHaveNoQuery) {
  for (const char* flag : {"--certificate", "-qx"}) {
    try {
      inspect("twinkv(ratio=0.5)", {flag}, false);
      ADD_FAILURE() << flag << " was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("twinkv(ratio=0.5)"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kvist
