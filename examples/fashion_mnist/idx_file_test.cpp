#include "idx_file.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <zlib.h>

#include <lockstep/base/error.hpp>
#include <string>

#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/temporary_directory.hpp"

using lockstep::test::read_text;
using lockstep::test::TemporaryDirectory;
using lockstep::test::write_text;
using namespace std::string_literals;

namespace {

/// Two rows of three bytes: 0 1 2, 253 254 255.
const std::string small_file = "\0\0\x08\x02\0\0\0\x02\0\0\0\x03\x00\x01\x02\xfd\xfe\xff"s;

at::Tensor small_values() { return at::tensor({0, 1, 2, 253, 254, 255}, at::kByte).view({2, 3}); }

void write_gzip(const std::filesystem::path& path, const std::string& text) {
  gzFile file = gzopen(path.c_str(), "wb");
  CATCH_REQUIRE(file != nullptr);
  CATCH_REQUIRE(gzwrite(file, text.data(), static_cast<unsigned>(text.size())) ==
                static_cast<int>(text.size()));
  CATCH_REQUIRE(gzclose(file) == Z_OK);
}

/// The text of the error, checked to be of the one kind and to name the file and the remedy; "" if there is
/// none.
std::string error_of(const std::filesystem::path& path, at::IntArrayRef shape = {2, 3}) {
  try {
    (void)read_idx(path, shape);
  } catch (const lockstep::DataError& error) {
    const std::string text = error.what();
    CATCH_CHECK(error.id() == "cannot-read-idx");
    CATCH_CHECK(text.find(path.string()) != std::string::npos);
    CATCH_CHECK(text.find("--data-dir") != std::string::npos);
    return text;
  }
  return "";
}

std::string error_of_bytes(const std::string& bytes) {
  const TemporaryDirectory folder;
  write_text(folder.path() / "file", bytes);
  return error_of(folder.path() / "file");
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

CATCH_TEST_CASE("A file is read alike whether it is compressed or not") {
  const TemporaryDirectory folder;
  write_text(folder.path() / "plain", small_file);
  write_gzip(folder.path() / "compressed.gz", small_file);

  CATCH_CHECK(at::equal(read_idx(folder.path() / "plain", {2, 3}), small_values()));
  CATCH_CHECK(at::equal(read_idx(folder.path() / "compressed.gz", {2, 3}), small_values()));
}

CATCH_TEST_CASE("Sizes are read as big-endian numbers of four bytes") {
  const TemporaryDirectory folder;
  write_text(folder.path() / "labels", "\0\0\x08\x01\0\x01\x02\x03"s + std::string(0x010203, '\x07'));

  const at::Tensor labels = read_idx(folder.path() / "labels", {0x010203});
  CATCH_CHECK(labels.sum().item<std::int64_t>() == 7 * 0x010203);
}

CATCH_TEST_CASE("A missing file and a folder are refused with the system's reason") {
  const TemporaryDirectory folder;
  CATCH_CHECK(says(error_of(folder.path() / "absent"), "No such file"));
  CATCH_CHECK(says(error_of(folder.path()), "Is a directory"));
}

CATCH_TEST_CASE("A file that is cut off anywhere is refused") {
  for (std::size_t size = 0; size < small_file.size(); ++size) {
    CATCH_CAPTURE(size);
    const std::string text = error_of_bytes(small_file.substr(0, size));
    CATCH_CHECK(says(text, size < 4 ? "magic number" : size < 12 ? "inside its header" : "of 6 elements"));
  }
}

CATCH_TEST_CASE(
    "A compressed file that is cut off anywhere is refused, and no wrong bit in it is read as data") {
  const TemporaryDirectory folder;
  const auto path = folder.path() / "file.gz";
  write_gzip(path, small_file);
  const std::string whole = read_text(path);

  for (std::size_t size = 0; size < whole.size(); ++size) {
    CATCH_CAPTURE(size);
    write_text(path, whole.substr(0, size));
    CATCH_CHECK(error_of(path) != "");
  }
  constexpr std::size_t gzip_header = 10;
  for (std::size_t bit = 8 * gzip_header; bit < 8 * whole.size(); ++bit) {
    CATCH_CAPTURE(bit);
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    write_text(path, damaged);
    // The compressed data is padded to whole bytes with bits that nobody looks at.
    const std::string text = error_of(path);
    CATCH_CHECK((text != "" || at::equal(read_idx(path, {2, 3}), small_values())));
  }
}

CATCH_TEST_CASE("Bytes after the last element are refused") {
  CATCH_CHECK(says(error_of_bytes(small_file + "\0"s), "after its last element"));
}

CATCH_TEST_CASE("A foreign file is refused by what it is not") {
  CATCH_CHECK(says(error_of_bytes("<!DOCTYPE html><title>404</title>"), "not an IDX file"));
  std::string floats = small_file;
  floats[2] = '\x0d';
  CATCH_CHECK(says(error_of_bytes(floats), "IDX type 13"));
}

CATCH_TEST_CASE("Another shape than the expected one is refused, and both are named") {
  const TemporaryDirectory folder;
  write_text(folder.path() / "file", small_file);
  const std::string text = error_of(folder.path() / "file", {3, 2});
  CATCH_CHECK(says(text, "[2, 3]"));
  CATCH_CHECK(says(text, "[3, 2]"));
  CATCH_CHECK(error_of(folder.path() / "file", {6}) != "");
}
