// SPDX-License-Identifier: MIT
// Tests of a comparison's arithmetic and of what is printed of it.
#include "kvist/cli/comparison.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kvist/cli/comparison_svg.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

using Strings = std::vector<std::string>;

Comparison example() {
  Comparison c;
  c.model = "a <model>";
  c.n_prompt = 1234;
  c.reference_bytes = 4000;
  c.prefill_ms = 1000;
  c.rows.resize(3);
  const char* methods[] = {"none", "snapkv(ratio=0.5)", "adakv(ratio=0.5,scorer=h2o)"};
  for (size_t i = 0; i < 3; ++i) {
    ComparedRow& row = c.rows[i];
    row.method = methods[i];
    row.bytes.payload = i == 0 ? 4000 : 1900;
    row.bytes.metadata = i == 0 ? 0 : 100;
    row.factor = i == 0 ? 1 : 2;
    row.construct_ms = static_cast<double>(i) * 50;
    row.decode_tok_s = 20;
    row.distance = {static_cast<double>(i) * 0.01, 1 - static_cast<double>(i) * 0.25, 4};
    if (i == 1) row.reads.numbers = 100, row.reads.key_bits = 150, row.reads.value_bits = 75;
    row.answers.push_back({});
    row.answers[0].question = "What?";
    row.answers[0].text = str("The \"answer\" & ", i);
  }
  return c;
}

TEST(Comparison, SpecsAreCutOutsideOfParentheses) {
  EXPECT_EQ(split_specs("none, a(x=1,y=2) ,b+c(z=3)"), (Strings{"none", "a(x=1,y=2)", "b+c(z=3)"}));
  EXPECT_EQ(split_specs("a"), (Strings{"a"}));
  EXPECT_EQ(split_specs("a,,b"), (Strings{"a", "", "b"}));
}

TEST(Comparison, DistanceIsMeanDivergenceAndAgreement) {
  const std::vector<float> same{1, 2, 3, 0, 5, 0};
  const Distance zero = distance_of(same, same, 3);
  EXPECT_EQ(zero.kl, 0);
  EXPECT_EQ(zero.same_top, 1);
  EXPECT_EQ(zero.n_tokens, 2);
  // p = (1/2, 1/2) against q = (1/4, 3/4), then the same the other way round.
  const float log3 = std::log(3.0f);
  const std::vector<float> p{0, 0, 0, log3}, q{0, log3, 0, 0};
  const Distance d = distance_of(p, q, 2);
  const double there = 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3),
               back = 0.25 * std::log(0.5) + 0.75 * std::log(1.5);
  EXPECT_NEAR(d.kl, (there + back) / 2, 1e-7);
  EXPECT_EQ(d.same_top, 0);  // among equals the first
  EXPECT_EQ(d.n_tokens, 2);
}

TEST(Comparison, IsPrintedInEveryForm) {
  const Comparison c = example();
  const std::string table = table_text(c);
  for (const char* part :
       {"1,234 tokens", "snapkv(ratio=0.5)", "2.00x", "2.25", "5.0 %", "0.0100", "75.0 %"})
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  const std::string csv = csv_text(c);
  EXPECT_NE(csv.find("\"adakv(ratio=0.5,scorer=h2o)\",2,1900,100,16,100,1000,20,0.02,0.5,\"The "
                     "\"\"answer\"\" & 2\"\n"),
            std::string::npos)
      << csv;
  const auto json = to_json(c, {});
  EXPECT_EQ(json["methods"][1]["kl"], 0.01);
  EXPECT_EQ(json["methods"][1]["read_bits"], 2.25);
  EXPECT_EQ(json["methods"][2]["answers"][0]["question"], "What?");
  const std::string page = comparison_html(c);
  for (const char* part : {"a &lt;model&gt;", "&quot;answer&quot; &amp; 2", "<circle", "</html>"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_TRUE(comparison_svg(c).ends_with("</svg>\n"));
}

TEST(Comparison, APictureOfNothingToCompareIsStillOne) {
  Comparison c = example();
  c.rows.resize(1);
  const std::string svg = comparison_svg(c);
  EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
}

}  // namespace
}  // namespace kvist
