// What the tests of recorded runs share: reading numbers from JSON, and a net's parameters as one vector.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/file_text.hpp"

namespace lockstep::test {

using Numbers = std::vector<double>;

/// The contents of a JSON file in tests/reference.
inline nlohmann::json read_recorded(const std::string& file) {
  return nlohmann::json::parse(read_text(std::filesystem::path(__FILE__).parent_path() / file));
}

inline at::Tensor doubles(const nlohmann::json& numbers) {
  return torch::tensor(numbers.get<Numbers>(), torch::kDouble);
}

inline at::Tensor matrix(const nlohmann::json& rows) {
  std::vector<at::Tensor> tensors;
  for (const auto& row : rows) tensors.push_back(doubles(row));
  return torch::stack(tensors);
}

/// Two layers with tanh between them: torch.nn.Sequential(Linear, Tanh, Linear).
struct TwoLayers : torch::nn::Module {
  TwoLayers(std::int64_t in, std::int64_t hidden, std::int64_t out) {
    first = register_module("first", torch::nn::Linear(in, hidden));
    last = register_module("last", torch::nn::Linear(hidden, out));
  }

  at::Tensor forward(const at::Tensor& data) { return last(torch::tanh(first(data))); }

  torch::nn::Linear first{nullptr};
  torch::nn::Linear last{nullptr};
};

inline at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const auto& tensor : tensors) parts.push_back(tensor.detach().flatten().to(torch::kDouble));
  return torch::cat(parts);
}

/// Fills the parameters, in order, from one vector.
inline void fill(torch::nn::Module& net, const at::Tensor& values) {
  const torch::NoGradGuard no_grad;
  std::int64_t begin = 0;
  for (auto& parameter : net.parameters()) {
    parameter.copy_(values.narrow(0, begin, parameter.numel()).view_as(parameter));
    begin += parameter.numel();
  }
}

inline Numbers second(const std::vector<std::pair<std::int64_t, double>>& series) {
  Numbers values;
  for (const auto& [step, value] : series) values.push_back(value);
  return values;
}

inline void check_close(const Numbers& ours, const Numbers& pythons, double tolerance) {
  CATCH_REQUIRE(ours.size() == pythons.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    CATCH_CAPTURE(i);
    CATCH_CHECK(ours[i] == Approx(pythons[i]).epsilon(tolerance));
  }
}

}  // namespace lockstep::test
