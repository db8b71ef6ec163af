#include "lockstep/tensors/named_tensors.hpp"

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string_view>

#include "base/sha256.hpp"

namespace lockstep {
namespace {

void add_number(Sha256& sha, std::int64_t value) { sha.update(&value, sizeof value); }

// Length first, so that no two lists of texts give the same bytes.
void add_text(Sha256& sha, std::string_view text) {
  add_number(sha, static_cast<std::int64_t>(text.size()));
  sha.update(text.data(), text.size());
}

}  // namespace

std::string sha256(const NamedTensors& tensors) {
  Sha256 sha;
  for (const auto& [name, tensor] : tensors) {
    add_text(sha, name);
    add_text(sha, c10::toString(tensor.scalar_type()));
    add_number(sha, tensor.dim());
    for (const std::int64_t size : tensor.sizes()) add_number(sha, size);
    const at::Tensor values = tensor.detach().cpu().resolve_neg().resolve_conj().contiguous();
    sha.update(values.const_data_ptr(), values.nbytes());
  }
  return sha.hex_digest();
}

}  // namespace lockstep
