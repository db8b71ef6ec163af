#include "base/crc32c.hpp"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "words are loaded as they lie in memory");

constexpr std::uint32_t reflected_polynomial = 0x82F63B78u;

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// Row 0 advances by one byte; row k by one byte followed by k zero bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) ? reflected_polynomial : 0u);
    tables[0][byte] = remainder;
  }
  for (std::size_t row = 1; row < tables.size(); ++row) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t shorter = tables[row - 1][byte];
      tables[row][byte] = (shorter >> 8) ^ tables[0][shorter & 0xFF];
    }
  }
  return tables;
}

constexpr Tables tables = make_tables();

// The product of two polynomials modulo the checksum's; the highest bit is the coefficient of x^0.
constexpr std::uint32_t product(std::uint32_t left, std::uint32_t right) {
  std::uint32_t sum = 0;
  for (; left != 0; left <<= 1) {
    if (left & 0x80000000u) sum ^= right;
    right = (right >> 1) ^ ((right & 1) ? reflected_polynomial : 0u);
  }
  return sum;
}

// Entry k is what 2^k bytes multiply a checksum's register by.
constexpr std::array<std::uint32_t, 64> make_powers() {
  std::array<std::uint32_t, 64> powers{0x00800000u};  // x^8
  for (std::size_t k = 1; k < powers.size(); ++k) powers[k] = product(powers[k - 1], powers[k - 1]);
  return powers;
}

constexpr std::array<std::uint32_t, 64> powers = make_powers();

std::uint64_t load_word(const unsigned char* bytes) {
  std::uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(const void* data, std::size_t size,
                                                             std::uint32_t previous) {
  auto bytes = static_cast<const unsigned char*>(data);
  std::uint64_t state = ~previous;
  // An instruction waits for the one before it, so three streams take hardly longer than one.
  constexpr std::size_t power = 13;
  constexpr std::size_t stream = std::size_t{1} << power;
  for (; size >= 3 * stream; size -= 3 * stream, bytes += 3 * stream) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < stream; i += 8) {
      state = _mm_crc32_u64(state, load_word(bytes + i));
      second = _mm_crc32_u64(second, load_word(bytes + stream + i));
      third = _mm_crc32_u64(third, load_word(bytes + 2 * stream + i));
    }
    const auto joined = product(static_cast<std::uint32_t>(state), powers[power]) ^ static_cast<std::uint32_t>(second);
    state = product(joined, powers[power]) ^ static_cast<std::uint32_t>(third);
  }
  for (; size >= 8; size -= 8, bytes += 8) state = _mm_crc32_u64(state, load_word(bytes));
  auto narrow = static_cast<std::uint32_t>(state);
  for (; size > 0; --size, ++bytes) narrow = _mm_crc32_u8(narrow, *bytes);
  return ~narrow;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t previous) {
  auto bytes = static_cast<const unsigned char*>(data);
  std::uint32_t state = ~previous;
  for (; size >= 8; size -= 8, bytes += 8) {
    const std::uint64_t word = load_word(bytes) ^ state;
    state = 0;
    for (std::size_t byte = 0; byte < 8; ++byte) state ^= tables[7 - byte][(word >> (8 * byte)) & 0xFF];
  }
  for (; size > 0; --size, ++bytes) state = (state >> 8) ^ tables[0][(state ^ *bytes) & 0xFF];
  return ~state;
}

std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t previous) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return crc32c_sse42(data, size, previous);
#endif
  return crc32c_portable(data, size, previous);
}

std::uint32_t crc32c_of_last(std::uint32_t before, std::uint32_t after, std::uint64_t size) {
  for (std::size_t k = 0; size != 0; ++k, size >>= 1) {
    if (size & 1) before = product(before, powers[k]);
  }
  return after ^ before;
}

}  // namespace lockstep
