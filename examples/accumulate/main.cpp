// Gradient accumulation is exact: one microbatch of 24 samples, four of 6, or four of unequal sizes give the
// same updates, because each loss counts with its number of samples.
//
// Prints:
//   1 microbatch of 24      weights  1.4372 -1.9400  0.5518  bias  0.2837
//   4 microbatches of 6     weights  1.4372 -1.9400  0.5518  bias  0.2837
//   4 of 12, 7, 4 and 1     weights  1.4372 -1.9400  0.5518  bias  0.2837
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <cstdio>
#include <vector>

namespace ls = lockstep;

// Training on `batches`, all of them behind each update.
void train(const char* title, const std::vector<ls::Example>& batches) {
  ls::Accelerator accelerator({.precision = ls::Precision::fp64,
                               .gradient_accumulation_steps = static_cast<std::int64_t>(batches.size()),
                               .seed = 3,
                               .device = torch::kCPU});
  torch::nn::Linear model(3, 1);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));

  auto step = [](torch::nn::LinearImpl& linear, const ls::Example& batch) -> ls::StepOutput {
    return {.loss = torch::mse_loss(linear.forward(batch.data), batch.target),
            .num_samples = batch.data.size(0)};
  };
  ls::Trainer trainer(accelerator, model, optimizer, batches, step);
  trainer.train({.max_steps = 20, .checkpoint_every = {}});

  const auto* weight = model->weight.data_ptr<double>();
  std::printf("%-23s weights %7.4f %7.4f %7.4f  bias %7.4f\n", title, weight[0], weight[1], weight[2],
              model->bias.item<double>());
}

std::vector<ls::Example> split(const ls::Example& all, std::vector<std::int64_t> sizes) {
  const auto data = all.data.split_with_sizes(sizes);
  const auto target = all.target.split_with_sizes(sizes);
  std::vector<ls::Example> batches;
  for (std::size_t i = 0; i < sizes.size(); ++i) batches.push_back({data[i].clone(), target[i].clone()});
  return batches;
}

int main() {
  torch::manual_seed(1);
  const auto data = torch::randn({24, 3}, torch::kDouble);
  const auto target = data.matmul(torch::tensor({{1.5}, {-2.0}, {0.5}}, torch::kDouble)) + 0.3;
  const ls::Example all{data, target};

  train("1 microbatch of 24", {all});
  train("4 microbatches of 6", split(all, {6, 6, 6, 6}));
  train("4 of 12, 7, 4 and 1", split(all, {12, 7, 4, 1}));
}
