// Runs on several ranks whose results can be worked out in the head.
#include <list>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/testing.hpp"
#include "support/catch.hpp"
#include "support/fixtures.hpp"
#include "support/ranks.hpp"

namespace lockstep::test {
namespace {

using Step = OneWeightStep<at::Tensor>;

/// A OneWeight trained by SGD of rate 1 on one rank of several.
template <class Source = Batches>
struct RankRun {
  RankRun(AcceleratorOptions accelerator_options, Source given, OneWeightStep<batch_t<Source>> step,
          TrainerOptions<OneWeight> options = {}, double lr = 1)
      : accelerator(accelerator_options),
        optimizer(model.parameters(), torch::optim::SGDOptions(lr)),
        source(std::move(given)),
        trainer(accelerator, model, optimizer, source, std::move(step), options) {}

  Accelerator accelerator;
  OneWeight model;
  torch::optim::SGD optimizer;
  Source source;
  Trainer<OneWeight, Source, OneWeightStep<batch_t<Source>>> trainer;
};

std::string number(double value) { return testing::text_of(value); }

std::string described(const TrainState& state) {
  return "epoch " + std::to_string(state.epoch) + " step " + std::to_string(state.step) + " batches " +
         std::to_string(state.batches) + " samples " + std::to_string(state.samples);
}

CATCH_TEST_CASE("the weight is the mean of the targets of all ranks, however many samples each has") {
  // Dealt in turn: rank 0 has {1, 2, 3} and {7}, rank 1 has {10}; rates of 1 set w to the window's mean.
  const auto ranks = run_ranks(2, [](Rank& rank) {
    RankRun run(rank.options(), batches({{1, 2, 3}, {10}, {7}}), follow);
    std::string weights;
    for (const std::int64_t limit : {1, 2}) {
      const auto state = run.trainer.train({.epochs = 1, .max_steps = limit});
      weights += number(run.model.value()) + ", " + described(state) + "; ";
    }
    return weights;
  });
  CATCH_CHECK(ranks.same_text() ==
              "4, epoch 0 step 1 batches 1 samples 4; 7, epoch 1 step 2 batches 2 samples 5; ");
}

CATCH_TEST_CASE("a rank without any data takes part with nothing") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    RankRun run(rank.options(), batches({{5, 7}}), follow);
    const auto state = run.trainer.train({.epochs = 2});
    return number(run.model.value()) + ", " + described(state);
  });
  CATCH_CHECK(ranks.same_text() == "6, epoch 2 step 2 batches 2 samples 4");
}

CATCH_TEST_CASE("batches of their own may be unequal, and of unknown length") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    std::list<at::Tensor> own;  // no random access
    for (int i = 0; i < (rank.number == 0 ? 3 : 1); ++i) own.push_back(torch::full({1}, rank.number == 0 ? i : 10.0, at::kDouble));
    auto options = rank.options();
    options.gradient_accumulation_steps = 2;
    RankRun<std::list<at::Tensor>> run(options, own, follow, {.own_batches = true});
    const auto first = run.trainer.train({.epochs = 1, .max_steps = 1});
    const auto after_one = number(run.model.value());
    const auto state = run.trainer.train({.epochs = 1});
    return after_one + " then " + number(run.model.value()) + ", " + described(state);
  });
  // Windows {0, 1 | 10} and {2 | }.
  CATCH_CHECK(ranks.same_text() == number(11.0 / 3) + " then 2, epoch 1 step 2 batches 3 samples 4");
}

CATCH_TEST_CASE("batches that no rank has are an error on all ranks") {
  const auto ranks = run_ranks(2, [](Rank& rank) -> std::string {
    RankRun<std::list<at::Tensor>> run(rank.options(), {}, follow);
    run.trainer.train({.epochs = 1});
    return "trained";
  });
  CATCH_CHECK(ranks.error_ids() == std::vector<std::string>{"empty-source", "empty-source"});
}

CATCH_TEST_CASE("ranks whose programs made other weights begin with those of rank 0") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    RankRun run(rank.options(), batches({{0}, {0}}), ledger);
    {
      const torch::NoGradGuard no_grad;
      run.model.w.fill_(5 + rank.number);
    }
    run.trainer.train({.epochs = 1});
    return number(run.model.value());
  });
  CATCH_CHECK(ranks.same_text() == "4");
}

