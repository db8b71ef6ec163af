#include "lockstep/tensors/random_state.hpp"

#include <stdexcept>

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("a restored generator draws the same numbers again, of every kind") {
  torch::manual_seed(5);
  (void)torch::randn({3});  // half of a pair of normal numbers is now kept for the next draw
  const auto state = random_state(at::kCPU);
  CATCH_REQUIRE(state.size() == 1);
  CATCH_CHECK(state[0].first == "generator.cpu");

  const auto draw = [] {
    return torch::cat({torch::rand({5}), torch::randn({5}), torch::randperm(5).to(torch::kFloat)});
  };
  const auto first = draw();
  CATCH_CHECK_FALSE(torch::equal(draw(), first));
  set_random_state(state, at::kCPU);
  CATCH_CHECK(torch::equal(draw(), first));
}

CATCH_TEST_CASE("a saved state does not move with the generator") {
  const auto state = random_state(at::kCPU);
  const auto copy = state[0].second.clone();
  (void)torch::rand({1000});
  CATCH_CHECK(torch::equal(state[0].second, copy));
}

CATCH_TEST_CASE("a state without this generator's name changes nothing") {
  torch::manual_seed(1);
  const auto before = random_state(at::kCPU);
  set_random_state({{"generator.other", torch::zeros({8}, torch::kByte)}}, at::kCPU);
  CATCH_CHECK(sha256(random_state(at::kCPU)) == sha256(before));
}

CATCH_TEST_CASE("copies of generators put back what was there, as often as wanted, and later draws do not change them") {
  torch::manual_seed(6);
  (void)torch::randn({3});
  const GeneratorCopies copies(at::kCPU);
  const auto before = sha256(random_state(at::kCPU));
  for (int i = 0; i < 2; ++i) {
    (void)torch::randn({1001});
    CATCH_CHECK(sha256(random_state(at::kCPU)) != before);
    copies.put_back();
    CATCH_CHECK(sha256(random_state(at::kCPU)) == before);
  }
  GeneratorCopies().put_back();
  CATCH_CHECK(sha256(random_state(at::kCPU)) == before);
}

CATCH_TEST_CASE("a guard puts the generator back, on an exception too") {
  torch::manual_seed(9);
  const auto expected = torch::rand({4});
  torch::manual_seed(9);
  try {
    const RandomStateGuard guard(at::kCPU);
    (void)torch::rand({100});
    throw std::runtime_error("inside");
  } catch (const std::runtime_error&) {
  }
  CATCH_CHECK(torch::equal(torch::rand({4}), expected));
}
