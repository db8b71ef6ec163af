#include "invariants/cases.hpp"

namespace lockstep::test {
namespace {

CATCH_TEMPLATE_TEST_CASE("the number of loader threads changes no bit", "", Follow, Ledger, Mlp, Cnn, OddFlat,
                         OddSeparate) {
  check_in_every_precision<TestType>([](const auto& c) { return testing::check_workers(c); });
}

/// Draws its noise from a generator of the calling thread's, as a random transform without a seed would.
struct ThreadNoise : NoisyPoints {
  using NoisyPoints::NoisyPoints;
  Example get(std::int64_t index, std::uint64_t sample_seed) const {
    thread_local SampleRandom random(1);
    auto sample = NoisyPoints::get(index, sample_seed);
    sample.data += random.uniform();
    return sample;
  }
};
struct UnseededAugmentation : Mlp {
  ThreadNoise train_set() const { return {42, {6}}; }
};

CATCH_TEST_CASE("augmentation that does not follow from the sample's seed is found out by workers") {
  const auto finding = testing::check_workers(UnseededAugmentation());
  CATCH_CHECK_THAT(finding.difference, Catch::Matchers::StartsWith("1 loader threads: "));
}

}  // namespace
}  // namespace lockstep::test
