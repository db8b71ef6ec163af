#include "lockstep/tensors/safetensors.hpp"

#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/file_size_limit.hpp"
#include "support/file_text.hpp"
#include "support/python.hpp"
#include "support/temporary_directory.hpp"

namespace fs = std::filesystem;
using namespace lockstep;
using namespace lockstep::test;

namespace {

const std::vector<at::ScalarType> all_types = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                               at::kInt,    at::kShort, at::kChar, at::kByte,     at::kBool};

// The header's length, the header as it is given, and the data.
std::string file_text(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + header + data;
}

// The text of the error `damaged-safetensors` that reading `path` gives, "" if it can be read, else another
// error.
std::string damage_of(const fs::path& path, const FileDigest* digest = nullptr) {
  try {
    read_safetensors(path, digest);
  } catch (const CheckpointError& error) {
    const std::string what = error.what();
    const bool named = error.id() == "damaged-safetensors" && what.find(path.string()) != std::string::npos;
    return named ? what : "other: " + what;
  } catch (const std::exception& error) {
    return std::string("other: ") + error.what();
  }
  return "";
}

std::string damage_of_text(const std::string& text) {
  const TemporaryDirectory directory;
  write_text(directory.path() / "file", text);
  return damage_of(directory.path() / "file");
}

template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool same(const at::Tensor& left, const at::Tensor& right) {
  return left.scalar_type() == right.scalar_type() && left.sizes() == right.sizes() && at::equal(left, right);
}

// What tests/support/safetensors_exchange.py writes and expects.
SafetensorsFile exchanged() {
  SafetensorsFile file;
  const std::vector<std::string> names = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    file.tensors.emplace_back(names[i], (torch::arange(6).reshape({2, 3}) - 2).to(all_types[i]));
  }
  file.tensors.emplace_back("U8", (torch::arange(6).reshape({2, 3}) + 250).to(torch::kByte));
  file.tensors.emplace_back("BOOL", torch::tensor({1, 0, 1, 0, 0, 1}).reshape({2, 3}).to(torch::kBool));
  file.tensors.emplace_back("scalar", torch::tensor(0.5f));
  file.tensors.emplace_back("empty", torch::zeros({2, 0, 3}, torch::kLong));
  file.metadata = {{"writer", "lockstep \xe2\x98\x83"}, {"empty", ""}};
  return file;
}

void exchange(const std::string& action, const fs::path& path) {
  run_python("safetensors_exchange.py", action + " '" + path.string() + "'");
}

}  // namespace

CATCH_TEST_CASE("A safetensors file has the bytes that the format prescribes") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "golden.safetensors";
  const auto digest = write_safetensors(
      path,
      {{{"w", torch::tensor({1.0f, -2.0f})}, {"n", torch::tensor(258, torch::kShort)}}, {{"by", "us"}}});
  const std::string header =
      "{\"__metadata__\":{\"by\":\"us\"},\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"n\":{\"dtype\":\"I16\",\"shape\":[],\"data_offsets\":[8,10]}}  ";
  CATCH_REQUIRE(header.size() == 136);
  const std::string golden = std::string("\x88\0\0\0\0\0\0\0", 8) + header +
                             std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0\x02\x01", 10);
  CATCH_CHECK(read_text(path) == golden);
  CATCH_CHECK(digest.size == golden.size());
}

CATCH_TEST_CASE("A safetensors header is padded with spaces to a multiple of 8 bytes") {
  const TemporaryDirectory directory;
  for (int length = 1; length <= 8; ++length) {
    const auto path = directory.path() / std::to_string(length);
    write_safetensors(path, {{{std::string(length, 'x'), torch::zeros({1}, torch::kByte)}}});
    const std::string text = read_text(path);
    const auto padded = static_cast<unsigned char>(text[0]);
    CATCH_CHECK(padded % 8 == 0);
    CATCH_CHECK(text.size() == 8u + padded + 1);
    CATCH_CHECK(text.substr(text.find("}}") + 2, 8 + padded - text.find("}}") - 2).find_first_not_of(' ') ==
                std::string::npos);
  }
}

