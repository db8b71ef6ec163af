#include "files/staging.hpp"

#include <string>

#include "support/catch.hpp"
#include "support/small_checkpoint.hpp"
#include "tensors/safetensors_format.hpp"

using namespace lockstep;

namespace {

/// Tensors as they occur: parts of one flat buffer, another order of strides, a negated view, one that is there twice,
/// every size from nothing up.
NamedTensors various() {
  const auto flat = torch::arange(100, torch::kFloat);
  const auto tied = torch::randn({5}, torch::kDouble);
  return {{"a", flat.slice(0, 0, 40).view({5, 8})},
          {"b", flat.slice(0, 64, 80)},
          {"c", torch::randn({3, 4, 5}).permute({2, 0, 1})},
          {"d", torch::arange(6).view({2, 3}).t()},
          {"e", torch::_neg_view(torch::randn({3}))},
          {"f", tied},
          {"g", tied},
          {"h", torch::empty({0, 3})},
          {"i", torch::tensor(7, torch::kLong)},
          {"j", torch::randn({9}).to(torch::kBFloat16)},
          {"k", torch::tensor({true, false, true})},
          {"l", torch::randn({2, 2}).requires_grad_()},
          {"m", torch::zeros({}).expand({4})}};
}

std::string bytes(const NamedTensors& tensors) { return safetensors_bytes({tensors}); }

std::ptrdiff_t apart(const NamedTensors& tensors, std::size_t one, std::size_t other) {
  return static_cast<const char*>(tensors.at(other).second.const_data_ptr()) -
         static_cast<const char*>(tensors.at(one).second.const_data_ptr());
}

}  // namespace

CATCH_TEST_CASE("what is staged is written as what it was made of, byte for byte") {
  Staging staging;
  auto checkpoint = test::small_checkpoint(3);
  checkpoint.model = various();
  checkpoint.ema = various();
  checkpoint.objective = various();
  checkpoint.registered = various();
  checkpoint.other_ranks = {"some bytes"};
  const Checkpoint staged = staging.stage(checkpoint);
  CATCH_CHECK(bytes(staged.model) == bytes(checkpoint.model));
  CATCH_CHECK(bytes(staged.ema) == bytes(checkpoint.ema));
  CATCH_CHECK(bytes(staged.optimizer) == bytes(checkpoint.optimizer));
  CATCH_CHECK(bytes(staged.objective) == bytes(checkpoint.objective));
  CATCH_CHECK(bytes(staged.registered) == bytes(checkpoint.registered));
  CATCH_CHECK(bytes(staged.rank) == bytes(checkpoint.rank));
  CATCH_CHECK(staged.other_ranks == checkpoint.other_ranks);
  CATCH_CHECK(staged.manifest == checkpoint.manifest);
}

CATCH_TEST_CASE("what is staged stays as it is when training goes on") {
  Staging staging;
  Checkpoint checkpoint;
  checkpoint.model = various();
  const Checkpoint staged = staging.stage(checkpoint);
  const std::string before = bytes(staged.model);
  for (auto& [name, tensor] : checkpoint.model) {
    if (name != "m") tensor.detach().zero_();
  }
  CATCH_CHECK(bytes(staged.model) == before);
}

CATCH_TEST_CASE("staging needs no other memory for the next state, and more for a larger one") {
  Staging staging;
  const auto place = [&staging](std::int64_t elements) {
    Checkpoint checkpoint;
    checkpoint.model = {{"w", torch::ones({elements})}};
    const auto staged = staging.stage(checkpoint);
    CATCH_CHECK(staged.model.at(0).second.sum().item<double>() == static_cast<double>(elements));
    return staged.model.at(0).second.const_data_ptr();
  };
  const void* const first = place(1000);
  CATCH_CHECK(place(1000) == first);
  CATCH_CHECK(place(500) == first);
  (void)place(std::int64_t{5} << 20);
}

CATCH_TEST_CASE("tensors of one buffer are copied together, and a small part of a large one is not") {
  Staging staging;
  const auto flat = torch::arange(1000, torch::kFloat);
  Checkpoint checkpoint;
  checkpoint.model = {{"a", flat.slice(0, 0, 400)}, {"b", flat.slice(0, 416, 1000)}};
  checkpoint.optimizer = {{"c", torch::zeros({1000}).slice(0, 0, 10)}};
  const auto other = torch::zeros({100000});
  checkpoint.ema = {{"d", other.slice(0, 0, 10)}, {"e", other.slice(0, 90000, 90010)}};
  const Checkpoint staged = staging.stage(checkpoint);
  CATCH_CHECK(apart(staged.model, 0, 1) == apart(checkpoint.model, 0, 1));
  CATCH_CHECK(apart(staged.ema, 0, 1) < 1000);
}

CATCH_TEST_CASE("what no file can hold is left for the writer to refuse") {
  Staging staging;
  Checkpoint checkpoint;
  checkpoint.model = {{"undefined", at::Tensor()}, {"sparse", torch::eye(2).to_sparse()}};
  const Checkpoint staged = staging.stage(checkpoint);
  CATCH_CHECK_FALSE(staged.model.at(0).second.defined());
  CATCH_CHECK(staged.model.at(1).second.is_sparse());
}
