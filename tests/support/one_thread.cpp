// Torch on one thread before main() begins, so that a test may fork: a child of a process that once ran a parallel
// region on two threads would hang in its own.
#include <ATen/Parallel.h>

namespace {
[[maybe_unused]] const bool one_thread = (at::set_num_threads(1), true);
}  // namespace