CATCH_TEST_CASE("a missing gradient leaves a parameter alone only when no rank has one") {
  struct Two : torch::nn::Module {
    Two() {
      a = register_parameter("a", torch::zeros({}, at::kDouble));
      b = register_parameter("b", torch::zeros({}, at::kDouble));
      c = register_parameter("c", torch::zeros({}, at::kDouble));
    }
    at::Tensor a, b, c;
  };
  for (const bool flat : {true, false}) {
    const auto ranks = run_ranks(2, [flat](Rank& rank) {
      Accelerator accelerator(rank.options());
      auto model = std::make_shared<Two>();
      // Decay alone would move a parameter that was stepped: the ones here are zero, so momentum shows it.
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1));
      Batches source = numbered_batches(2);
      Trainer trainer(
          accelerator, model, optimizer, source,
          [](Two& two, const at::Tensor& batch) -> StepOutput {
            return {.loss = batch.item<double>() == 0 ? two.a.clone() : two.a + two.b, .num_samples = 1};
          },
          {.flat_parameters = flat});
      trainer.train({.epochs = 1});
      return number(model->a.item<double>()) + " " + number(model->b.item<double>()) + " " +
             number(model->c.item<double>());
    });
    CATCH_CHECK(ranks.same_text() == "-1 -0.5 0");
  }
}

CATCH_TEST_CASE("a metric and a loss are means over all ranks, in the log and in an evaluation") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    Accelerator accelerator(rank.options());
    OneWeight model;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0));
    Batches source = batches({{2, 4}, {6}});
    Batches set = batches({{2, 4}, {6}, {8}});
    const auto step = [](OneWeight& weight, const at::Tensor& batch) -> StepOutput {
      return {.loss = weight.w + batch.mean(),
              .num_samples = batch.numel(),
              .metrics = {{"sum", MeanMetric(batch.sum(), batch.numel())}}};
    };
    Evaluator evaluator(accelerator, {{"validation", set}}, step);
    RunLogger logger(rank.directory / "run", {.is_main_process = accelerator.is_main_process(), .quiet = true});
    Trainer trainer(accelerator, model, optimizer, source, step, {.evaluator = &evaluator, .logger = &logger});
    trainer.train({.epochs = 1, .log_every = 1, .evaluate_every = {}});
    const auto results = trainer.evaluate().at("validation");
    std::string logged;
    if (rank.number == 0) {
      std::ifstream lines(rank.directory / "run" / "metrics.jsonl");
      for (std::string line; std::getline(lines, line);) {
        const auto event = nlohmann::json::parse(line);
        if (event.at("event") == "train") logged = number(event.at("values").at("train/loss").get<double>());
      }
    }
    return logged + "|" + number(results.at("loss")) + " " + number(results.at("sum"));
  });
  CATCH_CHECK(ranks.texts() == std::vector<std::string>{"4|5 5", "|5 5"});
}

CATCH_TEST_CASE("an evaluation set smaller than the number of ranks is evaluated once") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    Accelerator accelerator(rank.options());
    OneWeight model(1);
    Batches set = batches({{3, 5}});
    Evaluator evaluator(accelerator, {{"validation", set}}, OneWeightStep<at::Tensor>(follow));
    return number(evaluator.run(model).at("validation").at("loss"));
  });
  CATCH_CHECK(ranks.same_text() == "5");
}

CATCH_TEST_CASE("random numbers differ between ranks once training begins, and initial weights do not") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    Accelerator accelerator(rank.options());
    const auto initial = torch::rand({}, at::kDouble).item<double>();
    OneWeight model;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
    Batches source = numbered_batches(2);
    double drawn = 0;
    Trainer trainer(accelerator, model, optimizer, source, Step([&drawn](OneWeight& weight, const at::Tensor& batch) {
                      drawn = torch::rand({}, at::kDouble).item<double>();
                      return ledger(weight, batch);
                    }));
    trainer.train({.epochs = 1});
    return number(initial) + "|" + number(drawn);
  });
  const auto texts = ranks.texts();
  const auto split = [](const std::string& text) {
    return std::pair(text.substr(0, text.find('|')), text.substr(text.find('|') + 1));
  };
  CATCH_CHECK(split(texts[0]).first == split(texts[1]).first);
  CATCH_CHECK(split(texts[0]).second != split(texts[1]).second);
}

CATCH_TEST_CASE("an fp16 overflow on one rank skips the update on all") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    auto options = rank.options();
    options.precision = Precision::fp16_mixed;
    options.loss_scaler = {{.initial_scale = 4}};
    Accelerator accelerator(options);
    auto model = std::make_shared<torch::nn::LinearImpl>(1, 1);
    model->to(at::kFloat);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5));
    Batches source = numbered_batches(4);
    Trainer trainer(accelerator, model, optimizer, source,
                    [](torch::nn::LinearImpl& linear, const at::Tensor& batch) -> StepOutput {
                      auto loss = linear.bias.sum() * 1.0;
                      // By a hook, so that the loss stays finite.
                      auto copy = linear.bias.clone();
                      const bool bad = batch.item<double>() == 1;
                      copy.register_hook([bad](const at::Tensor& gradient) {
                        return bad ? torch::full_like(gradient, std::numeric_limits<double>::infinity()) : gradient;
                      });
                      return {.loss = copy.sum(), .num_samples = 1};
                    });
    const auto start = model->bias.item<float>();
    const auto state = trainer.train({.epochs = 1});
    return described(state) + " moved " + number(model->bias.item<float>() - start < -0.49);
  });
  CATCH_CHECK(ranks.same_text() == "epoch 1 step 1 batches 2 samples 4 moved 1");
}

