#include "lockstep/base/random.hpp"

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "support/catch.hpp"

using lockstep::mix;
using lockstep::SampleRandom;

CATCH_TEST_CASE("The generator yields SplitMix64's published numbers") {
  SampleRandom random(1234567);
  CATCH_CHECK(random.next() == 6457827717110365317u);
  CATCH_CHECK(random.next() == 3203168211198807973u);
  CATCH_CHECK(random.next() == 9817491932198370423u);
}

// The expected numbers below come from a separate implementation in Python, whose integers do not overflow.

CATCH_TEST_CASE("Uniform numbers are the upper 53 bits") {
  SampleRandom random(7);
  CATCH_CHECK(random.uniform() == 0.3898297483912715);
  CATCH_CHECK(random.uniform() == 0.01678829452815611);
  CATCH_CHECK(random.uniform() == 0.9007606806068834);
}

CATCH_TEST_CASE("Whole numbers start at low and stay below high") {
  SampleRandom random(7);
  std::vector<std::int64_t> numbers;
  for (int i = 0; i < 12; ++i) numbers.push_back(random.uniform_int(-3, 4));
  CATCH_CHECK(numbers == std::vector<std::int64_t>{-1, 0, -3, 0, 2, 3, 2, -3, 3, -3, 3, -2});
}

CATCH_TEST_CASE("Whole numbers span the widest range") {
  using Limits = std::numeric_limits<std::int64_t>;
  SampleRandom random(3);
  CATCH_CHECK(random.uniform_int(Limits::min(), Limits::max()) == -7130582611851636755);
  CATCH_CHECK(random.uniform_int(Limits::min(), Limits::max()) == 3694763184872335753);
}

CATCH_TEST_CASE("Whole numbers favour none where 2^64 is no multiple of the range") {
  const std::int64_t third = std::int64_t{1} << 61;
  SampleRandom random(11);
  int in_last_third = 0;
  for (int i = 0; i < 30000; ++i) in_last_third += random.uniform_int(0, 3 * third) >= 2 * third ? 1 : 0;
  // A plain remainder would put a quarter there: 7500.
  CATCH_CHECK(std::abs(in_last_third - 10000) < 300);
}

CATCH_TEST_CASE("Normal numbers follow the polar method") {
  SampleRandom random(7);
  CATCH_CHECK(random.normal() == Approx(-0.04174152338145233).epsilon(1e-14));
  CATCH_CHECK(random.normal() == Approx(0.8764814690994567).epsilon(1e-14));
  CATCH_CHECK(random.normal() == Approx(-0.3059911682027957).epsilon(1e-14));
}

CATCH_TEST_CASE("A sample's seed depends on seed, epoch and index") {
  CATCH_CHECK(mix(7, 0, 0) == 11241344834629033336u);
  CATCH_CHECK(mix(7, 1, 0) == 8075172986249684972u);
  CATCH_CHECK(mix(7, 0, 1) == 17770702679626417888u);
  CATCH_CHECK(mix(0, 0, 0) == 2558736989570252433u);
  CATCH_CHECK(mix(7, 0, -1) == 17819649695920780886u);
}

CATCH_TEST_CASE("Neighbouring seeds, epochs and indices share no sample seed") {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    for (std::int64_t epoch = 0; epoch < 10; ++epoch) {
      for (std::int64_t index = 0; index < 100; ++index) seeds.insert(mix(seed, epoch, index));
    }
  }
  CATCH_CHECK(seeds.size() == 10000);
}
