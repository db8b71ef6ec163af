#include "lockstep/files/average_weights.hpp"

#include <torch/torch.h>

#include "files/checkpoint_writer.hpp"
#include "lockstep/files/weights_file.hpp"
#include "support/catch.hpp"
#include "support/small_checkpoint.hpp"
#include "support/temporary_directory.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;

CATCH_TEST_CASE("the mean of weights is summed in double, and what is no floating-point number is the last one's") {
  const TemporaryDirectory directory;
  // In float, 2^24 + 1 + 1 stays 2^24.
  const auto path = [&](int i) { return directory.path() / (std::to_string(i) + ".safetensors"); };
  save_weights(path(0), {{"w", torch::tensor({16777216.f})}, {"count", torch::tensor(3)}});
  save_weights(path(1), {{"count", torch::tensor(4)}, {"w", torch::tensor({1.f})}});
  save_weights(path(2), {{"w", torch::tensor({1.f})}, {"count", torch::tensor(9)}});
  save_weights(path(3), {{"w", torch::tensor({-16777216.f})}, {"count", torch::tensor(5)}});
  const auto mean = average_weights({path(0), path(1), path(2), path(3)});
  CATCH_REQUIRE(mean.size() == 2);
  CATCH_CHECK(mean[0].first == "w");
  CATCH_CHECK(at::equal(mean[0].second, torch::tensor({0.5f})));
  CATCH_CHECK(at::equal(mean[1].second, torch::tensor(5)));
}

CATCH_TEST_CASE("raw or averaged weights of checkpoints are averaged, and one alone stays as it is") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  const auto first = writer.save(small_checkpoint(2));
  const auto second = writer.save(small_checkpoint(6));
  CATCH_CHECK(at::equal(average_weights({first, second}).at(0).second, torch::full({3}, 4.f)));
  CATCH_CHECK(at::equal(average_weights({first, second}, Weights::ema).at(0).second, torch::full({3}, 2.f)));
  CATCH_CHECK(at::equal(average_weights({second}).at(0).second, torch::full({3}, 6.f)));
}

CATCH_TEST_CASE("weights that are not alike have no mean, and each difference is named") {
  const TemporaryDirectory directory;
  const auto first = directory.path() / "a.safetensors", second = directory.path() / "b.safetensors";
  save_weights(first, {{"w", torch::ones({2, 3})}, {"old", torch::ones(1)}, {"half", torch::ones(1)}});
  save_weights(second, {{"w", torch::ones({3, 2})}, {"new", torch::ones(1)}, {"half", torch::ones(1, torch::kHalf)}});
  std::string text;
  try {
    (void)average_weights({first, second});
  } catch (const CheckpointError& error) {
    text = error.what();
  }
  CATCH_CHECK(text == "[weights-not-alike] the weights of " + first.string() + " and " + second.string() +
                          " have no mean, because their tensors differ:\n"
                          "  - \"w\" is Float [2, 3] and Float [3, 2].\n"
                          "  - \"old\" is in " + first.string() + " alone.\n"
                          "  - \"half\" is Float [1] and Half [1].\n"
                          "  - \"new\" is in " + second.string() + " alone.\n"
                          "Average checkpoints of one model.");
}

CATCH_TEST_CASE("a checkpoint without averaged weights has none to give") {
  const TemporaryDirectory directory;
  auto given = small_checkpoint(1);
  given.ema.clear();
  const auto folder = CheckpointWriter(directory.path()).save(given);
  CATCH_CHECK(thrown_id<ConfigError>([&] { (void)average_weights({folder}, Weights::ema); }) == "no-averaged-weights");
}
