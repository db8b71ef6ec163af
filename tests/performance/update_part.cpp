// The update alone, over gradients that are there: what the library does from the end of backward to the next
// forward pass.
#include <algorithm>
#include <optional>

#include "lockstep/lockstep.hpp"
#include "loop/optimizer_update.hpp"
#include "workloads.hpp"

namespace performance {
namespace {

namespace ls = lockstep;
using Clock = std::chrono::steady_clock;

/// W5: ten parameters of a million elements and nothing to compute.
struct Million : Net {
  Million() {
    for (int i = 0; i < 10; ++i) register_parameter("p" + std::to_string(i), torch::randn({1'000'000}));
  }
  Tensor forward(const Tensor& input) override { return input; }
};

template <class Work>
double seconds_of(Work work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// What ten streams over W5's bytes take at the bandwidth of operations that do little else: the better of
/// an addition in place, three streams, and of a copy, two.
double seconds_of_streams() {
  static Tensor x = torch::ones({25'000'000}), y = torch::ones({25'000'000});
  const double add = seconds_of([] { x.add_(y); }) / 3;
  const double copy = seconds_of([] { x.copy_(y); }) / 2;
  return 10 * std::min(add, copy) / 2.5;
}

}  // namespace

std::vector<double> time_update_part(const std::string& of, const std::string& way, std::int64_t warm,
                                     std::int64_t count) {
  const torch::NoGradGuard no_grad;
  std::vector<double> seconds;
  if (way == "stream") {
    for (std::int64_t i = 0; i < warm + count; ++i) seconds.push_back(seconds_of_streams());
    seconds.erase(seconds.begin(), seconds.begin() + warm);
    return seconds;
  }
  const std::shared_ptr<Net> model = of == "W5" ? std::make_shared<Million>() : make_net(workload(of));
  const auto parameters = ls::trainable_parameters(*model);
  ls::AdamW rule({{.name = "all", .parameters = parameters, .weight_decay = weight_decay}}, {.lr = lr});
  ls::OptimizerAdapter optimizer(rule, parameters);
  std::optional<ls::WeightAverage> average;
  if (way != "without_average") {
    average.emplace(ls::WeightAverageOptions{.decay = ema_decay}, parameters, &optimizer.arena());
  }
  torch::manual_seed(3);
  std::vector<Tensor> gradients;
  for (const auto& parameter : parameters) gradients.push_back(torch::randn_like(parameter.second));

  const ls::AccumulationWindow window(1, 1, {});
  optimizer.arena().open_window();
  for (std::int64_t i = 0; i < warm + count; ++i) {
    for (std::size_t k = 0; k < gradients.size(); ++k) {
      parameters[k].second.mutable_grad().copy_(gradients[k]);
    }
    const double update = seconds_of([&] {
      optimizer.arena().after_backward();
      optimizer.arena().close_window();
      ls::optimizer_update(window, 1, optimizer, average ? &*average : nullptr, {.max_norm = max_grad_norm});
      optimizer.arena().open_window();
    });
    if (i >= warm) seconds.push_back(update);
  }
  return seconds;
}

}  // namespace performance
