// A small convolutional network for 28 x 28 grey images.
#pragma once

#include <torch/torch.h>

#include <cstdint>

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
