#include "base/crc32c.hpp"

#include <string>
#include <vector>

#include "support/catch.hpp"

using lockstep::crc32c;
using lockstep::crc32c_portable;

namespace {

struct Vector {
  std::string bytes;
  std::uint32_t expected;
};

// RFC 3720, appendix B.4, and the usual check value.
std::vector<Vector> known_vectors() {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising += static_cast<char>(i);
    falling += static_cast<char>(31 - i);
  }
  return {{"", 0},
          {"123456789", 0xE3069283},
          {std::string(32, '\0'), 0x8A9136AA},
          {std::string(32, '\xff'), 0x62A8AB43},
          {rising, 0x46DD794E},
          {falling, 0x113FDB5C}};
}

}  // namespace

CATCH_TEST_CASE("CRC-32C gives the published values, with the processor's instruction and from tables") {
  for (const auto& [bytes, expected] : known_vectors()) {
    CATCH_CHECK(crc32c(bytes.data(), bytes.size()) == expected);
    CATCH_CHECK(crc32c_portable(bytes.data(), bytes.size()) == expected);
  }
}

CATCH_TEST_CASE("CRC-32C of a text taken in two parts is that of the whole, wherever it is cut") {
  for (const auto& [bytes, expected] : known_vectors()) {
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
      const char* rest = bytes.data() + cut;
      CATCH_CHECK(crc32c(rest, bytes.size() - cut, crc32c(bytes.data(), cut)) == expected);
      CATCH_CHECK(crc32c_portable(rest, bytes.size() - cut, crc32c_portable(bytes.data(), cut)) == expected);
    }
  }
}

CATCH_TEST_CASE("CRC-32C by the processor's instruction is that from tables, of long texts too") {
  std::string text;
  for (std::size_t i = 0; i < 100'000; ++i) text += static_cast<char>(i * i >> 3);
  for (const std::size_t size : {8191, 24'575, 24'576, 24'577, 49'152, 73'731, 100'000}) {
    CATCH_INFO(size << " bytes");
    CATCH_CHECK(crc32c(text.data(), size, 12345) == crc32c_portable(text.data(), size, 12345));
    CATCH_CHECK(crc32c(text.data() + 3, size - 3) == crc32c_portable(text.data() + 3, size - 3));
  }
}

CATCH_TEST_CASE("The checksum of a text's end alone follows from those of its beginning and of the whole") {
  std::string text;
  for (std::size_t i = 0; i < 70'000; ++i) text += static_cast<char>(i * i >> 3);
  for (const std::size_t cut : {0, 1, 2, 1000, 4464, 65'535, 69'999, 70'000}) {
    CATCH_INFO("cut after " << cut);
    CATCH_CHECK(lockstep::crc32c_of_last(crc32c(text.data(), cut), crc32c(text.data(), text.size()), text.size() - cut) ==
                crc32c_portable(text.data() + cut, text.size() - cut));
  }
}
