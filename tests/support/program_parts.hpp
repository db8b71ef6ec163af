// What stands around a Step in a program: for programs that are compiled, never run.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/lockstep.hpp"

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x);
};
TORCH_MODULE(Net);

extern lockstep::Accelerator accelerator;
extern std::shared_ptr<NetImpl> model;
extern torch::optim::AdamW optimizer;
extern lockstep::DataLoader<lockstep::TensorDataset> loader;  // of lockstep::Example
