// What the C++ blocks of README.md and docs/ may use without saying where it comes from.
#pragma once

#include <torch/torch.h>

#include <memory>

#include "lockstep/lockstep.hpp"

namespace ls = lockstep;
namespace nn = torch::nn;

struct Net : nn::Module {
  at::Tensor forward(const at::Tensor& x);
  nn::Sequential body{nullptr};
  nn::Linear head{nullptr};
};

using Loader = ls::DataLoader<ls::TensorDataset>;
using Step = ls::StepOutput (*)(Net& net, const ls::Example& batch);

extern ls::Accelerator accelerator;
extern std::shared_ptr<Net> model, net;
extern torch::optim::AdamW optimizer;
extern Loader loader, train_loader, validation_loader, rare_loader, test_loader;
extern Step step;
extern ls::Evaluator<Step> evaluator;
extern ls::RunLogger logger;
extern ls::Trainer<Net, Loader, Step> trainer;
extern ls::TrainConfig config;
extern ls::StopRequest stop;
extern std::int64_t planned;
