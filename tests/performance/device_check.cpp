// Does training on a device follow training on the CPU, and how long does an update take there? Run by device.sh.
//
//   device_check [--device cuda|cpu] check|times
//
// On the CPU it checks itself: flat parameters against separate ones.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/lockstep.hpp"

namespace ls = lockstep;
namespace nn = torch::nn;

namespace {

constexpr double weight_decay = 0.05;

/// Linear layers in a row; one more, that only batches with an odd number of samples use.
struct Layers : nn::Module {
  explicit Layers(const std::vector<std::int64_t>& widths, bool with_occasional = false) {
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(widths[i], widths[i + 1])));
    }
    if (with_occasional) {
      occasional = register_module("occasional", nn::Linear(widths.front(), widths.back()));
    }
  }

  at::Tensor forward(const at::Tensor& x) {
    auto hidden = layers.front()(x);
    for (std::size_t i = 1; i < layers.size(); ++i) hidden = layers[i](torch::tanh(hidden));
    return occasional && x.size(0) % 2 == 1 ? hidden + occasional(x) : hidden;
  }

  std::vector<nn::Linear> layers;
  nn::Linear occasional{nullptr};
};

ls::StepOutput mean_square(Layers& model, const ls::Example& batch) {
  return {.loss = nn::functional::mse_loss(model.forward(batch.data), batch.target),
          .num_samples = batch.data.size(0)};
}

std::vector<ls::Example> batches_of(const std::vector<std::int64_t>& sizes, std::int64_t inputs,
                                    std::int64_t outputs) {
  torch::manual_seed(1);
  std::vector<ls::Example> batches;
  for (const auto size : sizes) {
    batches.push_back({torch::randn({size, inputs}), torch::randn({size, outputs})});
  }
  return batches;
}

// --- check

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const Layers&)>;

template <class Optimizer, class Options>
MakeOptimizer ours(Options options) {
  return [options](const Layers& model) {
    return std::make_unique<Optimizer>(ls::weight_decay_groups(model, weight_decay), options);
  };
}

struct Variant {
  std::string name;
  MakeOptimizer optimizer;
  /// How far apart the two may end, as a share of the way from the start.
  double tolerance;
  ls::Precision precision = ls::Precision::fp32;
  std::optional<ls::LossScalerOptions> loss_scaler = {};
  std::optional<double> max_grad_norm = {};
  std::optional<double> ema_decay = {};
};

std::vector<Variant> variants() {
  using enum ls::Precision;
  const auto adamw = ours<ls::AdamW>(ls::AdamWOptions{.lr = 0.01});
  const auto sgd = ours<ls::SGD>(ls::SGDOptions{.lr = 0.05, .momentum = 0.9, .nesterov = true});
  // On the CPU, inputs that are off by a rounding of the precision take the runs a fifth of these apart or less: Adam
  // follows the signs of gradients, small ones in full.
  return {
      {"AdamW", adamw, 1e-11, fp64},
      {"AdamW", adamw, 1e-4},
      {"AdamW amsgrad", ours<ls::AdamW>(ls::AdamWOptions{.lr = 0.01, .amsgrad = true}), 1e-4},
      {"Adam", ours<ls::Adam>(ls::AdamOptions{.lr = 0.01}), 1e-4},
      {"SGD", ours<ls::SGD>(ls::SGDOptions{.lr = 0.05}), 1e-4},
      {"SGD Nesterov", sgd, 1e-11, fp64},
      {"SGD Nesterov", sgd, 1e-4},
      {"AdamW clip EMA", adamw, 1e-11, fp64, {}, 0.1, 0.9},
      {"AdamW clip EMA", adamw, 1e-4, fp32, {}, 0.1, 0.9},
      {"AdamW clip EMA", adamw, 0.2, bf16, {}, 0.1, 0.9},
      {"AdamW clip EMA", adamw, 0.2, bf16_mixed, {}, 0.1, 0.9},
      {"AdamW clip EMA", adamw, 0.1, fp16, {}, 0.1, 0.9},
      {"SGD Nesterov, overflows", sgd, 0.02, fp16_mixed,
       // So large that it takes several windows to come down, in steps that leave no doubt which.
       ls::LossScalerOptions{.initial_scale = 0x1p60, .backoff_factor = 0x1p-8}},
  };
}

struct Result {
  ls::NamedTensors start, weights, averages;
  ls::TrainState state;
};

ls::NamedTensors on_host(const ls::NamedTensors& tensors) {
  ls::NamedTensors copies;
  for (const auto& [name, tensor] : tensors) {
    copies.emplace_back(name, tensor.detach().to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true));
  }
  return copies;
}

