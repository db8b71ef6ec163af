// The models that the invariants are tried on: one weight whose course can be worked out in the head, a
// perceptron with everything that is hard to resume, a small convolutional net.
#pragma once

#include <stdlib.h>
#include <torch/torch.h>
#include <unistd.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/testing.hpp"
#include "support/catch.hpp"
#include "support/fixtures.hpp"

namespace lockstep::test {

// Runs of an invariant save after nearly every update, so their files go to memory where there is such a
// folder.
inline const bool files_in_memory =
    ::access("/dev/shm", W_OK | X_OK) == 0 && ::setenv("TMPDIR", "/dev/shm", /*overwrite=*/0) == 0;

using testing::CaseSettings;
using testing::Finding;

/// 1, 2, ... `last`
inline std::vector<std::int64_t> up_to(std::int64_t last) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(last));
  std::iota(numbers.begin(), numbers.end(), 1);
  return numbers;
}

/// On the device that LOCKSTEP_TEST_DEVICE names, else the CPU. On CUDA it must be told to give the same bits in every
/// run.
inline AcceleratorOptions on_test_device(AcceleratorOptions options) {
  const char* const device = ::getenv("LOCKSTEP_TEST_DEVICE");
  options.device = at::Device(device ? device : "cpu");
  if (options.device->is_cuda()) options.backend = {.tf32 = false, .deterministic_algorithms = true};
  return options;
}

inline Interval every_steps(std::int64_t every) { return {.every = every, .unit = Interval::Unit::step}; }

inline constexpr Precision precisions[] = {Precision::fp32, Precision::fp64,       Precision::bf16,
                                           Precision::fp16, Precision::bf16_mixed, Precision::fp16_mixed};

/// A case in another precision.
template <class C>
struct In : C {
  explicit In(Precision precision) : precision(precision) {}

  CaseSettings settings() const {
    auto settings = C::settings();
    settings.accelerator.precision = precision;
    // In fp16 alone the gradients of these models, scaled by the default, would overflow in every window.
    if (precision == Precision::fp16) settings.accelerator.loss_scaler = {{.initial_scale = 16}};
    return settings;
  }

  Precision precision;
};

/// Whether `check`, called as check(case), holds for the case in every precision.
template <class C>
void check_in_every_precision(auto check) {
  for (const auto precision : precisions) {
    CATCH_CAPTURE(to_string(precision));
    CATCH_CHECK(check(In<C>(precision)).difference == "");
  }
}

/// Targets 1, 2, 3, 4, 10: with rate 1 every update sets the weight to the mean of its window's targets.
struct Follow {
  CaseSettings settings() const {
    return {
        .accelerator = on_test_device({.precision = Precision::fp64, .gradient_accumulation_steps = 2}),
        .loader = {.batch_size = 2},
        .config = {.epochs = 2,
                   .log_every = 1,
                   .evaluate_every = every_steps(1),
                   .checkpoint_every = every_steps(1),
                   .monitor = Monitor("validation/loss")},
        .ema_decay = 0.5,
        .schedule = WarmupDecay{.total_steps = 4, .decay = WarmupDecay::Decay::constant}};
  }
  std::shared_ptr<OneWeight> model() const { return std::make_shared<OneWeight>(); }
  std::unique_ptr<torch::optim::Optimizer> optimizer(OneWeight& model) const {
    return std::make_unique<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(1));
  }
  TensorDataset train_set() const {
    return TensorDataset(torch::tensor({1.0, 2.0, 3.0, 4.0, 10.0}, torch::kDouble));
  }
  TensorDataset validation_set() const { return TensorDataset(torch::tensor({4.0, 6.0}, torch::kDouble)); }
  auto step() const { return follow; }
};

/// The weight is minus the sum of the rates used: 0, 1/2, 1, 3/4, 1/2, 1/4 and then 0.
struct Ledger : Follow {
  CaseSettings settings() const {
    auto settings = Follow::settings();
    settings.config.epochs = 4;
    settings.schedule = WarmupDecay{.total_steps = 6, .warmup_steps = 2, .decay = WarmupDecay::Decay::linear};
    settings.flat_parameters = false;
    return settings;
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer(OneWeight& model) const {
    return std::make_unique<SGD>(
        ParameterGroups{{.name = "all", .parameters = trainable_parameters(model), .weight_decay = 0}},
        SGDOptions{.lr = 1});
  }
  auto step() const { return ledger; }
};

/// Noisy points of three classes; the noise of a sample comes from its seed.
class NoisyPoints {
 public:
  NoisyPoints(std::int64_t size, std::vector<std::int64_t> shape) : size_(size), shape_(std::move(shape)) {}

