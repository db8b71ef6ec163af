// The main program of the tests that use tensors. One thread, so that a test may fork: a child of a process that once
// ran a parallel region on two threads would hang in its own.
#include <ATen/Parallel.h>
#define CATCH_CONFIG_RUNNER
#include "support/catch.hpp"

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return Catch::Session().run(argc, argv);
}
