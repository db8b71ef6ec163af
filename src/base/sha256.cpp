#include "base/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace lockstep {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> round_constants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

}  // namespace

void Sha256::add_block(const unsigned char* block) {
  std::array<std::uint32_t, 64> schedule;
  for (std::size_t i = 0; i < 16; ++i) {
    schedule[i] = std::uint32_t{block[4 * i]} << 24 | std::uint32_t{block[4 * i + 1]} << 16 |
                  std::uint32_t{block[4 * i + 2]} << 8 | std::uint32_t{block[4 * i + 3]};
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t near = schedule[i - 2], far = schedule[i - 15];
    schedule[i] = schedule[i - 16] + (std::rotr(far, 7) ^ std::rotr(far, 18) ^ (far >> 3)) + schedule[i - 7] +
                  (std::rotr(near, 17) ^ std::rotr(near, 19) ^ (near >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t choice = (e & f) ^ (~e & g), majority = (a & b) ^ (a & c) ^ (b & c);
    const std::uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + choice +
                                round_constants[i] + schedule[i];
    const std::uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + majority;
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const std::array<std::uint32_t, 8> change = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += change[i];
}

void Sha256::update(const void* data, std::size_t size) {
  auto bytes = static_cast<const unsigned char*>(data);
  while (size > 0) {
    const std::size_t filled = size_ % pending_.size();
    const std::size_t taken = std::min(size, pending_.size() - filled);
    if (taken == pending_.size()) {
      add_block(bytes);
    } else {
      std::memcpy(pending_.data() + filled, bytes, taken);
      if (filled + taken == pending_.size()) add_block(pending_.data());
    }
    size_ += taken, bytes += taken, size -= taken;
  }
}

std::string Sha256::hex_digest() const {
  Sha256 padded = *this;
  // A one bit, zeros up to eight bytes before a block's end, then the length in bits, big-endian.
  std::array<unsigned char, 72> tail = {0x80};
  const std::size_t zeros_end = 1 + (119 - size_ % 64) % 64;
  for (std::size_t i = 0; i < 8; ++i)
    tail[zeros_end + i] = static_cast<unsigned char>(size_ * 8 >> (56 - 8 * i));
  padded.update(tail.data(), zeros_end + 8);

  std::string hex;
  for (const std::uint32_t word : padded.state_) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 0xF];
  }
  return hex;
}

}  // namespace lockstep