CATCH_TEST_CASE("Tensors of every type, empty ones and ones without dimensions come back as they were") {
  const TemporaryDirectory directory;
  NamedTensors tensors;
  for (const auto type : all_types) {
    const std::string name = c10::toString(type);
    tensors.emplace_back(name, torch::randint(0, type == at::kBool ? 2 : 100, {3, 5}).to(type));
    tensors.emplace_back(name + ".scalar", torch::tensor(1).to(type));
    tensors.emplace_back(name + ".empty", torch::empty({4, 0}, type));
  }
  const auto digest = write_safetensors(directory.path() / "file", {tensors, {{"key", "value"}}});
  const auto file = read_safetensors(directory.path() / "file", &digest);
  CATCH_CHECK(file.metadata == std::map<std::string, std::string>{{"key", "value"}});
  CATCH_REQUIRE(file.tensors.size() == tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    CATCH_INFO(tensors[i].first);
    CATCH_CHECK(file.tensors[i].first == tensors[i].first);
    CATCH_CHECK(same(file.tensors[i].second, tensors[i].second));
    CATCH_CHECK(file.tensors[i].second.is_contiguous());
  }
}

CATCH_TEST_CASE("Bits of numbers that are not finite are kept") {
  const TemporaryDirectory directory;
  const auto bits = torch::tensor({0x7fc00001, 0x7f800000, static_cast<int>(0x80000000)}, torch::kInt);
  write_safetensors(directory.path() / "file", {{{"x", bits.view(torch::kFloat)}}});
  CATCH_CHECK(
      at::equal(read_safetensors(directory.path() / "file").tensors[0].second.view(torch::kInt), bits));
}

CATCH_TEST_CASE("Tensors that are views, negated in place or need gradients are written by their values") {
  const TemporaryDirectory directory;
  const auto base = torch::arange(24, torch::kFloat).reshape({4, 6}).requires_grad_();
  const auto negated = at::_neg_view(torch::tensor({1.f, 2.f, 3.f}));
  CATCH_REQUIRE(negated.is_neg());
  write_safetensors(directory.path() / "file", {{{"t", base.t()},
                                                 {"s", base.slice(1, 1, 6, 2)},
                                                 {"e", torch::ones({1}).expand({3})},
                                                 {"n", negated}}});
  const auto tensors = read_safetensors(directory.path() / "file").tensors;
  CATCH_CHECK(tensors[0].second[1][2].item<float>() == 13);  // row 2, column 1
  CATCH_CHECK(same(tensors[1].second[0], torch::tensor({1.f, 3.f, 5.f})));
  CATCH_CHECK(same(tensors[2].second, torch::tensor({1.f, 1.f, 1.f})));
  CATCH_CHECK(same(tensors[3].second, torch::tensor({-1.f, -2.f, -3.f})));
}

CATCH_TEST_CASE("Python's safetensors reads what is written here (LOCKSTEP_TEST_PYTHON)") {
  const TemporaryDirectory directory;
  write_safetensors(directory.path() / "file", exchanged());
  exchange("check", directory.path() / "file");
}

CATCH_TEST_CASE("What Python's safetensors writes is read here (LOCKSTEP_TEST_PYTHON)") {
  const TemporaryDirectory directory;
  exchange("write", directory.path() / "file");
  const auto file = read_safetensors(directory.path() / "file");
  const auto expected = exchanged();
  CATCH_CHECK(file.metadata == expected.metadata);
  CATCH_REQUIRE(file.tensors.size() == expected.tensors.size());
  const std::map<std::string, at::Tensor> found(file.tensors.begin(), file.tensors.end());
  for (const auto& [name, tensor] : expected.tensors) {
    CATCH_INFO(name);
    CATCH_CHECK(same(found.at(name), tensor));
  }
}

CATCH_TEST_CASE("Tensors that the format cannot hold are refused before a file exists") {
  const TemporaryDirectory directory;
  const auto one = torch::ones({1});
  const auto refusal = [&](const NamedTensors& tensors) {
    const std::string error = error_of([&] { write_safetensors(directory.path() / "file", {tensors}); });
    CATCH_CHECK(fs::is_empty(directory.path()));
    return error.substr(0, error.find(';'));
  };
  const std::string begin = "[cannot-store-tensor] tensor ";
  CATCH_CHECK(refusal({{"a", one}, {"a", one}}) ==
              begin + "\"a\" cannot be stored: another one has the same name");
  CATCH_CHECK(refusal({{"u", at::Tensor()}}) == begin + "\"u\" cannot be stored: it is undefined");
  CATCH_CHECK(refusal({{"c", torch::zeros({1}, torch::kComplexFloat)}}) ==
              begin + "\"c\" cannot be stored: its type ComplexFloat has no place in a safetensors file");
  CATCH_CHECK(refusal({{"s", one.to_sparse()}}) == begin + "\"s\" cannot be stored: it is sparse");
  CATCH_CHECK(refusal({{"__metadata__", one}}) ==
              begin + "\"__metadata__\" cannot be stored: the format keeps this name for itself.");
  CATCH_CHECK(refusal({{"\xff", one}}) == begin + "\"\xff\" cannot be stored: its name is not valid UTF-8");
}

