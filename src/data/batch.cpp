#include "lockstep/data/batch.hpp"

namespace lockstep::detail {

at::Tensor move_tensor(const at::Tensor& tensor, const Placement& placement) {
  if (!tensor.defined()) return tensor;
  const bool cast = placement.floating && at::isFloatingType(tensor.scalar_type());
  const at::ScalarType type = cast ? *placement.floating : tensor.scalar_type();
  if (tensor.device() == placement.device && tensor.scalar_type() == type) return tensor;
  if (!(tensor.is_cpu() && placement.device.is_cuda())) return tensor.to(placement.device, type);
  // From pageable memory the host would wait until the device is through with all that came before. The cast
  // comes first, since one on the way would make a pageable copy again.
  const at::Tensor source = tensor.to(type);
  return (source.is_pinned() ? source : source.pin_memory()).to(placement.device, /*non_blocking=*/true);
}

}  // namespace lockstep::detail
