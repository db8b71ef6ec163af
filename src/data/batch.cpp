#include "lockstep/data/batch.hpp"

namespace lockstep::detail {

at::Tensor move_tensor(const at::Tensor& tensor, const Placement& placement) {
  if (!tensor.defined()) return tensor;
  const bool cast = placement.floating && at::isFloatingType(tensor.scalar_type());
  // Only from pinned memory does the copy keep its source alive and unread until it is done.
  const bool non_blocking = tensor.device() != placement.device && tensor.is_cpu() && tensor.is_pinned();
  return tensor.to(placement.device, cast ? *placement.floating : tensor.scalar_type(), non_blocking);
}

}  // namespace lockstep::detail
