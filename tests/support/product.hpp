// A model whose numbers can be worked out by hand: a product with a weight. The loss of a batch of ones is the sum of the
// weight's two elements and its gradient is 1 each, so that SGD at rate 1 takes 1 from both.
#pragma once

#include <functional>

#include "lockstep/tensors/step_output.hpp"

namespace lockstep::test {

struct Product : torch::nn::Module {
  Product() {
    weight = register_parameter("weight", torch::zeros({2, 1}));
    calls = register_buffer("calls", torch::zeros({}));
  }

  at::Tensor forward(const at::Tensor& data) {
    if (is_training()) calls.add_(1);
    return data.mm(weight);
  }
  [[nodiscard]] double value() const { return weight[0].item<double>(); }

  at::Tensor weight;
  at::Tensor calls;
};

using ProductStep = std::function<StepOutput(Product&, const at::Tensor&)>;

inline StepOutput sum_of_weight(Product& model, const at::Tensor& batch) {
  return {.loss = model.forward(batch).mean(), .num_samples = batch.size(0)};
}

}  // namespace lockstep::test
