// Averaged weights: an exponential moving average of the trainable parameters.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/optim/parameter_arena.hpp"
#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// Which weights to evaluate or export: the current ones, their average, or those of the best evaluation so
/// far as they were evaluated then.
enum class Weights { raw, ema, best };

struct WeightAverageOptions {
  /// In [0, 1).
  double decay = 0;
  /// At the n-th update the decay is (1 + n) / (10 + n) where that is smaller, so that the first updates,
  /// which are far from where the weights end, weigh less.
  bool warmup = false;
};

/// The exponential moving average of parameters: average = decay * average + (1 - decay) * parameter.
///
/// It starts from the weights before the first update and moves once per successful update; before that it is
/// the raw weights, bit for bit. Buffers that are not handed in (batch-norm statistics, say) are the model's
/// own current ones in the averaged model. The average lives on the tensors' device; it is fp32 for tensors
/// of half type and of their own type else. Averages of parameters in a flat arena lie in flat buffers of the
/// same layout.
///
/// Ownership: shares the tensors with the model, refers to the arena, owns the average.
/// Errors: ConfigError `invalid-settings` for a decay outside [0, 1).
/// Source: B. T. Polyak, A. B. Juditsky, "Acceleration of stochastic approximation by averaging", 1992, in
/// the exponential form of torch.optim.swa_utils.
class WeightAverage {
 public:
  /// `arena`: where some of the parameters lie; null: each has storage of its own.
  WeightAverage(const WeightAverageOptions& options, const NamedTensors& parameters,
                ParameterArena* arena = nullptr);

  [[nodiscard]] const WeightAverageOptions& options() const { return options_; }
  [[nodiscard]] bool started() const { return started_; }
  /// How often it moved.
  [[nodiscard]] std::int64_t updates() const { return updates_; }

  /// Call before the first update; does nothing later.
  void start();
  /// Call after each successful update.
  void update();

  /// The two halves of update(), for one who moves the flat averages on the way: the weight of the parameters
  /// in this update; and what lies in no buffer.
  [[nodiscard]] double next_weight();
  void update_separate(double weight);
  /// By a weight on the device, [] of doubles, that is 0 where nothing may change.
  void update_separate(const at::Tensor& weight);
  /// The last update was none.
  void take_back() { --updates_; }
  /// The averages beside the arena's buffers; empty before start().
  [[nodiscard]] const std::vector<at::Tensor>& buffers() const { return buffers_; }

  /// The average by parameter name; the raw parameters before it started, in the average's types.
  [[nodiscard]] NamedTensors named() const;
  /// `state` with averages in the place of the tensors of their names.
  [[nodiscard]] NamedTensors over(NamedTensors state) const;
  /// Takes over a saved average, by name; the names and shapes must fit (they were checked). Empty: not
  /// started.
  void load(const NamedTensors& saved, std::int64_t updates);

  /// Puts the average into the model, and the raw weights back when it goes. Flat buffers exchange their
  /// memory with the averages', which costs nothing and reaches whoever holds a view of a parameter.
  class [[nodiscard]] Swap {
   public:
    explicit Swap(WeightAverage& average);
    ~Swap();
    Swap(const Swap&) = delete;
    Swap& operator=(const Swap&) = delete;

   private:
    void exchange();

    WeightAverage& average_;
    std::vector<at::Tensor> buffers_;  // change places with the arena's
    std::vector<at::Tensor> raw_;      // of what lies in no buffer
  };

 private:
  struct Entry {
    std::string name;
    at::Tensor tensor;
    const ParameterArena::Member* member;  // null: it lies in no buffer
    std::size_t separate;                  // where it is among those
  };

  [[nodiscard]] at::Tensor average_of(const Entry& entry) const;

  WeightAverageOptions options_;
  ParameterArena* arena_;
  std::vector<Entry> entries_;
  std::vector<const ParameterArena::Member*> unaveraged_;  // of the arena
  std::vector<at::Tensor> buffers_;                 // beside the arena's
  std::vector<at::Tensor> separate_;                // the tensors in no buffer
  std::vector<at::Tensor> separate_average_;
  std::int64_t updates_ = 0;
  bool started_ = false;
  bool swapped_ = false;
};

}  // namespace lockstep
