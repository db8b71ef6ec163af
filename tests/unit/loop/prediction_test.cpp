#include "lockstep/loop/prediction.hpp"

#include "support/fixtures.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

namespace {

std::vector<double> values(const at::Tensor& tensor) {
  const auto flat = tensor.to(torch::kDouble).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

/// w times each target.
constexpr auto scaled = [](OneWeight& model, const auto& batch) -> at::Tensor {
  return model.w * targets_of(batch);
};

Accelerator in_double() { return Accelerator({.precision = Precision::fp64, .device = at::kCPU}); }

std::string error_of(auto&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

CATCH_TEST_CASE("predictions of a DataLoader stand in the order of the data set, shuffled or not") {
  const auto accelerator = in_double();
  OneWeight model(10);
  const std::vector<double> expected{0, 10, 20, 30, 40, 50, 60};
  for (const bool shuffle : {false, true}) {
    for (const int workers : {0, 2}) {
      auto loader = numbered_loader(7, {.batch_size = 3, .shuffle = shuffle, .seed = 5, .workers = workers});
      CATCH_CHECK(values(predict(accelerator, model, loader, scaled)) == expected);
    }
  }
  const auto padded = numbered_loader(7, {.batch_size = 3, .even_batches = true});
  CATCH_CHECK(values(predict(accelerator, model, padded, scaled)) == expected);
}

CATCH_TEST_CASE("predictions of a range stand in the order of its batches, however many rows each has") {
  const auto accelerator = in_double();
  OneWeight model(2);
  const Batches uneven = batches({{3, 1}, {}, {2}, {5, 4, 0}});
  CATCH_CHECK(values(predict(accelerator, model, uneven, scaled)) == std::vector<double>{6, 2, 4, 10, 8, 0});
}

CATCH_TEST_CASE("what predicts may move its batches itself") {
  struct Mover {
    Example to_device(const Example& batch, const Placement&) { return {batch.data + 1, batch.target}; }
    at::Tensor operator()(OneWeight& model, const Example& batch) { return model.w * batch.data; }
  };
  const auto accelerator = in_double();
  OneWeight model(10);
  const auto loader = numbered_loader(3, {.batch_size = 2});
  CATCH_CHECK(values(predict(accelerator, model, loader, Mover())) == std::vector<double>{10, 20, 30});
}

CATCH_TEST_CASE("several outputs come by name, each with its own type and sizes") {
  const auto accelerator = in_double();
  OneWeight model(1);
  auto loader = numbered_loader(3, {.batch_size = 2});
  const auto outputs = predict(accelerator, model, loader, [](OneWeight&, const Example& batch) -> Outputs {
    return {{"even", batch.data.remainder(2).eq(0)},
            {"pair", torch::stack({batch.data, -batch.data}, 1).to(torch::kInt)}};
  });
  CATCH_REQUIRE(outputs.size() == 2);
  CATCH_CHECK(torch::equal(outputs.at("even"), torch::tensor({true, false, true})));
  CATCH_CHECK(torch::equal(outputs.at("pair"), torch::tensor({{0, 0}, {1, -1}, {2, -2}}, torch::kInt)));
}

CATCH_TEST_CASE("what predicts may fill one tensor again and again, and return what needs a gradient") {
  const auto accelerator = in_double();
  OneWeight model(1);
  auto loader = numbered_loader(4, {.batch_size = 2});
  const auto buffer = torch::zeros({2}, torch::kDouble);
  const auto same = predict(accelerator, model, loader, [&](OneWeight&, const Example& batch) -> at::Tensor {
    return buffer.copy_(batch.data);
  });
  CATCH_CHECK(values(same) == std::vector<double>{0, 1, 2, 3});
  const auto recorded =
      predict(accelerator, model, loader, [](OneWeight& model, const Example& batch) -> at::Tensor {
        const torch::AutoGradMode on(true);
        return model.w * batch.data;
      });
  CATCH_CHECK_FALSE(recorded.requires_grad());
}

CATCH_TEST_CASE(
    "what predicts runs in eval mode, without gradients, under the run's autocast, and modes come back") {
  const Accelerator accelerator({.precision = Precision::bf16_mixed, .device = at::kCPU});
  torch::nn::Sequential model(torch::nn::Dropout(0.5), torch::nn::Linear(2, 1));
  model[0]->eval();
  const Batches set{torch::ones({2, 2})};
  const auto outputs = predict(accelerator, *model, set,
                               [](torch::nn::SequentialImpl& net, const at::Tensor& x) -> at::Tensor {
                                 CATCH_CHECK_FALSE(torch::GradMode::is_enabled());
                                 for (const auto& module : net.modules())
                                   CATCH_CHECK_FALSE(module->is_training());
                                 return net.forward(x);
                               });
  CATCH_CHECK(outputs.scalar_type() == torch::kBFloat16);
  CATCH_CHECK(torch::GradMode::is_enabled());
  CATCH_CHECK(model->is_training());
  CATCH_CHECK_FALSE(model[0]->is_training());
  CATCH_CHECK(model[1]->is_training());
}

CATCH_TEST_CASE(
    "predicting changes no generator and no weight, and a run goes on as if nothing had been predicted") {
  const auto noisy = [](OneWeight& model, const at::Tensor& targets) -> StepOutput {
    return {.loss = (model.w - targets + torch::randn({}, torch::kDouble)).square().mean(),
            .num_samples = targets.numel()};
  };
  const Batches all = numbered_batches(6);
  const auto trained = [&](bool predicting) {
    OneWeightRun run(all, noisy, {.lr = 0.1, .seed = 3});
    (void)run.trainer.train({.max_steps = 3});
    if (predicting) {
      (void)run.trainer.predict(all, [](OneWeight& model, const at::Tensor& targets) -> at::Tensor {
        return model.w + targets + torch::randn({1}, torch::kDouble);
      });
    }
    (void)run.trainer.train({.max_steps = 6});
    return run.w();
  };
  CATCH_CHECK(trained(true) == trained(false));
}

CATCH_TEST_CASE("a Trainer predicts with the weights that are asked for, and has its own again afterwards") {
  OneWeightRun run(numbered_batches(3), ledger, {.ema_decay = 0.5});
  (void)run.trainer.train({.epochs = 1});
  const Batches one = batches({{1}});
  // The weight goes 0, -1, -2, -3; its average 0, -0.5, -1.25, -2.125.
  CATCH_CHECK(values(run.trainer.predict(one, scaled)) == std::vector<double>{-3});
  CATCH_CHECK(values(run.trainer.predict(one, scaled, Weights::ema)) == std::vector<double>{-2.125});
  CATCH_CHECK(run.w() == -3);
  CATCH_CHECK(thrown_id<ConfigError>([&] { (void)run.trainer.predict(one, scaled, Weights::best); }) ==
              "no-best-weights");
}

CATCH_TEST_CASE("outputs that are no row for each sample are refused with their sizes") {
  const auto accelerator = in_double();
  OneWeight model(1);
  auto loader = numbered_loader(4, {.batch_size = 2});
  const auto refused = [&](auto&& function) {
    return error_of([&] { (void)predict(accelerator, model, loader, function); });
  };
  CATCH_CHECK_THAT(refused([](OneWeight&, const Example& batch) -> at::Tensor { return batch.data.mean(); }),
                   Contains("[prediction-rows]") && Contains("the prediction of a batch has the sizes []") &&
                       Contains("2"));
  CATCH_CHECK_THAT(
      refused([](OneWeight&, const Example& batch) -> at::Tensor {
        return batch.data.view({1, 2});
      }),
      Contains("[prediction-rows]") && Contains("the sizes [1, 2]") && Contains("number of samples, 2"));
  CATCH_CHECK_THAT(refused([](OneWeight&, const Example& batch) -> Outputs {
                     return {{"all", batch.data}, {"first", batch.data.slice(0, 0, 1)}};
                   }),
                   Contains("[prediction-rows]") && Contains("\"first\""));
  CATCH_CHECK_THAT(refused([](OneWeight&, const Example&) -> at::Tensor { return {}; }),
                   Contains("[undefined-prediction]"));
  CATCH_CHECK_THAT(refused([](OneWeight&, const Example&) -> Outputs { return {}; }),
                   Contains("[undefined-prediction]"));
  CATCH_CHECK_THAT(refused([](OneWeight&, const Example&) -> Outputs {
                     return {{"logits", {}}};
                   }),
                   Contains("[undefined-prediction]") && Contains("\"logits\""));
  CATCH_CHECK_THAT(
      refused([](OneWeight&, const Example& batch) -> at::Tensor {
        return torch::zeros({2, batch.data[0].item<std::int64_t>() + 1});
      }),
      Contains("[predictions-differ]") && Contains("Float rows of [1]") && Contains("Float rows of [3]"));
}

CATCH_TEST_CASE("a source that leaves samples out, or has none, is refused") {
  const auto accelerator = in_double();
  OneWeight model(1);
  auto dropping = numbered_loader(7, {.batch_size = 3, .drop_last = true});
  CATCH_CHECK_THAT(
      error_of([&] { (void)predict(accelerator, model, dropping, scaled); }),
      Contains("[invalid-settings]") && Contains("drop_last of the DataLoader leaves one sample out"));
  auto whole = numbered_loader(6, {.batch_size = 3, .drop_last = true});
  CATCH_CHECK(predict(accelerator, model, whole, scaled).size(0) == 6);
  const Batches none;
  CATCH_CHECK(thrown_id<DataError>([&] { (void)predict(accelerator, model, none, scaled); }) ==
              "nothing-to-predict");
}
