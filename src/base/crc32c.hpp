// CRC-32C (Castagnoli), the checksum of checkpoints and of TensorBoard records.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

/// The CRC-32C of `size` bytes. `previous` is the result for the bytes before them, so that a long text can
/// be taken in parts. Uses the processor's instruction where there is one. Source: RFC 3720, appendix B.4
/// (polynomial 0x1EDC6F41, reflected 0x82F63B78).
[[nodiscard]] std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t previous = 0);

/// The CRC-32C of the last `size` bytes of a text alone: `before` is the checksum of what precedes them,
/// `after` that of the whole text. Takes well under a microsecond, so that the checksums of parts come with that of
/// the whole. Source: a checksum's register is a polynomial over GF(2), and a byte multiplies it by x^8.
[[nodiscard]] std::uint32_t crc32c_of_last(std::uint32_t before, std::uint32_t after, std::uint64_t size);

/// The same as crc32c() from tables alone, for processors without the instruction.
[[nodiscard]] std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t previous = 0);

}  // namespace lockstep
