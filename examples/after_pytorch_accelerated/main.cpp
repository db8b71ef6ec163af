// The quickstart of pytorch-accelerated: its network for digits, a split of one data set, SGD with momentum,
// eight epochs of batches of 32. With what its trainer has beside it: a gradient clipped by value, a
// one-cycle schedule that needs the length of the run, metrics printed for each epoch, the best weights kept
// and loaded at the end, and a run that stops early. The digits are drawn here: ten shapes in noise.
//
// Prints:
//   epoch 1: train_loss_epoch 2.186, eval_loss_epoch 1.608
//   epoch 2: train_loss_epoch 0.334, eval_loss_epoch 0.236
//   epoch 3: train_loss_epoch 0.195, eval_loss_epoch 0.229
//   epoch 4: train_loss_epoch 0.057, eval_loss_epoch 0.305
//   early_stop after 4 epochs; best after update 100, accuracy 0.927
//   predicted classes of the first four: 7 6 4 6
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <cstdio>
#include <memory>

namespace ls = lockstep;
namespace nn = torch::nn;

struct MnistModel : nn::Module {
  MnistModel() {
    main = register_module("main", nn::Sequential(nn::Linear(784, 128), nn::ReLU(), nn::Linear(128, 64),
                                                  nn::ReLU(), nn::Linear(64, 10), nn::LogSoftmax(1)));
  }
  torch::Tensor forward(const torch::Tensor& input) { return main->forward(input.flatten(1)); }
  nn::Sequential main{nullptr};
};

struct Data {
  ls::TensorDataset train, validation;
};

// Images [count, 28, 28] of ten shapes with noise over them, split at random.
Data random_split(std::int64_t count, std::int64_t train) {
  const auto target = torch::randint(10, {count});
  const auto images = torch::rand({10, 28, 28}).index_select(0, target) + 1.5 * torch::randn({count, 28, 28});
  const auto of = [&](const torch::Tensor& part) {
    return ls::TensorDataset(images.index_select(0, part), target.index_select(0, part));
  };
  const auto order = torch::randperm(count);
  return {of(order.slice(0, 0, train)), of(order.slice(0, train))};
}

struct PrintMetrics {
  void evaluation_end(ls::Run& run, ls::Weights, const ls::EvaluationResults& results) {
    std::printf("epoch %ld: train_loss_epoch %.3f, eval_loss_epoch %.3f\n", run.state().epoch,
                *run.history().back().value("epoch/loss"), results.at("eval").at("loss"));
  }
};

int main() {
  ls::Accelerator accelerator({.seed = 2, .device = torch::kCPU});
  auto data = random_split(2200, 1600);
  auto [train_loader, eval_loader] =
      ls::make_loaders(std::move(data.train), std::move(data.validation), {.batch_size = 32, .seed = 2});

  // calculate_train_batch_loss and calculate_eval_batch_loss.
  auto step = [](MnistModel& model, const ls::Example& batch) -> ls::StepOutput {
    const auto output = model.forward(batch.data);
    const auto correct = output.argmax(1).eq(batch.target).sum();
    return {.loss = nn::functional::cross_entropy(output, batch.target),
            .num_samples = batch.target.size(0),
            .metrics = {{"accuracy", ls::MeanMetric(correct, batch.target.size(0))}}};
  };

  auto model = std::make_shared<MnistModel>();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  ls::Evaluator evaluator(accelerator, {{"eval", eval_loader}}, step);
  ls::Trainer trainer(accelerator, model, optimizer, train_loader, step,
                      {.evaluator = &evaluator, .hooks = {PrintMetrics()}});
  // create_scheduler_fn, called when the run begins; run.planned_steps() is NUM_EPOCHS times
  // NUM_UPDATE_STEPS_PER_EPOCH.
  trainer.set_scheduler([](const ls::PlannedRun& run) -> ls::Schedule {
    return ls::OneCycle{.total_steps = run.planned_steps()};
  });

  const ls::TrainState state =
      trainer.train({.epochs = 8,
                     .checkpoint_every = {},
                     .max_grad_value = 0.5,
                     .monitor = ls::Monitor("eval/loss", {.patience = 2, .min_delta = 0.01}),
                     .restore_best = true});

  const auto predicted =
      trainer.predict(eval_loader, [](MnistModel& model, const ls::Example& batch) -> at::Tensor {
        return model.forward(batch.data).argmax(1);
      });
  std::printf("%s after %ld epochs; best after update %ld, accuracy %.3f\n", to_string(state.end).c_str(),
              state.epoch, *state.best_step, trainer.evaluate().at("eval").at("accuracy"));
  std::printf("predicted classes of the first four: %ld %ld %ld %ld\n", predicted[0].item<std::int64_t>(),
              predicted[1].item<std::int64_t>(), predicted[2].item<std::int64_t>(),
              predicted[3].item<std::int64_t>());
}
