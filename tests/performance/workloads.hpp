// What the benchmarks train: models, batches and settings, the same as in peers.py. Same seed, same order of
// draws: both languages start from the same weights and see the same batches.
#pragma once

#include <torch/torch.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/config/warmup_decay.hpp"
#include "lockstep/data/example.hpp"

namespace performance {

using torch::Tensor;
namespace nn = torch::nn;

constexpr double lr = 1e-3;
constexpr double weight_decay = 0.01;
constexpr double max_grad_norm = 1.0;
constexpr double ema_decay = 0.999;
constexpr int log_every = 10;
constexpr int evaluate_every = 100;
constexpr int checkpoint_every = 100;
const lockstep::WarmupDecay schedule{.total_steps = 10'000, .warmup_steps = 100, .start_factor = 0.01};

struct Workload {
  std::string name;
  bool clip = false;
  bool average = false;
  /// A schedule, a log, evaluation and checkpoints.
  bool everything = false;
  int accumulation = 1;
};

inline Workload workload(const std::string& name) {
  if (name == "W1" || name == "W2" || name == "W3") return {.name = name};
  if (name == "W4") return {.name = name, .clip = true, .average = true};
  if (name == "W6") {
    return {.name = name, .clip = true, .average = true, .everything = true, .accumulation = 4};
  }
  throw std::invalid_argument("no workload " + name);
}

struct Net : nn::Module {
  virtual Tensor forward(const Tensor& input) = 0;
};

/// W1 and W6.
struct Mlp : Net {
  Tensor forward(const Tensor& input) override { return out(torch::relu(hidden(torch::relu(in(input))))); }
  nn::Linear in = register_module("in", nn::Linear(32, 64));
  nn::Linear hidden = register_module("hidden", nn::Linear(64, 64));
  nn::Linear out = register_module("out", nn::Linear(64, 10));
};

/// W2: images of 28 x 28.
struct ConvNet : Net {
  Tensor forward(const Tensor& input) override {
    const auto half = torch::max_pool2d(torch::relu(first(input)), 2);
    return out(torch::max_pool2d(torch::relu(second(half)), 2).flatten(1));
  }
  nn::Conv2d first = register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 16, 3)));
  nn::Conv2d second = register_module("second", nn::Conv2d(nn::Conv2dOptions(16, 32, 3)));
  nn::Linear out = register_module("out", nn::Linear(800, 10));
};

struct Block : nn::Module {
  static constexpr std::int64_t width = 128;
  static constexpr std::int64_t heads = 4;

  Tensor forward(const Tensor& input) {
    const auto batch = input.size(0), length = input.size(1);
    const auto qkv = project(attention_norm(input)).split(width, 2);
    const auto split = [&](const Tensor& part) {
      return part.view({batch, length, heads, width / heads}).transpose(1, 2);
    };
    const auto attended =
        at::scaled_dot_product_attention(split(qkv[0]), split(qkv[1]), split(qkv[2]), {}, 0.0, true);
    const auto middle = input + join(attended.transpose(1, 2).reshape({batch, length, width}));
    return middle + narrow(torch::gelu(widen(feed_norm(middle))));
  }
  nn::LayerNorm attention_norm =
      register_module("attention_norm", nn::LayerNorm(nn::LayerNormOptions({width})));
  nn::Linear project = register_module("project", nn::Linear(width, 3 * width));
  nn::Linear join = register_module("join", nn::Linear(width, width));
  nn::LayerNorm feed_norm = register_module("feed_norm", nn::LayerNorm(nn::LayerNormOptions({width})));
  nn::Linear widen = register_module("widen", nn::Linear(width, 4 * width));
  nn::Linear narrow = register_module("narrow", nn::Linear(4 * width, width));
};

/// W3: four layers of width 128 over 64 of 256 tokens.
struct Transformer : Net {
  Transformer() {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    }
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({Block::width})));
    out = register_module("out", nn::Linear(Block::width, 256));
  }
  Tensor forward(const Tensor& input) override {
    auto activation = tokens(input) + positions(torch::arange(input.size(1)));
    for (const auto& block : blocks) activation = block->forward(activation);
    return out(norm(activation)).view({-1, 256});
  }
  nn::Embedding tokens = register_module("tokens", nn::Embedding(256, Block::width));
  nn::Embedding positions = register_module("positions", nn::Embedding(64, Block::width));
  std::vector<std::shared_ptr<Block>> blocks;
  nn::LayerNorm norm{nullptr};
  nn::Linear out{nullptr};
};