template <class Source>
Result train(const Variant& variant, at::Device device, bool flat, Source& source) {
  ls::Accelerator accelerator({.precision = variant.precision,
                               .gradient_accumulation_steps = 2,
                               .seed = 5,
                               .device = device,
                               .loss_scaler = variant.loss_scaler,
                               .backend = {.tf32 = false}});
  auto model = std::make_shared<Layers>(std::vector<std::int64_t>{32, 64, 64, 10}, /*with_occasional=*/true);
  Result result{.start = on_host(ls::trainable_parameters(*model))};
  const auto optimizer = variant.optimizer(*model);
  ls::Trainer trainer(accelerator, model, *optimizer, source, mean_square,
                      {.ema_decay = variant.ema_decay, .flat_parameters = flat});
  result.state = trainer.train({.epochs = 4, .max_grad_norm = variant.max_grad_norm});
  result.weights = on_host(trainer.weights());
  if (variant.ema_decay) result.averages = on_host(trainer.weights(ls::Weights::ema));
  return result;
}

/// The distance between `a` and `b` as a share of that from `start` to `b`.
double relative_distance(const ls::NamedTensors& a, const ls::NamedTensors& b, const ls::NamedTensors& start) {
  double apart = 0, moved = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    apart += (a[i].second - b[i].second).square().sum().item<double>();
    moved += (b[i].second - start[i].second).square().sum().item<double>();
  }
  return std::sqrt(apart / moved);
}

/// Prints a row; whether it passed.
bool row(const std::string& name, const std::string& type, const std::string& layout, const Result& result,
         const Result& expected, double tolerance) {
  double difference = relative_distance(result.weights, expected.weights, expected.start);
  if (!expected.averages.empty()) {
    difference =
        std::max(difference, relative_distance(result.averages, expected.averages, expected.start));
  }
  // NaN is no pass.
  const bool passed = difference <= tolerance && result.state == expected.state;
  std::printf("%-24s %-10s %-9s %7lld %7lld %12.2g %10.0e  %s\n", name.c_str(), type.c_str(), layout.c_str(),
              static_cast<long long>(result.state.step), static_cast<long long>(expected.state.step), difference,
              tolerance, passed ? "ok" : "FAILED");
  return passed;
}

int check(at::Device device) {
  std::printf("%-24s %-10s %-9s %7s %7s %12s %10s\n", "optimizer", "precision", "layout", "updates", "on CPU",
              "difference", "tolerance");
  // Windows of an even and an odd batch, of two even ones, and a short one: the occasional layer misses the second.
  auto batches = batches_of({8, 5, 8, 6, 7}, 32, 10);
  bool passed = true;
  for (const auto& variant : variants()) {
    const auto expected = train(variant, at::kCPU, /*flat=*/true, batches);
    for (const bool flat : {true, false}) {
      passed &= row(variant.name, ls::to_string(variant.precision), flat ? "flat" : "separate",
                    train(variant, device, flat, batches), expected, variant.tolerance);
    }
  }

  const auto whole = batches_of({200}, 32, 10).front();
  const auto loader = [&whole](int workers, bool pin_memory) {
    return ls::DataLoader(ls::TensorDataset(whole.data, whole.target),
                          {.batch_size = 16, .shuffle = true, .workers = workers, .pin_memory = pin_memory});
  };
  auto plain = loader(0, false);
  auto ahead = loader(2, /*pin_memory=*/device.is_cuda());
  const auto variant = variants().front();
  passed &= row("loader, two workers", "fp64", "flat", train(variant, device, true, ahead),
                train(variant, at::kCPU, true, plain), variant.tolerance);
  if (device.is_cuda()) {
    const auto batch = ahead.epoch(0).next();
    const bool pinned = batch->data.is_pinned() && batch->target.is_pinned();
    std::printf("batches in page-locked memory: %s\n", pinned ? "ok" : "FAILED");
    passed &= pinned;
  }
  return passed ? 0 : 1;
}

// --- times

constexpr double ema_decay = 0.999;
constexpr double max_grad_norm = 1.0;

struct Workload {
  std::string name;
  std::vector<std::int64_t> widths;
  std::int64_t batch_size;
};

void wait_for(at::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize();
}

/// Milliseconds for one of `updates`.
double time_of(at::Device device, std::int64_t updates, const std::function<void()>& run) {
  wait_for(device);
  const auto start = std::chrono::steady_clock::now();
  run();
  wait_for(device);
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
  return taken.count() / static_cast<double>(updates);
}

