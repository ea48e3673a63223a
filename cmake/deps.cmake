# SPDX-License-Identifier: MIT
# Finds what kvist stands on. ggml and llama come from CMAKE_PREFIX_PATH when the user has them, else from .venv.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
find_library(KVIST_HWY hwy REQUIRED)
find_library(KVIST_HWY_TEST hwy_contrib)
find_library(KVIST_XXHASH xxhash REQUIRED)
# oneDNN, optional: bf16 products on AMX tiles, which ggml does without.
option(KVIST_DNNL "use oneDNN where it is installed" ON)
find_library(KVIST_DNNL_LIBRARY dnnl)
find_path(KVIST_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp)

set(KVIST_GGML_TRIED "0.25.3")  # the versions of ggml that our tests have run against
file(GLOB KVIST_VENV_SITE "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages")
list(APPEND CMAKE_PREFIX_PATH ${KVIST_VENV_SITE})
find_package(ggml CONFIG REQUIRED)
find_package(llama CONFIG REQUIRED)
if(NOT ggml_VERSION IN_LIST KVIST_GGML_TRIED)
  message(WARNING "ggml ${ggml_VERSION} found (${ggml_DIR}); kvist has been tried with ${KVIST_GGML_TRIED} only")
endif()

execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} describe --always --dirty --abbrev=12
  OUTPUT_VARIABLE KVIST_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT KVIST_COMMIT)
  set(KVIST_COMMIT "unknown")
endif()
