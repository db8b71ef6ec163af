#include "loop/trainer_impl.hpp"

#include <utility>

#include "lockstep/base/messages.hpp"

namespace lockstep::detail {

Names TrainerCore::Impl::all_sets() const {
  return evaluates() ? Names(parts.evaluation->sets.begin(), parts.evaluation->sets.end()) : Names();
}

Names TrainerCore::Impl::due_sets(const TrainState& at, bool updated, bool epoch_ended) const {
  Names due;
  if (!evaluates()) return due;
  for (const auto& set : parts.evaluation->sets) {
    const auto& own = parts.evaluation->options.every;
    const auto found = own.find(set);
    const Interval& interval = found == own.end() ? *config.evaluate_every : found->second;
    if (interval.due(at.step, updated, at.epoch, epoch_ended)) due.insert(set);
  }
  return due;
}

EvaluationResults TrainerCore::Impl::evaluate(const Evaluation& evaluation, EvaluationRequest request, Weights which) {
  const auto weights = use_weights(which);
  call(hooks().evaluation_begin, which);
  if (!hooks().evaluation_batch_end.empty()) {
    request.after_batch = [this](const std::string& set, const StepOutput& output) {
      for (const auto& function : hooks().evaluation_batch_end) function(view, set, output);
    };
  }
  EvaluationResults results = evaluation.run(request);
  call(hooks().evaluation_end, which, results);
  return results;
}

Values TrainerCore::Impl::run_evaluation(const Names& sets) {
  const EvaluationRequest request{.sets = {sets.begin(), sets.end()},
                                  .limit_batches = config.limit_evaluation_batches,
                                  .objective = modules.objective()};
  Values values;
  append(values, "", evaluate(*parts.evaluation, request, average ? Weights::ema : Weights::raw));
  if (config.evaluate_raw) append(values, raw_prefix, evaluate(*parts.evaluation, request, Weights::raw));
  lap(Activity::evaluate);
  if (at_epoch_end()) progress.history.extend(values);
  agreement.locally([&] { log("evaluate", values, {}); });
  return values;
}

Verdict TrainerCore::Impl::judge(const Names& sets, const Values& values) {
  if (const auto metric = scheduled_metric(); metric && sets.contains(set_of(*metric))) {
    const double value = value_of(*metric, values);
    torch_schedule ? torch_schedule->observe(value) : progress.rates.observe(value);
  }
  if (!config.monitor || !sets.contains(set_of(config.monitor->metric()))) return {};
  const Verdict verdict = config.monitor->judge(value_of(config.monitor->metric(), values), state());
  if (verdict.improved) keep_best(values);
  return verdict;
}

void TrainerCore::Impl::keep_best(Values values) {
  NamedTensors tensors = whole_state();
  if (average && !is_raw(config.monitor->metric())) tensors = average->over(std::move(tensors));
  best.keep(tensors);
  for (auto& value : values) value.first = "best/" + value.first;
  agreement.locally([&] { log("best", std::move(values), {}); });
}

Verdict TrainerCore::Impl::evaluate_now(const Names& sets) {
  const Values values = run_evaluation(sets);
  progress.evaluated.insert(sets.begin(), sets.end());
  for (const auto& set : sets) progress.pending.erase(set);
  return judge(sets, values);
}

void TrainerCore::Impl::evaluate_and_save(const Names& sets, const std::optional<SaveFor>& due) {
  Verdict verdict;
  RunRequests requests;
  if (!sets.empty()) {
    verdict = evaluate_now(sets);
    requests = settle_requests();
  }
  if (verdict.improved || requests.save) {
    save({.best = verdict.improved}, SaveFor::request);
  } else if (due) {
    save({}, *due);
  }
}

void TrainerCore::Impl::evaluate_test() {
  if (!parts.test) return;
  const auto& test = *parts.test;
  test_results = evaluate(test,
                          {.sets = test.sets,
                           .limit_batches = config.debug ? config.limit_evaluation_batches : std::nullopt,
                           .objective = modules.objective()},
                          !best.empty() ? Weights::best : average ? Weights::ema : Weights::raw);
  Values values;
  append(values, "", *test_results);
  agreement.locally([&] { log("test", std::move(values), {}); });
}

std::shared_ptr<void> TrainerCore::Impl::use_weights(Weights which) {
  std::shared_ptr<void> swap;
  switch (which) {
    case Weights::raw:
      break;
    case Weights::ema:
      if (!average) throw message::no_averaged_weights();
      optimizer.tie();
      swap = std::make_shared<WeightAverage::Swap>(*average);
      break;
    case Weights::best:
      if (best.empty()) throw message::no_best_weights();
      swap = std::make_shared<ValueSwap>(best.tensors(), whole_state());
      break;
  }
  if (shared.alone()) return swap;
  // Destroyed in the reverse order.
  return std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(std::move(swap),
                                                                                   shared.buffers_of_main());
}

NamedTensors TrainerCore::Impl::whole_state() const {
  NamedTensors state = modules.model_state();
  for (auto& tensor : modules.objective_state()) state.push_back(std::move(tensor));
  return state;
}

}  // namespace lockstep::detail
