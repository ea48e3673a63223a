// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "kvist/core/error.h"
#include "kvist/methods/rank/plan.h"
#include "kvist/methods/spec.h"

namespace kvist {
namespace {

RankPlan plan(const char* text) { return parse_spec(text).ranking().value(); }

TEST(VarRate, OptionsBecomeAPlan) {
  const RankPlan p = plan("varrate");
  EXPECT_EQ(p.keep, (Ratio{1, 5}));
  EXPECT_EQ(p.stride, 16);
  EXPECT_EQ(p.salience, RankPlan::Salience::window);
  EXPECT_EQ(p.allocation, RankPlan::Allocation::salience);
  EXPECT_EQ(p.window_queries(), 64);
  EXPECT_EQ(plan("varrate(salience=oracle,gold_end=5)").salience, RankPlan::Salience::oracle);
  EXPECT_EQ(plan("varrate(salience=position)").salience, RankPlan::Salience::position);
  EXPECT_EQ(plan("varrate(salience=mix)").salience, RankPlan::Salience::mix);
  EXPECT_EQ(plan("varrate(alloc=energy)").allocation, RankPlan::Allocation::energy);
  EXPECT_EQ(plan("varrate(on_infeasible=exact)").infeasible, RankPlan::Infeasible::exact);
  EXPECT_EQ(plan("varrate(on_infeasible=shrink_floor)").infeasible,
            RankPlan::Infeasible::shrink_floor);
  EXPECT_EQ(plan("varrate(rate=bytes,bits=4)").rate, RankPlan::Rate::bytes);
  EXPECT_EQ(plan("varrate(code=sigma,bits=5)").code, RankPlan::Code::sigma);
  EXPECT_EQ(plan("varrate(value_scale=1/2)").value_scale, 0.5);
  EXPECT_TRUE(plan("varrate(strict=true)").strict);
  EXPECT_FALSE(plan("varrate").read);
  EXPECT_EQ(plan("varrate(bits=8,code=sigma,read=2.5)").read, (Ratio{5, 2}));
}

// A control takes every token alike unless it is told otherwise.
TEST(VarRate, ControlsHaveNoAnchors) {
  for (const char* text : {"varrate(basis=token)", "varrate(basis=heads)"}) {
    EXPECT_FALSE(plan(text).anchored());
    EXPECT_EQ(plan(text).salience, RankPlan::Salience::flat);
    EXPECT_EQ(plan(text).window_queries(), 0);
  }
  EXPECT_EQ(plan("varrate(basis=token,salience=window)").salience, RankPlan::Salience::window);
  EXPECT_TRUE(plan("varrate").anchored());
}

TEST(VarRate, APresetIsOverriddenByWhatIsGiven) {
  const RankPlan p = plan("varrate(keep=0.25,preset=reuse)");
  EXPECT_EQ(p.keep, (Ratio{1, 4}));
  EXPECT_EQ(p.stride, 64);
  EXPECT_EQ(p.allocation, RankPlan::Allocation::energy);
  EXPECT_EQ(p.rate, RankPlan::Rate::bytes);
  EXPECT_EQ(p.bits, 4);
  const RankPlan given = plan("varrate(preset=reuse,stride=16,alloc=salience,bits=16)");
  EXPECT_EQ(given.stride, 16);
  EXPECT_EQ(given.allocation, RankPlan::Allocation::salience);
  EXPECT_EQ(given.bits, 16);
  EXPECT_EQ(given.rate, RankPlan::Rate::bytes);
}

TEST(VarRate, RefusesWhatCannotBe) {
  for (const char* text :
       {"varrate(keep=0)", "varrate(salience=oracle)", "varrate(rounding=paper,rate=bytes)",
        "varrate(rounding=paper,alloc=energy)", "varrate(value_scale=0)", "varrate(bits=5)",
        "varrate(bits=17,code=sigma)", "varrate(basis=heads,salience=window)", "varrate(read=4)",
        "varrate(bits=8,read=4)", "varrate(bits=4,code=sigma,read=5)",
        "varrate(bits=16,code=sigma,read=4)", "varrate(bits=8,code=sigma,read=4,skip=true)",
        "varrate(basis=heads,alloc=energy)", "varrate(basis=heads,preset=reuse)",
        "varrate(power=0)"}) {
    EXPECT_THROW(plan(text), Error) << text;
  }
}

}  // namespace
}  // namespace kvist
