// SPDX-License-Identifier: MIT
// Tests of reading options by kind, with a table of their own.
#include <gtest/gtest.h>

#include "kvist/core/error.h"
#include "kvist/methods/method.h"
#include "kvist/methods/option_value.h"

namespace kvist {
namespace {

using Kind = OptionSpec::Kind;
constexpr OptionSpec kSpecs[] = {
    {.name = "ratio", .kind = Kind::ratio, .fallback = "0.25", .unit = "", .help = ""},
    {.name = "keep", .kind = Kind::ratio, .fallback = "0.75", .unit = "", .help = ""},
    {.name = "count",
     .kind = Kind::integer,
     .fallback = "3",
     .unit = "tokens",
     .help = "",
     .least = -2,
     .most = 9},
    {.name = "flag", .kind = Kind::boolean, .fallback = "true", .unit = "", .help = ""},
    {.name = "kind",
     .kind = Kind::choice,
     .fallback = "a",
     .unit = "",
     .help = "",
     .choices = "a|b:N|c"},
};
constexpr OptionSpec kRequired[] = {
    {.name = "bits", .kind = Kind::integer, .fallback = "", .unit = "", .help = ""}};

TEST(Options, FallBackToTheirDefaults) {
  const Options o(kSpecs, {}, "m");
  EXPECT_EQ(o.removed(), (Ratio{1, 4}));
  EXPECT_EQ(o.integer("count"), 3);
  EXPECT_TRUE(o.boolean("flag"));
  EXPECT_EQ(o.choice("kind").name, "a");
  EXPECT_EQ(o.choice("kind").number, 0u);
  EXPECT_FALSE(o.given("count"));
}

TEST(Options, TakeWhatIsGiven) {
  const Options o(
      kSpecs,
      {{"keep", "1/3"}, {"count", "-2"}, {"flag", "false"}, {"kind", "b:18446744073709551615"}},
      "m");
  EXPECT_EQ(o.removed(), (Ratio{2, 3}));
  EXPECT_EQ(o.integer("count"), -2);
  EXPECT_FALSE(o.boolean("flag"));
  EXPECT_EQ(o.choice("kind").name, "b");
  EXPECT_EQ(o.choice("kind").number, UINT64_MAX);
  EXPECT_TRUE(o.given("keep"));
  EXPECT_FALSE(o.given("ratio"));
  EXPECT_EQ(o.text("keep"), "1/3");
}

TEST(Options, RefuseByName) {
  const auto refused = [](std::vector<std::pair<std::string, std::string>> given,
                          const char* part) {
    try {
      const Options o(kSpecs, std::move(given), "m");
      ADD_FAILURE() << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused({{"count", "10"}}, "an integer from -2 to 9");
  refused({{"count", ""}}, "count=''");
  refused({{"kind", "b"}}, "one of a|b:N|c");
  refused({{"kind", "b:18446744073709551616"}}, "one of a|b:N|c");
  refused({{"kind", ""}}, "one of");
  refused({{"cuont", "1"}}, "did you mean 'count'?");
  refused({{"ratio", "0.25"}, {"keep", "0.75"}}, "ratio=0.25 and keep=0.75");
}

TEST(Options, ARequiredOneIsAskedFor) {
  EXPECT_THROW(Options(kRequired, {}, "m"), Error);
  EXPECT_EQ(Options(kRequired, {{"bits", "4"}}, "m").integer("bits"), 4);
}

}  // namespace
}  // namespace kvist
