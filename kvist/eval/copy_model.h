// SPDX-License-Identifier: MIT
// A subject without a model, so that a selection can be scored exactly: it copies from the context
// what once followed the last words of the question, as long as those slots survived.
#pragma once

#include <memory>

#include "kvist/eval/subject.h"

namespace kvist {

struct CopyModelShape {
  int layers = 2, kv_heads = 2, group = 2, head_dim = 32;
  int pin_tail = 0;  // last tokens that selectors keep
};

// Tokens are words, single digits and other single bytes, with the space before them. Every token
// has keys and values of its own, drawn from its text, layer and head: equal words are twins, and
// nothing else is alike. A slot counts as there where any head of any layer keeps it.
std::unique_ptr<Subject> copy_model(ThreadPool& pool, const CopyModelShape& shape = {});

}  // namespace kvist
