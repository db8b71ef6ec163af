// Regression on a table: how far a disease has come a year after ten measurements, for 442 patients. The
// columns are standardized by the training rows alone, and the weights that were best on the validation rows
// are tested on rows of their own.
//
//     tabular diabetes.csv                    (source and licence: diabetes.LICENSE)
//
// Prints:
//   52 epochs, 520 updates, best after 320
//   test: root mean square error 64.5, mean absolute error 53.0
//   the mean of the training rows as the answer: root mean square error 84.0
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace ls = lockstep;
namespace nn = torch::nn;

struct Net : nn::Module {
  explicit Net(std::int64_t inputs) {
    layers = register_module(
        "layers", nn::Sequential(nn::Linear(inputs, 32), nn::ReLU(), nn::Dropout(0.2), nn::Linear(32, 1)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  nn::Sequential layers{nullptr};
};

// [rows, columns] of a file of numbers with commas between them, under a line of names.
torch::Tensor read_csv(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  std::vector<torch::Tensor> rows;
  while (std::getline(file, line)) {
    std::vector<float> row;
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) row.push_back(std::stof(cell));
    rows.push_back(torch::tensor(row));
  }
  return torch::stack(rows);
}

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s diabetes.csv\n", argv[0]), 2;
  ls::Accelerator accelerator({.seed = 8, .device = torch::kCPU});

  auto table = read_csv(argv[1]);
  table = table.index_select(0, torch::randperm(table.size(0)));
  const auto parts = table.split_with_sizes({300, 70, table.size(0) - 370});
  const auto mean = parts[0].mean(0);
  const auto deviation = parts[0].std(0);
  const double unit = deviation[-1].item<double>();  // of the target
  const auto dataset = [&](const torch::Tensor& rows) {
    const auto scaled = (rows - mean) / deviation;
    return ls::TensorDataset(scaled.slice(1, 0, -1), scaled.slice(1, -1));
  };
  ls::DataLoader train_loader(dataset(parts[0]), {.batch_size = 30, .shuffle = true, .seed = 8});
  ls::DataLoader validation_loader(dataset(parts[1]), {.batch_size = 70});
  ls::DataLoader test_loader(dataset(parts[2]), {.batch_size = 72});

  auto step = [](Net& net, const ls::Example& batch) -> ls::StepOutput {
    const auto predicted = net.forward(batch.data);
    const auto absolute_error = (predicted - batch.target).abs().sum();
    return {.loss = torch::mse_loss(predicted, batch.target),
            .num_samples = batch.data.size(0),
            .metrics = {{"absolute_error", ls::MeanMetric(absolute_error, batch.data.size(0))}}};
  };

  auto net = std::make_shared<Net>(table.size(1) - 1);
  ls::AdamW optimizer(ls::weight_decay_groups(*net, 0.1), {.lr = 0.005});
  ls::Evaluator evaluator(accelerator, {{"validation", validation_loader}}, step);
  ls::Evaluator test(accelerator, {{"test", test_loader}}, step);
  ls::Trainer trainer(accelerator, net, optimizer, train_loader, step,
                      {.evaluator = &evaluator, .test = &test, .ema_decay = 0.95});
  const ls::TrainConfig config{.epochs = 100,
                               .checkpoint_every = {},  // a run of seconds
                               .monitor = ls::Monitor("validation/loss", {.patience = 20})};
  const ls::TrainState state = trainer.train(config);

  const auto& tested = trainer.test_results()->at("test");
  std::printf("%ld epochs, %ld updates, best after %ld\n", state.epoch, state.step, *state.best_step);
  std::printf("test: root mean square error %.1f, mean absolute error %.1f\n",
              unit * std::sqrt(tested.at("loss")), unit * tested.at("absolute_error"));
  const auto guess = (parts[2].select(1, -1) - mean[-1]).square().mean().sqrt().item<double>();
  std::printf("the mean of the training rows as the answer: root mean square error %.1f\n", guess);
}
