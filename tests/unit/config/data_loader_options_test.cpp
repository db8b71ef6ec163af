#include "lockstep/config/data_loader_options.hpp"

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("a loader reads one sample after another unless told otherwise") {
  CATCH_REQUIRE(
      DataLoaderOptions{} ==
      DataLoaderOptions{.batch_size = 1, .shuffle = false, .seed = 0, .workers = 0, .drop_last = false,
                        .pin_memory = false, .even_batches = false, .split_batches = false});
  CATCH_REQUIRE_FALSE(DataLoaderOptions{.seed = 1} == DataLoaderOptions{});
}
