#include "lockstep/loop/evaluator.hpp"

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "base/saving_messages.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/tensors/random_state.hpp"
#include "loop/output_values.hpp"
#include "loop/shared_run.hpp"

namespace lockstep::detail {
namespace {

/// Among the totals, how many batches there were; no metric can have this name.
constexpr std::string_view batches_name;

}  // namespace

struct EvaluationScope::Saved {
  explicit Saved(at::Device device) : random(device), no_grad(false) {}

  /// The modes of a module and of all below it.
  struct Modes {
    explicit Modes(torch::nn::Module& root) : root(root), own(root.is_training()) {
      for (const auto& child : root.modules(/*include_self=*/false)) below.emplace_back(child, child->is_training());
    }
    void put_back() const {
      // train() sets a module and all below it; parents come before their children here, so each child's own mode wins.
      root.train(own);
      for (const auto& [child, mode] : below) child->train(mode);
    }

    torch::nn::Module& root;
    bool own;
    std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> below;
  };

  RandomStateGuard random;
  c10::AutoGradMode no_grad;
  std::vector<Modes> modes;
};

EvaluationScope::EvaluationScope(torch::nn::Module& module, torch::nn::Module* objective, at::Device device)
    : saved_(std::make_unique<Saved>(device)) {
  for (auto* const root : {&module, objective}) {
    if (root == nullptr) continue;
    saved_->modes.emplace_back(*root);
    root->eval();
  }
}

EvaluationScope::~EvaluationScope() {
  for (const auto& modes : saved_->modes) modes.put_back();
}

void check_evaluator(const std::vector<std::string>& sets, const EvaluatorOptions& options) {
  std::vector<std::string> found;
  for (const auto& [name, interval] : options.every) {
    if (std::find(sets.begin(), sets.end(), name) == sets.end()) {
      found.push_back(message::problem_interval_of_unknown_set(name, sets));
    } else if (interval.every < 1) {
      found.push_back(message::problem_interval_of_set(name, interval.every));
    } else if (interval.timed()) {
      found.push_back(message::problem_timed_interval("the interval of the set \"" + name + "\"", to_string(interval)));
    }
  }
  if (!found.empty()) throw message::invalid_settings(found);
}

void SetTotals::add(const StepOutput& output) {
  ++batches;
  const auto [samples, loss] = read_values(output);
  if (samples > 0) totals.add(loss, samples, output.metrics);
}

EvaluationResults results_over_ranks(std::map<std::string, SetTotals>& sets, Agreement& agreement) {
  (void)agreement.meet({.phase = Phase::evaluation});
  EvaluationResults results;
  for (auto& [name, set] : sets) {
    set.totals.add(batches_name, 0, set.batches);
    MetricTotals all = over_ranks(std::move(set.totals), agreement);
    auto& result = results[name] = {{"loss", std::numeric_limits<double>::quiet_NaN()}};
    std::int64_t batches = 0;
    for (const auto& entry : all.entries()) {
      if (entry.name == batches_name) batches = entry.count;
    }
    if (batches == 0) agreement.together([&name = name] { throw message::empty_evaluation_set(name); });
    for (auto& [metric, mean] : all.means()) {
      if (metric != batches_name) result[metric] = mean;
    }
  }
  return results;
}

}  // namespace lockstep::detail