  std::int64_t size() const { return size_; }
  Example get(std::int64_t index, std::uint64_t sample_seed) const {
    SampleRandom random(sample_seed);
    auto data = torch::empty(shape_);
    float* values = data.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < data.numel(); ++i) {
      const double signal = (i + index) % 3 == 0 ? 1 : 0;
      values[i] = static_cast<float>(signal + random.uniform() - 0.5);
    }
    return {data, torch::tensor(index % 3)};
  }

 private:
  std::int64_t size_;
  std::vector<std::int64_t> shape_;
};

inline StepOutput classify(const at::Tensor& logits, const at::Tensor& target) {
  const auto correct = logits.argmax(1).eq(target).sum();
  return {.loss = torch::nn::functional::cross_entropy(logits, target),
          .num_samples = target.size(0),
          .metrics = {{"accuracy", MeanMetric(correct, target.size(0))}}};
}

struct Perceptron : torch::nn::Module {
  Perceptron(std::int64_t features, std::int64_t hidden, bool noisy) : noisy(noisy) {
    first = register_module("first", torch::nn::Linear(features, hidden));
    norm = register_module("norm", torch::nn::BatchNorm1d(hidden));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
    last = register_module("last", torch::nn::Linear(hidden, 3));
  }

  at::Tensor forward(const at::Tensor& data) {
    const auto hidden = first(data);
    return last(noisy ? dropout(torch::relu(norm(hidden))) : torch::tanh(hidden));
  }

  bool noisy;  ///< with dropout and batch statistics
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear last{nullptr};
};

/// 11 microbatches an epoch, the last of two samples, in windows of 3, 3, 3 and 2; dropout, batch statistics,
/// averages, clipping, a schedule, augmentation, two groups, and a training log line that spans epochs and
/// checkpoints.
struct Mlp {
  CaseSettings settings() const {
    return {.accelerator = on_test_device({.gradient_accumulation_steps = 3, .seed = 5}),
            .loader = {.batch_size = 4, .shuffle = true, .seed = 6},
            .config = {.epochs = 2,
                       .log_every = 3,
                       .evaluate_every = every_steps(3),
                       .checkpoint_every = every_steps(2),
                       .max_grad_norm = 0.5,
                       .monitor = Monitor("validation/accuracy", {.direction = Direction::maximize})},
            .ema_decay = 0.9,
            .schedule = WarmupDecay{.total_steps = 8, .warmup_steps = 3, .start_factor = 0.1}};
  }
  std::shared_ptr<Perceptron> model() const { return std::make_shared<Perceptron>(6, 12, true); }
  std::unique_ptr<torch::optim::Optimizer> optimizer(Perceptron& model) const {
    return std::make_unique<AdamW>(weight_decay_groups(model, 0.05), AdamWOptions{.lr = 0.01});
  }
  NoisyPoints train_set() const { return {42, {6}}; }
  NoisyPoints validation_set() const { return {9, {6}}; }
  auto step() const {
    return [](Perceptron& model, const Example& batch) {
      return classify(model.forward(batch.data), batch.target);
    };
  }
};

/// 4 epochs of 45 microbatches, the last of them short; windows of 3. Evaluations fall inside epochs and, like the log
/// lines, between checkpoints.
struct LongRun : Mlp {
  CaseSettings settings() const {
    auto settings = Mlp::settings();
    settings.config.epochs = 4;
    settings.config.log_every = 5;
    settings.config.evaluate_every = every_steps(7);
    settings.config.checkpoint_every = every_steps(4);
    settings.config.keep_checkpoints = 2;
    settings.config.monitor = Monitor("validation/loss");
    settings.schedule = WarmupDecay{.total_steps = 60, .warmup_steps = 10};
    return settings;
  }
  NoisyPoints train_set() const { return {4 * 44 + 2, {6}}; }
};

/// Mlp without what accumulation cannot keep.
struct SmoothMlp : Mlp {
  std::shared_ptr<Perceptron> model() const { return std::make_shared<Perceptron>(6, 12, false); }
};