CATCH_TEST_CASE("losses on one, two and three ranks agree over fifty updates") {
  // 60 batches of unequal size; windows of 6 batches each, whatever the ranks.
  const auto losses = [](int count) {
    const auto text = run_ranks(count, [](Rank& rank) {
      auto options = rank.options();
      options.precision = Precision::fp32;
      options.gradient_accumulation_steps = 6 / rank.world_size;
      options.seed = 3;
      options.slice_bytes = 64;
      Accelerator accelerator(options);
      auto model = std::make_shared<torch::nn::LinearImpl>(4, 3);
      AdamW optimizer(weight_decay_groups(*model, 0.1), {.lr = 0.02});
      std::vector<at::Tensor> source;
      auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
      for (int i = 0; i < 60; ++i) source.push_back(torch::randn({1 + i % 4, 4}, generator));
      std::ostringstream all;
      Trainer trainer(accelerator, model, optimizer, source,
                      [](torch::nn::LinearImpl& linear, const at::Tensor& batch) -> StepOutput {
                        return {.loss = (linear.forward(batch).tanh() - batch.narrow(1, 0, 3)).square().mean(),
                                .num_samples = batch.size(0)};
                      });
      Evaluator evaluator(accelerator, {{"all", source}},
                          [](torch::nn::LinearImpl& linear, const at::Tensor& batch) -> StepOutput {
                            return {.loss = (linear.forward(batch).tanh() - batch.narrow(1, 0, 3)).square().mean(),
                                    .num_samples = batch.size(0)};
                          });
      for (std::int64_t step = 1; step <= 50; ++step) {
        trainer.train({.epochs = 5, .max_steps = step});
        all << testing::text_of(trainer.evaluate(evaluator).at("all").at("loss")) << ' ';
      }
      return all.str();
    }).same_text();
    std::vector<double> values;
    std::istringstream stream(text);
    for (double value = 0; stream >> value;) values.push_back(value);
    return values;
  };
  const auto one = losses(1);
  CATCH_REQUIRE(one.size() == 50);
  CATCH_CHECK(one.back() < 0.9 * one.front());
  for (const int count : {2, 3}) {
    const auto many = losses(count);
    CATCH_REQUIRE(many.size() == 50);
    for (std::size_t i = 0; i < 50; ++i) CATCH_CHECK(many[i] == Approx(one[i]).epsilon(1e-6));
    CATCH_CHECK(losses(count) == many);
  }
}

CATCH_TEST_CASE("even batches count what pads them") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    RankRun run(rank.options(), numbered_loader(5, {.batch_size = 2, .even_batches = true}), follow);
    const auto state = run.trainer.train({.epochs = 1});
    // The second round: {4, 0} on rank 0 and {1, 2} on rank 1.
    return number(run.model.value()) + ", " + described(state);
  });
  CATCH_CHECK(ranks.same_text() == number(7.0 / 4) + ", epoch 1 step 2 batches 2 samples 8");
}

CATCH_TEST_CASE("split batches are those of all ranks together") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    RankRun run(rank.options(), numbered_loader(5, {.batch_size = 4, .split_batches = true}), follow);
    const auto planned = run.trainer.planned_steps({.epochs = 1});
    std::string text = std::to_string(planned) + " planned; ";
    run.trainer.train({.epochs = 1, .max_steps = 1});
    text += number(run.model.value()) + " then ";
    const auto state = run.trainer.train({.epochs = 1});
    return text + number(run.model.value()) + ", " + described(state);
  });
  CATCH_CHECK(ranks.same_text() == "2 planned; 1.5 then 4, epoch 1 step 2 batches 2 samples 5");
}

CATCH_TEST_CASE("updates are planned by rounds of all ranks") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    auto options = rank.options();
    options.gradient_accumulation_steps = 2;
    RankRun run(options, numbered_batches(9), follow);
    return std::to_string(run.trainer.updates_per_epoch()) + " " +
           std::to_string(run.trainer.planned_steps({.epochs = 2, .limit_train_batches = 5})) + " " +
           std::to_string(run.trainer.train({.epochs = 2, .limit_train_batches = 5}).step);
  });
  // 9 batches: windows of 4, 4 and 1; 5 of them: 4 and 1.
  CATCH_CHECK(ranks.same_text() == "3 4 4");
}

}  // namespace
}  // namespace lockstep::test
