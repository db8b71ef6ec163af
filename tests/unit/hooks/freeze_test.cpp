#include "lockstep/hooks/freeze.hpp"

#include "support/fixtures.hpp"
#include "support/ranks.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct TwoParts : torch::nn::Module {
  std::shared_ptr<OneWeight> backbone = register_module("backbone", std::make_shared<OneWeight>(1));
  std::shared_ptr<OneWeight> head = register_module("head", std::make_shared<OneWeight>(1));
};

/// The gradient of each part is its weight's own value: any update, and decay alone, would move it.
StepOutput pull(TwoParts& model, const at::Tensor&) {
  return {.loss = (model.backbone->w.square() + model.head->w.square()) / 2, .num_samples = 1};
}

/// The backbone's weight at the end of each epoch of two updates.
std::vector<double> course(FreezeEpochs::Epochs epochs, std::int64_t until = 5,
                           const TrainOptions& options = {}, bool flat = true, LaunchOptions launch = {},
                           std::int64_t batches_an_epoch = 2) {
  Accelerator accelerator({.precision = Precision::fp64,
                           .device = at::kCPU,
                           .launch = launch,
                           .rank_timeout = std::chrono::seconds(20)});
  TwoParts model;
  SGD optimizer(weight_decay_groups(model, 0), {.lr = 0.5, .momentum = 0.9});
  Batches source = numbered_batches(batches_an_epoch);
  FreezeEpochs hook(*model.backbone, epochs);
  std::vector<double> values;
  const HookFunctions look{.epoch_end = [&](Run&) { values.push_back(model.backbone->value()); }};
  Trainer trainer(accelerator, model, optimizer, source, pull,
                  {.flat_parameters = flat, .hooks = {hook, look}});
  trainer.train({.epochs = until}, options);
  values.push_back(model.head->value());
  values.push_back(model.backbone->w.requires_grad() ? 1 : 0);
  return values;
}

}  // namespace

CATCH_TEST_CASE("a part stays as it is in its epochs, momentum and all, and is trained before and after") {
  const bool flat = GENERATE(true, false);
  const auto frozen = course({.begin = 1, .end = 3}, 5, {}, flat);
  const auto free = course({.begin = 100}, 5, {}, flat);
  CATCH_CHECK(frozen[0] == free[0]);
  CATCH_CHECK(frozen[1] == free[0]);
  CATCH_CHECK(frozen[2] == free[0]);
  // As if the epochs between had not been.
  CATCH_CHECK(frozen[3] == free[1]);
  CATCH_CHECK(frozen[4] == free[2]);
  CATCH_CHECK(frozen[5] == free[5]);  // the head
  CATCH_CHECK(frozen[6] == 1);
}

CATCH_TEST_CASE("a part that is frozen to the end is as it was, and is trainable afterwards") {
  const auto values = course({});
  CATCH_CHECK(values[4] == 1);
  CATCH_CHECK(values[6] == 1);
}

CATCH_TEST_CASE("a run that is resumed in a frozen epoch goes on as one that was not interrupted") {
  const TemporaryDirectory folder;
  const auto whole = course({.begin = 1, .end = 3});
  (void)course({.begin = 1, .end = 3}, 2, {.checkpoint_dir = folder.path()});
  const auto resumed =
      course({.begin = 1, .end = 3}, 5, {.checkpoint_dir = folder.path(), .resume_from = latest});
  CATCH_CHECK(resumed == std::vector<double>(whole.begin() + 2, whole.end()));
}

CATCH_TEST_CASE("ranks freeze and train a part together") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    std::string text;
    for (const double value : course({.begin = 1, .end = 3}, 5, {}, true, rank.launch(), 4))
      text += std::to_string(value) + " ";
    return text;
  });
  CATCH_CAPTURE(ranks.report());
  std::string alone;
  for (const double value : course({.begin = 1, .end = 3})) alone += std::to_string(value) + " ";
  CATCH_CHECK(ranks.same_text() == alone);
}

CATCH_TEST_CASE("freeze() takes a module's parameters out of training, unfreeze() puts them back") {
  TwoParts model;
  freeze(*model.backbone);
  CATCH_CHECK(trainable_parameters(model).size() == 1);
  CATCH_CHECK(trainable_parameters(model)[0].first == "head.w");
  unfreeze(*model.backbone);
  CATCH_CHECK(trainable_parameters(model).size() == 2);
}

CATCH_TEST_CASE("epochs that cannot be are refused") {
  TwoParts model;
  CATCH_CHECK(thrown_id<ConfigError>([&] { FreezeEpochs(model, {.begin = -1}); }) == "invalid-settings");
  CATCH_CHECK(thrown_id<ConfigError>([&] { FreezeEpochs(model, {.begin = 2, .end = 2}); }) ==
              "invalid-settings");
}