struct ConvNet : torch::nn::Module {
  ConvNet() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)));
    last = register_module("last", torch::nn::Linear(4 * 3 * 3, 3));
  }

  at::Tensor forward(const at::Tensor& images) {
    return last(torch::avg_pool2d(torch::relu(conv(images)), 2).flatten(1));
  }

  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear last{nullptr};
};

struct Cnn {
  CaseSettings settings() const {
    return {.accelerator = on_test_device({.gradient_accumulation_steps = 2, .seed = 3}),
            .loader = {.batch_size = 4, .shuffle = true, .seed = 4},
            .config = {.epochs = 2, .log_every = 2, .checkpoint_every = every_steps(2)},
            .schedule = WarmupDecay{.total_steps = 6, .warmup_steps = 1}};
  }
  std::shared_ptr<ConvNet> model() const { return std::make_shared<ConvNet>(); }
  std::unique_ptr<torch::optim::Optimizer> optimizer(ConvNet& model) const {
    return std::make_unique<torch::optim::SGD>(
        model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
  }
  NoisyPoints train_set() const { return {18, {1, 6, 6}}; }
  NoisyPoints validation_set() const { return {6, {1, 6, 6}}; }
  auto step() const {
    return [](ConvNet& model, const Example& batch) {
      return classify(model.forward(batch.data), batch.target);
    };
  }
};

/// Returns a sum, so that unequal batches weigh wrongly.
struct SummedLoss : Cnn {
  auto step() const {
    return [](ConvNet& model, const Example& batch) -> StepOutput {
      auto output = classify(model.forward(batch.data), batch.target);
      output.loss = output.loss * batch.target.size(0);
      return output;
    };
  }
};

/// A convolution whose weight is laid out channels-last, a tied weight, a frozen layer, one that only every
/// other batch uses, and one that none does.
struct OddNet : torch::nn::Module {
  OddNet() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 6, 3).padding(1)));
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    inner = register_module("inner", torch::nn::Linear(6, 6));
    tied_weight = register_parameter("tied_weight", inner->weight);
    frozen = register_module("frozen", torch::nn::Linear(6, 6));
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    sometimes = register_module("sometimes", torch::nn::Linear(6, 6));
    unused = register_module("unused", torch::nn::Linear(6, 6));
    last = register_module("last", torch::nn::Linear(6, 3));
  }

  at::Tensor forward(const at::Tensor& images, bool all) {
    auto hidden = conv(images.contiguous(at::MemoryFormat::ChannelsLast)).mean({2, 3});
    hidden = torch::tanh(frozen(torch::tanh(torch::linear(torch::tanh(inner(hidden)), tied_weight))));
    return last(all ? hidden + sometimes(hidden) : hidden);
  }

  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear inner{nullptr}, frozen{nullptr}, sometimes{nullptr}, unused{nullptr}, last{nullptr};
  at::Tensor tied_weight;
};

template <bool flat>
struct Odd {
  CaseSettings settings() const {
    return {.accelerator = on_test_device({.gradient_accumulation_steps = 2, .seed = 8}),
            .loader = {.batch_size = 3, .shuffle = true, .seed = 9},
            .config = {.epochs = 2,
                       .log_every = 2,
                       .evaluate_every = every_steps(2),
                       .checkpoint_every = every_steps(2),
                       .max_grad_norm = 1},
            .ema_decay = 0.9,
            .ema_warmup = true,
            .flat_parameters = flat,
            .schedule = WarmupDecay{.total_steps = 8, .warmup_steps = 2}};
  }
  std::shared_ptr<OddNet> model() const { return std::make_shared<OddNet>(); }
  std::unique_ptr<torch::optim::Optimizer> optimizer(OddNet& model) const {
    return std::make_unique<AdamW>(weight_decay_groups(model, 0.1),
                                   AdamWOptions{.lr = 0.01, .amsgrad = true});
  }
  NoisyPoints train_set() const { return {23, {2, 4, 4}}; }
  NoisyPoints validation_set() const { return {6, {2, 4, 4}}; }
  auto step() const {
    return [](OddNet& model, const Example& batch) {
      // Which batches use all of it depends on their targets alone, so that a window's cut does not change
      // it.
      return classify(model.forward(batch.data, batch.target.sum().item<std::int64_t>() % 2 == 0),
                      batch.target);
    };
  }
};
using OddFlat = Odd<true>;
using OddSeparate = Odd<false>;

}  // namespace lockstep::test
