// The global norm of gradients, and which of them are not finite.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// The 2-norm over all elements of all gradients, on one device. Tensors are summed by rows of 4096 elements and the
/// rows combined in double: one float sum over ten million elements is off by 4e-4, this by 2e-9. (Torch's
/// clip_grad_norm_ takes a norm of each parameter's norm in the parameters' type; so the two differ in their last digits.)
/// Rows of a flat buffer run across parameters. Not finite if an element is not, or if a row's squares overflow. Waits
/// for the device.
[[nodiscard]] double gradient_norm(const std::vector<at::Tensor>& gradients);

/// The same number, [] of doubles on the device of the gradients, of which there is at least one. Waits for nothing.
[[nodiscard]] at::Tensor gradient_norm_on_device(const std::vector<at::Tensor>& gradients);

/// The same in double from the start: finite whenever every element is, and several times slower.
[[nodiscard]] double exact_gradient_norm(const std::vector<at::Tensor>& gradients);

/// The names of the parameters whose gradient has an element that is not finite.
[[nodiscard]] std::vector<std::string> not_finite(const NamedTensors& parameters);

}  // namespace lockstep