/// W4: 200 layers of 8 x 8, orthogonal at the start so that the signal gets through all of them.
struct DeepNet : Net {
  DeepNet() {
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 200; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(8, 8)));
      layers.back()->weight.copy_(std::get<0>(torch::linalg_qr(torch::randn({8, 8}))));
      layers.back()->bias.zero_();
    }
  }
  Tensor forward(const Tensor& input) override {
    auto activation = input;
    for (auto& layer : layers) activation = layer(activation);
    return activation;
  }
  std::vector<nn::Linear> layers;
};

inline std::shared_ptr<Net> make_net(const Workload& of) {
  torch::manual_seed(0);
  if (of.name == "W2") return std::make_shared<ConvNet>();
  if (of.name == "W3") return std::make_shared<Transformer>();
  if (of.name == "W4") return std::make_shared<DeepNet>();
  return std::make_shared<Mlp>();
}

inline std::vector<lockstep::Example> draw_batches(const Workload& of, int count, std::uint64_t seed) {
  torch::manual_seed(seed);
  std::vector<lockstep::Example> batches;
  for (int i = 0; i < count; ++i) {
    if (of.name == "W2") {
      auto data = torch::randn({32, 1, 28, 28});
      batches.push_back({data, torch::randint(10, {32}, torch::kLong)});
    } else if (of.name == "W3") {
      auto data = torch::randint(256, {8, 64}, torch::kLong);
      batches.push_back({data, torch::randint(256, {512}, torch::kLong)});
    } else if (of.name == "W4") {
      auto data = torch::randn({8, 8});
      batches.push_back({data, torch::randint(8, {8}, torch::kLong)});
    } else {
      auto data = torch::randn({32, 32});
      batches.push_back({data, torch::randint(10, {32}, torch::kLong)});
    }
  }
  return batches;
}

inline std::vector<lockstep::Example> training_batches(const Workload& of) { return draw_batches(of, 64, 1); }
inline std::vector<lockstep::Example> validation_batches(const Workload& of) {
  return draw_batches(of, 10, 2);
}

/// Cuts a run into windows of equal length, each timed by itself; the warm-up is not.
class Stopwatch {
 public:
  Stopwatch(std::int64_t warm, std::int64_t window) : until_mark_(warm), window_(window) {}

  /// A piece of work begins.
  void tick() {
    if (until_mark_-- > 0) return;
    until_mark_ = window_ - 1;
    mark();
  }

  /// Seconds of each window, for one of the `parts` it holds.
  [[nodiscard]] std::vector<double> seconds(std::int64_t parts) const {
    std::vector<double> result;
    for (std::size_t i = 1; i < marks_.size(); ++i) {
      const std::chrono::duration<double> window = marks_[i] - marks_[i - 1];
      result.push_back(window.count() / static_cast<double>(parts));
    }
    return result;
  }

 private:
  /// Callgrind cuts its counts at calls of this function, which must not vanish.
  [[gnu::noinline]] void mark() { marks_.push_back(std::chrono::steady_clock::now()); }

  std::int64_t until_mark_;
  std::int64_t window_;
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

/// Seconds of each of `count` updates alone, of W3, W4, or of W5, which is ten parameters of a million
/// elements. `way`: `trainer`, `without_average`, or `stream`, the time that W5's bytes take to be read and
/// written.
std::vector<double> time_update_part(const std::string& of, const std::string& way, std::int64_t warm,
                                     std::int64_t count);

/// Seconds of each of `count` saves. `of` `saves-large`: 126 MB; `way`: `background` or `at_once`, for how long a run waits
/// for a checkpoint; `copy`, of the bytes in memory; `file` and `by_hand`, a durable file by save_weights() and by the
/// fewest system calls. `of` `saves-small`: 1,200 small tensors; `file`, `by_hand`.
std::vector<double> time_saves(const std::string& of, const std::string& way, std::int64_t warm, std::int64_t count);

/// Seconds of updates of a run that saves 126 MB once in a while.
struct UpdatesBesideSave {
  std::vector<double> beside;  ///< while a checkpoint was written
  std::vector<double> alone;
};
UpdatesBesideSave time_updates_beside_save(const std::string& of, std::int64_t updates);

/// Trains W1 from the newest checkpoint in `folder`, and saves there; prints a line for each update of this process until
/// it is killed.
void resume_and_tell(const std::filesystem::path& folder);

}  // namespace performance