CATCH_TEST_CASE(
    "A safetensors file is never written over another, and none is left after a failure (RLIMIT_FSIZE)") {
  const TemporaryDirectory directory;
  write_text(directory.path() / "old", "old");
  CATCH_CHECK(error_of([&] { write_safetensors(directory.path() / "old", {}); }).find("File exists") !=
              std::string::npos);
  CATCH_CHECK(read_text(directory.path() / "old") == "old");
  const FileSizeLimit limit(500);
  CATCH_CHECK(error_of([&] {
                write_safetensors(directory.path() / "new", {{{"x", torch::ones({1000})}}});
              }).find("[cannot-write-file]") == 0);
  CATCH_CHECK(!fs::exists(directory.path() / "new"));
}

CATCH_TEST_CASE("A file that is not there is an error with its path") {
  CATCH_CHECK(error_of([] { read_safetensors("/nowhere/x.safetensors"); }) ==
              "[cannot-read-file] cannot read /nowhere/x.safetensors: No such file or directory. Check the "
              "spelling of the path.");
}

CATCH_TEST_CASE("A safetensors file cut at any byte is refused") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "file";
  const std::string whole =
      file_text("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", "abc");
  write_text(path, whole);
  CATCH_REQUIRE(damage_of(path) == "");
  for (std::size_t size = whole.size(); size-- > 0;) {
    fs::resize_file(path, size);
    CATCH_INFO("cut after " << size << " bytes");
    CATCH_CHECK(damage_of(path).starts_with("[damaged-safetensors]"));
  }
}

CATCH_TEST_CASE(
    "A flipped bit gives other tensors or the error, never a crash; with the digest always the error") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "file";
  const auto digest = write_safetensors(
      path, {{{"a", torch::arange(3, torch::kByte)}, {"b", torch::ones({2, 1})}}, {{"k", "v"}}});
  const std::string whole = read_text(path);
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    const std::size_t byte = bit / 8;
    write_byte(path, byte, static_cast<char>(whole[byte] ^ (1 << bit % 8)));
    CATCH_INFO("bit " << bit);
    CATCH_CHECK(!damage_of(path).starts_with("other"));
    CATCH_CHECK(damage_of(path, &digest).starts_with("[damaged-safetensors]"));
    write_byte(path, byte, whole[byte]);
  }
  CATCH_CHECK(damage_of(path, &digest) == "");
}

