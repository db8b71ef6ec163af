#include "ranks/nccl_backend.hpp"

#ifdef LOCKSTEP_WITH_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>
#endif

namespace lockstep {

#ifdef LOCKSTEP_WITH_NCCL

c10::intrusive_ptr<c10d::Backend> nccl_backend(c10::intrusive_ptr<c10d::Store> store, int rank,
                                               int world_size, std::chrono::milliseconds timeout) {
  // "Clean up only": by default a failed collective ends the process before it could say which rank was lost.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", 0);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank, world_size, std::move(options));
}

#else

c10::intrusive_ptr<c10d::Backend> nccl_backend(c10::intrusive_ptr<c10d::Store>, int, int,
                                               std::chrono::milliseconds) {
  return {};
}

#endif

}  // namespace lockstep
