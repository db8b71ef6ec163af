// A small convolutional network for 28 x 28 grey images.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <lockstep/data/batch.hpp>
#include <lockstep/files/weights_file.hpp>
#include <lockstep/tensors/module_state.hpp>
#include <map>
#include <memory>
#include <string>

/// Two convolutions, each with pooling and batch norm, then two linear layers with dropout; 215,000
/// parameters.
struct Net : torch::nn::Module {
  Net() {
    namespace nn = torch::nn;
    const auto convolution = [](std::int64_t in, std::int64_t out) {
      return nn::Conv2d(nn::Conv2dOptions(in, out, /*kernel_size=*/3).padding(1).bias(false));
    };
    layers = register_module(
        "layers",
        nn::Sequential(convolution(1, 16), nn::MaxPool2d(2), nn::BatchNorm2d(16), nn::ReLU(),
                       convolution(16, 32), nn::MaxPool2d(2), nn::BatchNorm2d(32), nn::ReLU(), nn::Flatten(),
                       nn::Linear(32 * 7 * 7, 128), nn::ReLU(), nn::Dropout(0.25), nn::Linear(128, 10)));
  }

  /// [samples, 1, 28, 28] to the logits [samples, 10].
  torch::Tensor forward(const torch::Tensor& images) { return layers->forward(images); }

  torch::nn::Sequential layers{nullptr};
};

/// The network with the weights of a file that Trainer::save_model() wrote. Throws std::out_of_range for a
/// tensor that the file lacks, besides the errors of lockstep::load_weights().
inline std::shared_ptr<Net> load_net(const std::filesystem::path& path,
                                     const lockstep::Placement& placement) {
  const torch::NoGradGuard no_grad;
  const lockstep::NamedTensors weights = lockstep::load_weights(path);
  const std::map<std::string, torch::Tensor> by_name(weights.begin(), weights.end());
  auto net = std::make_shared<Net>();
  for (auto& [name, tensor] : lockstep::module_state(*net)) tensor.copy_(by_name.at(name));
  lockstep::place_module(*net, placement.device, placement.floating.value_or(torch::kFloat));
  return net;
}