CATCH_TEST_CASE("Hostile safetensors files are refused with what is wrong") {
  const auto entry = [](const std::string& shape, const std::string& offsets,
                        const std::string& dtype = "U8") {
    return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  const std::string good = entry("[1]", "[0,1]");
  struct Case {
    std::string text;
    std::string expected;
  };
  std::string many_dimensions = "[1";
  for (int i = 0; i < 64; ++i) many_dimensions += ",1";
  const std::vector<Case> cases = {
      {"", "fewer than 8 bytes"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8), "beyond 100 MB"},
      {std::string("\x00\xe1\xf5\x05\x00\x00\x00\x00", 8), "longer than the file"},
      {std::string("\x01\xe1\xf5\x05\x00\x00\x00\x00", 8), "beyond 100 MB"},
      {std::string("\x80\x02}q\x00X\x01\x00\x00\x00wq\x01K\x01s.", 17), "beyond 100 MB"},  // a pickle
      {file_text("[]"), "begin with {"},
      {file_text(" {}"), "begin with {"},
      {file_text("\xef\xbb\xbf{}"), "begin with {"},
      {file_text(std::string("{}\0", 3)), "zero byte"},
      {file_text("{} x"), "no valid JSON at byte 4"},
      {file_text("{\"a\xff\":" + good + "}", "x"), "no valid JSON"},
      {file_text("{}", "x"), "bytes after the last tensor"},
      {file_text("{\"a\":1}"), "the header has a number where"},
      {file_text("{\"a\":" + good + ",\"a\":" + good + "}", "x"), "the name \"a\" appears twice"},
      {file_text("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}"), "the name \"dtype\" appears twice"},
      {file_text("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}"), "the name \"k\" appears twice"},
      {file_text("{\"__metadata__\":{\"k\":1}}"), "the header has a number where"},
      {file_text("{\"__metadata__\":{\"k\":{}}}"), "the header has an object where"},
      {file_text("{\"a\":{}}"), "lacks dtype"},
      {file_text("{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}"), "lacks dtype, shape or data_offsets"},
      {file_text("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}}"),
       "unknown member \"x\""},
      {file_text("{\"a\":" + entry("[1]", "[0,1]", "F8") + "}", "x"), "unknown dtype \"F8\""},
      {file_text("{\"a\":{\"dtype\":[\"U8\"]}}"), "has an array where"},
      {file_text("{\"a\":" + entry("3", "[0,3]") + "}", "abc"), "has a number where"},
      {file_text("{\"a\":" + entry("[-1]", "[0,1]") + "}", "x"), "a negative number"},
      {file_text("{\"a\":" + entry("[1.0]", "[0,1]") + "}", "x"), "not a whole one"},
      {file_text("{\"a\":" + entry("[[1]]", "[0,1]") + "}", "x"), "has an array where"},
      {file_text("{\"a\":" + entry("[18446744073709551616]", "[0,1]") + "}", "x"), "not a whole one"},
      {file_text("{\"a\":" + entry("[9223372036854775808]", "[0,1]") + "}", "x"), "beyond 2^63"},
      {file_text("{\"a\":" + entry("[1152921504606846976]", "[0,1152921504606846976]") + "}", "x"),
       "beyond the file"},
      {file_text("{\"a\":" + entry("[4294967296,4294967296]", "[0,0]") + "}"), "no memory can hold"},
      {file_text("{\"a\":" + entry("[4294967296,4294967296,0]", "[0,0]") + "}"), "no memory can hold"},
      {file_text("{\"a\":" + entry("[1152921504606846976]", "[0,0]", "F64") + "}"), "no memory can hold"},
      {file_text("{\"a\":" + entry(many_dimensions + "]", "[0,1]") + "}", "x"), "more than 64 dimensions"},
      {file_text("{\"a\":" + entry("[2]", "[0,1]") + "}", "x"), "do not fit its shape"},
      {file_text("{\"a\":" + entry("[1]", "[0]") + "}", "x"), "lacks one of two data_offsets"},
      {file_text("{\"a\":" + entry("[1]", "[0,1,2]") + "}", "x"), "more than two data_offsets"},
      {file_text("{\"a\":" + entry("[1]", "[1,0]") + "}", "x"), "a gap before"},
      {file_text("{\"a\":" + entry("[2]", "[0,2]") + ",\"b\":" + entry("[2]", "[1,3]") + "}", "abc"),
       "overlaps"},
      {file_text("{\"a\":" + entry("[1]", "[0,1]") + ",\"b\":" + entry("[1]", "[2,3]") + "}", "abc"),
       "a gap before"},
      {file_text("{\"a\":" + entry("[1]", "[0,1]") + ",\"b\":" + entry("[1]", "[2,1]") + "}", "ab"),
       "a gap before"},
      {file_text("{\"b\":" + entry("[1]", "[0,1]") + ",\"a\":" + entry("[0]", "[1,0]") + "}", "a"),
       "ends before"},
      {file_text("{\"a\":" + entry("[1]", "[0,1]", "BOOL") + "}", "\x02"), "neither 0 nor 1"},
      {file_text(std::string(1'000'000, '[')), "begin with {"},
      {file_text("{\"a\":" + std::string(1'000'000, '[')), "has an array where"},
      {file_text(("{\"__metadata__\":{\"k\":") + std::string(1'000'000, '{')), "has an object where"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string damage = damage_of_text(text);
    CATCH_INFO("expected: " << expected << "\nfound: " << damage);
    CATCH_CHECK(damage.starts_with("[damaged-safetensors]"));
    CATCH_CHECK(damage.find(expected) != std::string::npos);
  }
}

CATCH_TEST_CASE("Tensors may lie in another order than they are listed") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "file";
  write_text(path, file_text("{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]},"
                             "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
                             "\x01\x02\x03"));
  const auto tensors = read_safetensors(path).tensors;
  CATCH_CHECK(tensors[0].first == "a");
  CATCH_CHECK(tensors[0].second[1].item<int>() == 2);
  CATCH_CHECK(tensors[1].second[0].item<int>() == 3);
}
