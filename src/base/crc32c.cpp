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

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// Row 0 advances by one byte; row k by one byte followed by k zero bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) ? 0x82F63B78u : 0u);
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

}  // namespace lockstep
