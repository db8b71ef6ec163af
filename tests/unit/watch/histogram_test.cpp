#include "lockstep/watch/histogram.hpp"

#include <algorithm>
#include <limits>

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("bucket limits are those of the writer that comes with Torch, open at both ends") {
  // torch.utils.tensorboard has 1549 of them, from -9.920775621859783e+19.
  const auto& limits = default_bucket_limits();
  CATCH_REQUIRE(limits.size() == 1549 + 2);
  CATCH_CHECK(limits[1] == Approx(-9.920775621859783e+19).epsilon(1e-12));
  CATCH_CHECK(limits[774] == -1e-12);
  CATCH_CHECK(limits[775] == 0);
  CATCH_CHECK(limits[776] == 1e-12);
  CATCH_CHECK(limits[777] == 1.1000000000000002e-12);
  CATCH_CHECK(limits.front() == std::numeric_limits<double>::lowest());
  CATCH_CHECK(limits.back() == std::numeric_limits<double>::max());
  CATCH_CHECK(std::is_sorted(limits.begin(), limits.end()));
}
