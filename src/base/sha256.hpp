// SHA-256, for digests that stand for a whole set of weights or data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep {

/// A SHA-256 that grows with every update(). Source: FIPS 180-4.
class Sha256 {
 public:
  void update(const void* data, std::size_t size);

  /// The digest of all bytes so far, as 64 lower-case hexadecimal digits. More may follow.
  [[nodiscard]] std::string hex_digest() const;

 private:
  void add_block(const unsigned char* block);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> pending_ = {};
  std::uint64_t size_ = 0;
};

}  // namespace lockstep
