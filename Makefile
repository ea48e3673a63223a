# SPDX-License-Identifier: MIT
# The two commands of a first visit, `make demo` and `make test`, and what they are made of.
BUILD := build/release
JOBS ?= $(shell nproc)
# A llama.cpp of yours, as a CMake prefix: make LLAMA=/opt/llama.cpp demo
export LLAMA ?=

.PHONY: demo test build setup format format-check clean
demo: build
	@tools/demo.sh $(BUILD)/kvist

test: build
	ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure --no-tests=error

build: setup
	@test -f $(BUILD)/build.ninja -a -f $(BUILD)/CMakeCache.txt || \
	  cmake --preset release $(if $(LLAMA),-DCMAKE_PREFIX_PATH=$(LLAMA))
	@ninja -C $(BUILD) -j $(JOBS)
	@tools/calibrate.sh $(BUILD)/kvist

setup:
	@tools/setup.sh

format:
	git ls-files '*.h' '*.cc' | xargs clang-format -i

format-check:
	tools/check_format.sh

clean:
	rm -rf build
