// SPDX-License-Identifier: MIT
// Tests of .npy files: written files read back, a file of numpy's own bytes, and every refusal by
// name.
#include "kvist/core/npy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"

namespace kvist {
namespace {

namespace fs = std::filesystem;

class Npy : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              str("kvist_npy_test_", getpid(), "_",
                  testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string put(const std::string& content) const {
    std::ofstream(path("x.npy"), std::ios::binary) << content;
    return path("x.npy");
  }
  // A version 1.0 file with this header text and data.
  std::string put(const std::string& header, const std::string& data, char major = 1) const {
    std::string out = "\x93NUMPY";
    out += major;
    out += '\0';
    out += static_cast<char>(header.size() & 0xFF);
    out += static_cast<char>(header.size() >> 8);
    return put(out + header + data);
  }
  // The message with which `file` is refused as an array of float32.
  std::string refusal(const std::string& file, ErrorKind kind = ErrorKind::corrupt) const {
    try {
      NpyFile npy(file, NpyType::float32);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_NE(std::string(error.what()).find(file), std::string::npos) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "not refused";
    return "";
  }
  fs::path folder_;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Npy, ReadsBackWhatItWrites) {
  const std::vector<std::vector<int64_t>> shapes = {{}, {1}, {5}, {2, 3}, {3, 0, 2}, {4, 3, 2, 5}};
  for (const auto& shape : shapes) {
    int64_t n = 1;
    for (int64_t axis : shape) n *= axis;
    std::vector<float> data(static_cast<size_t>(n));
    std::iota(data.begin(), data.end(), 0.5f);
    write_npy(path("a.npy"), NpyType::float32, shape, data.data());
    NpyFile file(path("a.npy"), NpyType::float32);
    EXPECT_EQ(file.shape(), shape);
    const Buffer<float> got = file.read_all<float>();
    EXPECT_TRUE(std::equal(got.begin(), got.end(), data.begin(), data.end()));
    EXPECT_EQ((fs::file_size(path("a.npy")) - data.size() * 4) % 64, 0u);
  }
}

TEST_F(Npy, ReadsSlicesInAnyOrderAndAllTypes) {
  std::vector<double> wide(100);
  std::iota(wide.begin(), wide.end(), 0.25);
  write_npy(path("d.npy"), NpyType::float64, {10, 10}, wide.data());
  NpyFile file(path("d.npy"), NpyType::float64);
  std::vector<double> part(7);
  for (int64_t first : {93, 0, 40}) {
    file.read(first, std::span<double>(part));
    EXPECT_EQ(part[3], static_cast<double>(first) + 3.25);
  }
  const std::vector<uint8_t> bytes = {0, 255, 7};
  write_npy(path("u.npy"), NpyType::uint8, {3}, bytes.data());
  EXPECT_EQ((NpyFile(path("u.npy"), NpyType::uint8).read_all<uint8_t>()[1]), 255);
  const std::vector<int32_t> ints = {-1, 1 << 30};
  write_npy(path("i.npy"), NpyType::int32, {2}, ints.data());
  EXPECT_EQ((NpyFile(path("i.npy"), NpyType::int32).read_all<int32_t>()[0]), -1);
}

TEST_F(Npy, ReadsTheBytesThatNumpySaves) {
  // np.save of np.array([[1, 2]], '<f4'), byte for byte: the header is padded with blanks to 128
  // bytes.
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }";
  header.resize(117, ' ');
  header += '\n';
  const std::string data("\0\0\x80\x3f\0\0\0\x40", 8);
  NpyFile file(put(header, data), NpyType::float32);
  EXPECT_EQ(file.shape(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(file.read_all<float>()[1], 2.0f);
}

TEST_F(Npy, RefusesWhatIsNotAPlainArray) {
  EXPECT_HAS(refusal(path("missing.npy"), ErrorKind::not_found), "no such file");
  EXPECT_HAS(refusal(folder_.string()), "not a regular file");
  EXPECT_HAS(refusal(put("")), "magic");
  EXPECT_HAS(refusal(put("text")), "magic");
  EXPECT_HAS(refusal(put(std::string("\x80\x04\x95", 3))), "a pickle");
  EXPECT_HAS(refusal(put("PK\x03\x04 and so on")), ".npz");
  const std::string ok = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n";
  EXPECT_HAS(refusal(put(ok, "1234", 2)), "version 2.0");
  EXPECT_HAS(refusal(put(ok.substr(0, 20), "")), "text without an end");
  EXPECT_HAS(refusal(put(std::string("\x93NUMPY\x01\x00\x76\x00{'descr'", 18))),
             "cut off after 8 of 118");
}

TEST_F(Npy, RefusesOtherTypesAndOrders) {
  const auto header = [](const char* descr, const char* order, const char* shape) {
    return str("{'descr': ", descr, ", 'fortran_order': ", order, ", 'shape': ", shape, ", }\n");
  };
  EXPECT_HAS(refusal(put(header("'|O'", "False", "(1,)"), "1234")), "Python objects (a pickle");
  EXPECT_HAS(refusal(put(header("'<f8'", "False", "(1,)"), "12345678")), "'<f8'");
  EXPECT_HAS(refusal(put(header("'>f4'", "False", "(1,)"), "1234")), "'>f4'");
  EXPECT_HAS(refusal(put(header("'<f2'", "False", "(2,)"), "1234")),
             "expected a .npy array (version 1.0, C order) of float32");
  EXPECT_HAS(refusal(put(header("[('a', '<f4')]", "False", "(1,)"), "1234")), "structured");
  EXPECT_HAS(refusal(put(header("'<f4'", "True", "(2, 2)"), std::string(16, 'x'))),
             "Fortran order");
  EXPECT_HAS(refusal(put(header("'<f4'", "Maybe", "(1,)"), "1234")), "neither True nor False");
}

TEST_F(Npy, RefusesShapesThatTheFileDoesNotHold) {
  const auto with_shape = [&](const char* shape, size_t bytes) {
    return refusal(put(str("{'descr': '<f4', 'fortran_order': False, 'shape': ", shape, ", }\n"),
                       std::string(bytes, 'x')));
  };
  EXPECT_HAS(with_shape("(2, 2)", 15), "truncated");
  EXPECT_HAS(with_shape("(2, 2)", 17), "bytes after the array");
  EXPECT_HAS(with_shape("(1000000000000,)", 16), "truncated");
  EXPECT_HAS(with_shape("(4294967296, 4294967296)", 16), "absurd shape [4294967296, 4294967296]");
  EXPECT_HAS(with_shape("(99999999999999999999,)", 16), "no size");
  EXPECT_HAS(with_shape("(-1,)", 4), "no size");
  EXPECT_HAS(with_shape("(1, 1, 1, 1, 1, 1, 1, 1, 1)", 4), "more than 8 axes");
  EXPECT_HAS(with_shape("4", 4), "no '('");
}

TEST_F(Npy, DamagedFilesNeverEscapeAsAnythingButErrors) {
  const float values[] = {1, 2, 3, 4, 5, 6};
  write_npy(path("ok.npy"), NpyType::float32, {2, 3}, values);
  std::ifstream in(path("ok.npy"), std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  Rng rng(3);
  int refused = 0;
  for (int round = 0; round < 500; ++round) {
    std::string bad = good;
    for (uint64_t edits = 1 + rng.below(3); edits > 0; --edits) {
      bad[rng.below(bad.size())] = static_cast<char>(rng.below(256));
    }
    if (rng.below(4) == 0) bad.resize(rng.below(bad.size()));
    try {
      NpyFile file(put(bad), NpyType::float32);
      EXPECT_EQ(file.read_all<float>().size(), static_cast<size_t>(file.size()));
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 150);
}

TEST_F(Npy, AnUnwritablePathIsIo) {
  const float x = 0;
  EXPECT_THROW(write_npy(path("no/such/folder.npy"), NpyType::float32, {1}, &x), Error);
}

}  // namespace
}  // namespace kvist
