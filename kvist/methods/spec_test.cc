// SPDX-License-Identifier: MIT
// Tests of the spec grammar: canonical text, and errors that point at their column.
#include "kvist/methods/spec.h"

#include <gtest/gtest.h>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"

namespace kvist {
namespace {

std::string refusal(std::string_view text) {
  try {
    parse_spec(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    return error.what();
  }
  ADD_FAILURE() << text << " is not refused";
  return "";
}

#define EXPECT_REFUSED(text, column, part)                                        \
  do {                                                                            \
    const std::string message = refusal(text);                                    \
    EXPECT_NE(message.find("column " #column ":"), std::string::npos) << message; \
    EXPECT_NE(message.find(part), std::string::npos) << message;                  \
  } while (false)

TEST(Spec, NoneIsTheUncompressedCache) {
  for (const char* text : {"none", "  none\n"}) {
    const Spec spec = parse_spec(text);
    EXPECT_TRUE(spec.none());
    EXPECT_EQ(spec.text, "none");
    EXPECT_EQ(spec.make_selector(), nullptr);
    EXPECT_EQ(spec.removed(), (Ratio{0, 1}));
  }
}

TEST(Spec, CanonicalTextNamesGivenOptionsInTableOrder) {
  const std::pair<const char*, const char*> cases[] = {
      {"twinkv", "twinkv"},
      {"twinkv()", "twinkv"},
      {" twinkv ( ) ", "twinkv"},
      {"twinkv(ratio=7/10)", "twinkv(ratio=0.7)"},
      {"twinkv(ratio=70%)", "twinkv(ratio=0.7)"},
      {"twinkv(ratio=2/6)", "twinkv(ratio=1/3)"},
      {"twinkv(keep=25%)", "twinkv(keep=0.25)"},
      {"twinkv(ratio=50%) + readkv( read=2,store=8 )", "twinkv(ratio=0.5)+readkv(store=8,read=2)"},
      {"twinkv( ell = 016 ,\tsinks=2,ratio=0.50 )", "twinkv(ratio=0.5,sinks=2,ell=16)"},
      {"twinkv(counts=permuted:011,replace=none)", "twinkv(counts=permuted:11,replace=none)"},
      {"twinkv(pool_sees_protected=false)", "twinkv(pool_sees_protected=false)"},
      {"random(seed=3)", "random(seed=3)"},
  };
  for (const auto& [text, canonical] : cases) {
    EXPECT_EQ(parse_spec(text).text, canonical);
    EXPECT_EQ(parse_spec(canonical).text, canonical);
  }
}

TEST(Spec, RatioAndKeepAreTwoNamesOfOneSize) {
  EXPECT_EQ(parse_spec("twinkv").removed(), (Ratio{1, 2}));
  EXPECT_EQ(parse_spec("twinkv(ratio=0.3)").removed(), (Ratio{3, 10}));
  EXPECT_EQ(parse_spec("twinkv(keep=0.3)").removed(), (Ratio{7, 10}));
  EXPECT_EQ(parse_spec("twinkv(keep=1)").removed(), (Ratio{0, 1}));
  EXPECT_EQ(parse_spec("twinkv(ratio=0)").removed(), (Ratio{0, 1}));
  const std::string message = refusal("twinkv(ratio=0.5,keep=0.4)");
  EXPECT_NE(message.find("ratio=0.5 and keep=0.4"), std::string::npos) << message;
}

TEST(Spec, ErrorsPointAtTheColumnAndSayWhatWasExpected) {
  EXPECT_REFUSED("", 1, "expected a method name or 'none', found the end");
  EXPECT_REFUSED("   ", 4, "found the end");
  EXPECT_REFUSED("(ratio=0.5)", 1, "found '('");
  EXPECT_REFUSED("twinkv(ratio=0.5", 17, "expected ',' or ')', found the end");
  EXPECT_REFUSED("twinkv(ratio=0.5;sinks=2)", 17, "expected ',' or ')', found ';'");
  EXPECT_REFUSED("twinkv(ratio 0.5)", 14, "expected '=' after ratio, found '0'");
  EXPECT_REFUSED("twinkv(ratio=)", 14, "expected a value, found ')'");
  EXPECT_REFUSED("twinkv(=0.5)", 8, "expected an option name");
  EXPECT_REFUSED("twinkv(ratio=0.5,)", 18, "expected an option name");
  EXPECT_REFUSED("twinkv)", 7, "expected '(', '+' or the end, found ')'");
  EXPECT_REFUSED("twinkv() twinkv()", 10, "found 't'");
  EXPECT_REFUSED("twinkv+", 8, "expected a method name");
  EXPECT_REFUSED("none()", 5, "expected nothing after 'none'");
  EXPECT_REFUSED("twinkv+none", 8, "not combined");
  EXPECT_REFUSED("readkv+twinkv", 8, "twinkv comes first: twinkv+readkv");
  EXPECT_REFUSED("readkv+readkv", 8, "both decide how numbers are coded");
}

TEST(Spec, UnknownNamesGetTheNearest) {
  EXPECT_REFUSED("twinvk", 1, "did you mean 'twinkv'?");
  EXPECT_REFUSED("TwinKV(ratio=0.5)", 1, "did you mean 'twinkv'?");
  EXPECT_REFUSED("non", 1, "did you mean 'none'?");
  EXPECT_REFUSED("frobnicate", 1, "'kvist methods' lists them");
  EXPECT_REFUSED("twinkv(sinks=2,ratoi=0.5)", 16,
                 "twinkv has no option 'ratoi'; did you mean 'ratio'?");
  EXPECT_REFUSED("twinkv(colour=blue)", 8, "'kvist methods twinkv' lists them");
}

TEST(Spec, BadValuesAreQuotedWithWhatIsExpected) {
  EXPECT_REFUSED("twinkv(ratio=1)", 14, "from 0 to below 1");
  EXPECT_REFUSED("twinkv(ratio=150%)", 14, "from 0 to below 1");
  EXPECT_REFUSED("twinkv(keep=0)", 13, "above 0 and at most 1");
  EXPECT_REFUSED("twinkv(keep=1.5)", 13, "above 0 and at most 1");
  EXPECT_REFUSED("twinkv(ratio=half)", 14, "'half'");
  EXPECT_REFUSED("twinkv(ratio=-0.5)", 14, "'-0.5'");
  EXPECT_REFUSED("twinkv(sinks=-1)", 14, "an integer of at least 0");
  EXPECT_REFUSED("twinkv(sinks=99999999999999999999)", 14, "an integer of at least 0");
  EXPECT_REFUSED("twinkv(sinks=2.5)", 14, "'2.5'");
  EXPECT_REFUSED("twinkv(window=0)", 15, "an integer from 1 to 4096");
  EXPECT_REFUSED("twinkv(score=twn)", 14, "one of twin|value|rarity");
  EXPECT_REFUSED("twinkv(allow_empty=yes)", 20, "true or false");
  EXPECT_REFUSED("twinkv(counts=permuted)", 15, "permuted:N");
  EXPECT_REFUSED("twinkv(counts=true:3)", 15, "permuted:N");
  EXPECT_REFUSED("twinkv(counts=permuted:x)", 15, "permuted:N");
  EXPECT_REFUSED("twinkv(counts=permuted:-1)", 15, "permuted:N");
  EXPECT_REFUSED("twinkv(ratio=0.5,ratio=0.5)", 18, "ratio is given twice");
  EXPECT_REFUSED("twinkv(pool=4)", 1, "pool=4 is even");
  EXPECT_REFUSED("twinkv(replace=matched:1,score=value)", 1, "does not go with score=value");
}

TEST(Spec, TwoSelectorsAreRefusedWithTheReason) {
  EXPECT_REFUSED("twinkv(ratio=0.5)+random", 19,
                 "twinkv and random both decide which entries stay");
}

TEST(Spec, MessagesAreSafeForATerminal) {
  const std::string message = refusal("twinkv(\x1b[31m=1)");
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_NE(message.find("\\x1b"), std::string::npos) << message;
  EXPECT_LT(refusal(std::string(4000, 'x')).size(), 400u);
  EXPECT_LT(refusal(std::string(100000, 'x')).size(), 400u);
}

TEST(Spec, AnyTextIsParsedOrRefusedAndCanonicalTextIsAFixedPoint) {
  const std::string pieces[] = {"twinkv", "random",      "none", "(",    ")",    ",",   "=",   "+",
                                " ",      "ratio",       "keep", "0.5",  "7/10", "70%", "ell", "16",
                                "counts", "permuted:11", "x",    "\xff", "seed", ":",   "/"};
  Rng rng(17);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint64_t n = rng.below(9); n > 0; --n) text += pieces[rng.below(std::size(pieces))];
    try {
      const Spec spec = parse_spec(text);
      ++accepted;
      EXPECT_EQ(parse_spec(spec.text).text, spec.text) << text;
      EXPECT_EQ(parse_spec(spec.text).removed(), spec.removed()) << text;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(Nearest, FindsTypingErrorsAndStaysSilentOtherwise) {
  const std::vector<std::string> words = {"ratio", "recent", "window", "pool_order"};
  EXPECT_EQ(nearest("ratoi", words), "ratio");
  EXPECT_EQ(nearest("RECENT", words), "recent");
  EXPECT_EQ(nearest("windo", words), "window");
  EXPECT_EQ(nearest("pool", words), "pool_order");
  EXPECT_EQ(nearest("zebra", words), "");
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(nearest("x", {}), "");
}

Reading reading_of(const char* spec) { return *parse_spec(spec).reading(); }

TEST(Spec, ReadKvDividesItsBitsBetweenKeysAndValues) {
  const ReadPlan plain = reading_of("readkv(read=2)").plan;
  EXPECT_EQ(plain.key_rate, (Ratio{2, 1}));
  EXPECT_EQ(plain.value_rate, (Ratio{2, 1}));
  EXPECT_EQ(reading_of("readkv(store=2)").plan.key_rate, (Ratio{2, 1})) << "the default is 4";
  const Reading sharp = reading_of("readkv(preset=sharp,read=2)");
  EXPECT_EQ(sharp.plan.key_rate, (Ratio{3, 1}));
  EXPECT_EQ(sharp.plan.value_rate, (Ratio{1, 1}));
  EXPECT_EQ(sharp.plan.sinks, 4);
  EXPECT_TRUE(sharp.basis.klt);
  EXPECT_EQ(sharp.plan.tilt, (Ratio{1, 6}));
  const Reading odd = reading_of("readkv(preset=sharp,store=4,read=3,sinks=0,transform=hadamard)");
  EXPECT_EQ(odd.plan.key_rate, (Ratio{4, 1})) << "no more than is stored";
  EXPECT_EQ(odd.plan.value_rate, (Ratio{2, 1}));
  EXPECT_EQ(odd.plan.sinks, 0);
  EXPECT_FALSE(odd.basis.klt);
  EXPECT_EQ(odd.plan.tilt, (Ratio{0, 1}));
  EXPECT_EQ(reading_of("readkv(preset=sharp,read=1.5)").plan.key_rate, (Ratio{9, 4}));
  const ReadPlan given = reading_of("readkv(preset=sharp,read_keys=2,read_values=0.5)").plan;
  EXPECT_EQ(given.key_rate, (Ratio{2, 1}));
  EXPECT_EQ(given.value_rate, (Ratio{1, 2}));
  EXPECT_THROW(parse_spec("readkv(store=4,read=5)"), Error);
}

TEST(Spec, SparQSaysWhatIsReadByItself) {
  const ReadPlan plan = reading_of("readkv(sparq=32,protect=2)").plan;
  EXPECT_EQ(plan.sparq_channels, 32);
  EXPECT_EQ(plan.sparq_tokens, 128);
  EXPECT_FALSE(reading_of("readkv").plan.sparq());
  for (const char* text :
       {"readkv(sparq=32,read=4)", "readkv(sparq=32,sinks=4)", "readkv(tilt=0.1,uniform=keys)",
        "readkv(sparq=32,tilt=0.1)", "readkv(tilt=2)", "readkv(sparq=32,preset=sharp)"})
    EXPECT_THROW(parse_spec(text), Error) << text;
}

TEST(Spec, WhatCodesComesAfterWhatSelects) {
  EXPECT_EQ(parse_spec("twinkv+readkv(read=2)").text, "twinkv+readkv(read=2)");
  EXPECT_THROW(parse_spec("readkv+twinkv"), Error);
  EXPECT_THROW(parse_spec("readkv+readkv(read=2)"), Error);
}

TEST(Spec, BoundsOfGrowingCachesStandAlone) {
  EXPECT_NE(parse_spec("streamingllm(n_sink=2)").make_evictor(), nullptr);
  EXPECT_NE(parse_spec("h2o").make_evictor(), nullptr);
  const auto message = [](const char* text) {
    try {
      parse_spec(text).make_evictor();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message("twinkv").find("streamingllm, h2o, keydiff"), std::string::npos);
  EXPECT_NE(message("none").find("expected one of"), std::string::npos);
  EXPECT_NE(message("keydiff+readkv").find("expected one of"), std::string::npos);
  EXPECT_NE(message("keydiff(keep=0.5)").find("leave out keep"), std::string::npos);
}

TEST(Spec, OptionsOfAScorerMayBeGivenToWhoAsksIt) {
  EXPECT_EQ(parse_spec("adakv(window_size=16, ratio=0.4)").text, "adakv(ratio=0.4,window_size=16)");
  EXPECT_EQ(parse_spec("adakv(epsilon=0.01,scorer=expected_attention)").text,
            "adakv(scorer=expected_attention,epsilon=0.01)");
  EXPECT_EQ(parse_spec("adakv(scorer=twinkv,ell=16)").text, "adakv(scorer=twinkv,ell=16)");
  const auto refused = [](const char* text) {
    try {
      parse_spec(text);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string unknown = refused("adakv(window_size=8,scorer=snapkw)");
  for (const char* part : {"snapkw", "snapkv", "keydiff", "column 28"})
    EXPECT_NE(unknown.find(part), std::string::npos) << unknown;
  EXPECT_NE(refused("adakv(scorer=adakv)").find("method that scores"), std::string::npos);
  EXPECT_NE(refused("adakv(scorer=streamingllm)").find("method that scores"), std::string::npos);
  EXPECT_NE(refused("adakv(scorer=keydiff,window_size=8)").find("no option 'window_size'"),
            std::string::npos);
  EXPECT_NE(refused("adakv(kernel_size=4)").find("kernel_size=4 is even"), std::string::npos);
  EXPECT_NE(refused("snapkv+keydiff").find("both decide"), std::string::npos);
}

TEST(Spec, ARatioGoesWhereNoneIsGiven) {
  const auto at = [](const char* text) { return parse_spec(text).text_at({3, 4}); };
  EXPECT_EQ(at("none"), "none");
  EXPECT_EQ(at("snapkv"), "snapkv(ratio=0.75)");
  EXPECT_EQ(at("adakv(scorer=keydiff)"), "adakv(ratio=0.75,scorer=keydiff)");
  EXPECT_EQ(at("snapkv(ratio=0.5)"), "snapkv(ratio=0.5)");
  EXPECT_EQ(at("snapkv(keep=0.5,window_size=8)"), "snapkv(keep=0.5,window_size=8)");
}

}  // namespace
}  // namespace kvist