/// Torch's own optimizer, clipping and an average, on a model of its own.
class Stock {
 public:
  Stock(const Workload& workload, at::Device device) : device_(device), model_(workload.widths) {
    model_.to(device);
    parameters_ = model_.parameters();
    optimizer_ = std::make_unique<torch::optim::AdamW>(
        parameters_, torch::optim::AdamWOptions(1e-3).weight_decay(weight_decay));
    for (const auto& parameter : parameters_) average_.push_back(parameter.detach().clone());
  }

  /// As every loop here it reads the loss of each batch.
  void forward_and_backward(const ls::Example& batch) {
    for (const auto& parameter : parameters_) parameter.mutable_grad().reset();
    const auto loss = nn::functional::mse_loss(model_.forward(batch.data.to(device_)), batch.target.to(device_));
    loss.backward();
    if (!std::isfinite(loss.item<double>())) throw std::runtime_error("the loss is not finite");
  }

  void update() {
    nn::utils::clip_grad_norm_(parameters_, max_grad_norm);
    optimizer_->step();
    const torch::NoGradGuard no_grad;
    at::_foreach_lerp_(average_, parameters_, 1 - ema_decay);
  }

 private:
  at::Device device_;
  Layers model_;
  std::vector<at::Tensor> parameters_, average_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

void measure(const Workload& workload, at::Device device, std::int64_t updates) {
  auto batches = batches_of(std::vector<std::int64_t>(16, workload.batch_size), workload.widths.front(),
                            workload.widths.back());
  Stock stock(workload, device);
  ls::Accelerator accelerator({.device = device});
  auto model = std::make_shared<Layers>(workload.widths);
  ls::AdamW optimizer(ls::weight_decay_groups(*model, weight_decay));
  ls::Trainer trainer(accelerator, model, optimizer, batches, mean_square, {.ema_decay = ema_decay});

  std::int64_t trained = 0;
  const auto train_on = [&] {
    trained += updates;
    (void)trainer.train({.max_steps = trained, .max_grad_norm = max_grad_norm});
  };
  const auto stock_loop = [&](bool update) {
    for (std::int64_t i = 0; i < updates; ++i) {
      stock.forward_and_backward(batches[static_cast<std::size_t>(i) % batches.size()]);
      if (update) stock.update();
    }
  };
  train_on();  // warm
  stock_loop(true);
  double backward = std::numeric_limits<double>::infinity(), theirs = backward, own = backward;
  for (int round = 0; round < 5; ++round) {
    backward = std::min(backward, time_of(device, updates, [&] { stock_loop(false); }));
    theirs = std::min(theirs, time_of(device, updates, [&] { stock_loop(true); }));
    own = std::min(own, time_of(device, updates, train_on));
  }
  std::printf("%-24s %10.4f %10.4f %10.4f %9.2f %9.2f\n", workload.name.c_str(), backward, theirs, own,
              theirs / own, own / backward);
  std::fflush(stdout);
}

int times(at::Device device) {
  std::printf("milliseconds an update with clipping, AdamW and averages; minimum of 5 rounds\n");
  std::printf("%-24s %10s %10s %10s %9s %9s\n", "", "fwd + bwd", "LibTorch", "lockstep", "speed-up", "÷ fwd+bwd");
  measure({"W1 tiny MLP", {32, 64, 64, 10}, 32}, device, 200);
  measure({"W4 200 x Linear(8, 8)", std::vector<std::int64_t>(201, 8), 32}, device, 20);
  measure({"W5 10 x 1M", std::vector<std::int64_t>(11, 1000), 32}, device, 10);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool on_cpu = arguments.size() == 3 && arguments[1] == "cpu";
  const std::string what = arguments.empty() ? "" : arguments.back();
  const bool named = arguments.size() == 3 && arguments[0] == "--device" && (on_cpu || arguments[1] == "cuda");
  if (!(named || arguments.size() == 1) || (what != "check" && what != "times")) {
    std::fprintf(stderr, "usage: device_check [--device cuda|cpu] check|times\n");
    return 2;
  }
  if (!on_cpu && !torch::cuda::is_available()) {
    std::fprintf(stderr, "there is no CUDA device, or this Torch was built without CUDA: nothing was checked\n");
    return 3;
  }
  const at::Device device = on_cpu ? at::kCPU : at::kCUDA;
  if (on_cpu) at::set_num_threads(1);
  try {
    return what == "check" ? check(device) : times(device);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
