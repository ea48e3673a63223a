#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes a bare Debian 12 or Ubuntu machine ready to build kvist: Debian packages, and ggml, libllama and a small model in
# .venv. What is there already is left alone. LLAMA=PREFIX uses a llama.cpp of yours instead of building one.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

say() { printf '[set-up] %s\n' "$*" >&2; }
die() { printf '[set-up] %s\n' "$*" >&2; exit 1; }

missing_packages() {
  local package
  for package in libhwy-dev libfmt-dev libcli11-dev nlohmann-json3-dev libeigen3-dev libxxhash-dev libgtest-dev \
    libbenchmark-dev libdnnl-dev; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || echo "$package"
  done
  command -v g++ >/dev/null || echo g++
  command -v make >/dev/null || echo make
  command -v cmake >/dev/null || echo cmake
  command -v git >/dev/null || echo git
  command -v ninja >/dev/null || echo ninja-build
  python3 -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
}

install_packages() {
  command -v dpkg-query >/dev/null || die "this set-up knows Debian and Ubuntu; elsewhere see the list in tools/setup.sh"
  local packages as_root=()
  mapfile -t packages < <(missing_packages)
  ((${#packages[@]})) || return 0
  if ((EUID != 0)); then
    as_root=(sudo -n)
    if ! sudo -n true 2>/dev/null; then
      say "missing, and only root can install it. Run this, then again what you ran:"
      die "    sudo apt-get install ${packages[*]}"
    fi
  fi
  say "installing ${packages[*]}"
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get -y -q install --no-install-recommends "${packages[@]}")
  "${as_root[@]}" apt-get -q update >&2 || say "apt-get update failed; going on with the lists that are there"
  "${as_root[@]}" "${install[@]}" >&2 || die "apt-get could not install: ${packages[*]}"
}

# What a built wheel depends on: the pins, the fix for AMX, the compiler, and the instruction set it builds for.
wheel_key() {
  {
    cat tools/requirements.txt tools/amx_tileconfig_fix.h
    echo "${LLAMA:+own}"
    g++ --version | head -n 1
    g++ -march=native -Q --help=target | grep -v '^ *-mtune'
  } | sha256sum | cut -c 1-16
}

# Prints how far the compiler has come, from the log that pip writes, until process $1 ends.
follow() {
  local seconds=0 percent
  while kill -0 "$1" 2>/dev/null; do
    if ((seconds % 20 == 19)); then
      percent=$(grep -aoE '\[ *[0-9]+(%|/[0-9]+)\]' build/setup.log | tail -n 1 || true)
      say "  $((seconds + 1)) s ${percent:+compiling $percent}"
    fi
    sleep 1
    seconds=$((seconds + 1))
  done
}

make_wheels() {  # $1: folder
  local pins=$root/tools/requirements.txt
  mkdir -p build "$1.partial"
  if [[ -n ${LLAMA:-} ]]; then
    sed '/^llama-cpp-python/,/--hash/d' "$pins" > build/requirements.txt
    pins=$root/build/requirements.txt
    say "downloading a small model (93 MB); libllama comes from $LLAMA"
  else
    say "downloading libllama's source and a small model (170 MB), then building libllama: about 6 minutes on 2 cores"
  fi
  # SOURCE_DATE_EPOCH makes ggml build for a generic CPU, without AVX. The multimodal library is not used.
  env -u SOURCE_DATE_EPOCH CXXFLAGS="-include $root/tools/amx_tileconfig_fix.h ${CXXFLAGS:-}" \
    CMAKE_ARGS="-DLLAVA_BUILD=OFF ${CMAKE_ARGS:-}" CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" \
    .venv/bin/python -m pip wheel -v --no-cache-dir --no-deps --require-hashes --no-binary llama-cpp-python \
    -r "$pins" -w "$1.partial" > build/setup.log 2>&1 &
  local pip=$!
  follow "$pip"
  if ! wait "$pip"; then
    tail -n 25 build/setup.log >&2
    die "could not build what tools/requirements.txt lists; the whole log is build/setup.log"
  fi
  rm -rf "$1"
  mv "$1.partial" "$1"
}

install_python_side() {
  local key stamp=.venv/kvist-set-up wheels
  key=$(wheel_key)
  [[ -f $stamp && $(<"$stamp") == "$key" ]] && return 0
  [[ -x .venv/bin/python ]] || { say "making .venv"; python3 -m venv .venv; }
  wheels=${KVIST_WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/kvist/wheels}/$key
  if compgen -G "$wheels/*.whl" >/dev/null; then
    say "using the wheels built earlier in $wheels"
  else
    make_wheels "$wheels"
  fi
  .venv/bin/python -m pip install -q --no-index --no-deps --force-reinstall "$wheels"/*.whl >&2
  rm -rf build/release/CMakeCache.txt  # it may name libraries of another set-up
  echo "$key" > "$stamp"
  say "done"
}

install_packages
install_python_side
