#include "loop/snapshot.hpp"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/version.h>

#include <map>

#include "config/json.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/base/version.hpp"
#include "lockstep/tensors/module_state.hpp"
#include "lockstep/tensors/random_state.hpp"

namespace lockstep {
namespace {

using nlohmann::json;
using Problems = std::vector<std::string>;

constexpr std::string_view log_prefix = "log/";

template <class T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

NamedTensors averaged_state(const Live& live) {
  NamedTensors state = module_state(live.module);
  std::map<std::string, at::Tensor> averages;
  for (const auto& [name, tensor] : live.average->named()) averages.emplace(name, tensor);
  for (auto& [name, tensor] : state) {
    if (const auto found = averages.find(name); found != averages.end()) tensor = found->second;
  }
  return state;
}

void compare_tensors(const std::string& what, const NamedTensors& saved, const NamedTensors& own,
                     Problems& problems) {
  std::map<std::string, at::Tensor> saved_by_name(saved.begin(), saved.end());
  for (const auto& [name, tensor] : own) {
    const auto found = saved_by_name.find(name);
    if (found == saved_by_name.end()) {
      problems.push_back(message::problem_missing_tensor(what, name));
      continue;
    }
    if (found->second.sizes() != tensor.sizes()) {
      problems.push_back(
          message::problem_shape(what + " " + name, found->second.sizes().vec(), tensor.sizes().vec()));
    } else if (found->second.scalar_type() != tensor.scalar_type()) {
      problems.push_back(message::problem_type(what + " " + name, c10::toString(found->second.scalar_type()),
                                               c10::toString(tensor.scalar_type())));
    }
    saved_by_name.erase(found);
  }
  for (const auto& left : saved_by_name)
    problems.push_back(message::problem_left_over_tensor(what, left.first));
}

/// Settings without which a run cannot be continued, and those that only cost exact bits.
void compare_fingerprints(const json& saved, const json& own, Problems& problems, Problems& warnings) {
  for (const auto* name : {"world_size", "precision", "gradient_accumulation_steps", "seed"}) {
    if (saved.at(name) != own.at(name)) {
      problems.push_back(message::problem_setting(name, saved.at(name).dump(), own.at(name).dump()));
    }
  }
  for (const auto& [name, value] : own.at("data").items()) {
    const auto& before = saved.at("data").at(name);
    if (before != value)
      problems.push_back(message::problem_setting("data " + name, before.dump(), value.dump()));
  }
  for (const auto* name : {"torch", "cpu_capability", "threads", "device"}) {
    if (saved.at(name) != own.at(name)) {
      warnings.push_back(message::warning_not_bit_exact(name, saved.at(name).dump(), own.at(name).dump()));
    }
  }
}

/// Rates and options that the checkpoint replaces. The present rate is base times schedule, so only the base
/// counts.
void compare_options(const json& saved_groups, const json& own_groups, Problems& warnings) {
  for (std::size_t i = 0; i < own_groups.size(); ++i) {
    json saved = saved_groups.at(i).at("options");
    json own = own_groups.at(i).at("options");
    saved["lr"] = saved_groups.at(i).at("base_lr");
    own["lr"] = own_groups.at(i).at("base_lr");
    if (saved != own) {
      const auto name = own_groups.at(i).at("name").get<std::string>();
      warnings.push_back(message::warning_options_restored(name, saved.dump(), own.dump()));
    }
  }
}

void copy_tensors(const NamedTensors& from, const NamedTensors& to) {
  const std::map<std::string, at::Tensor> by_name(from.begin(), from.end());
  for (const auto& [name, tensor] : to) tensor.copy_(by_name.at(name));
}

}  // namespace

json fingerprint(const Live& live) {
  const auto& source = live.source;
  const auto& options = live.accelerator.options();
  return {{"lockstep", LOCKSTEP_VERSION},
          {"torch", TORCH_VERSION},
          {"cpu_capability", at::get_cpu_capability()},
          {"threads", at::get_num_threads()},
          {"device", c10::DeviceTypeName(live.accelerator.device().type(), true)},
          {"world_size", live.accelerator.world_size()},
          {"precision", to_string(options.precision)},
          {"gradient_accumulation_steps", options.gradient_accumulation_steps},
          {"seed", options.seed},
          {"data",
           {{"batches", or_null(source.batches)},
            {"samples", or_null(source.samples)},
            {"batch_size", or_null(source.batch_size)},
            {"seed", or_null(source.seed)},
            {"shuffle", or_null(source.shuffle)},
            {"drop_last", or_null(source.drop_last)}}}};
}

Checkpoint take_checkpoint(const Live& live, Progress& progress, const json& config, const json& metadata) {
  OptimizerState optimizer = live.optimizer.state();
  Checkpoint checkpoint;
  checkpoint.manifest = {
      {"run_id", progress.run_id},
      {"save_index", progress.save_index},
      {"state", to_json(progress.state)},
      {"loss_unit", progress.loss_unit},
      {"evaluated", progress.evaluated},
      {"evaluation_pending", progress.evaluation_pending},
      {"schedule", progress.schedule ? json{{"warmup_decay", to_json(*progress.schedule)}} : json(nullptr)},
      {"optimizer", std::move(optimizer.description)},
      {"ema", live.average ? json{{"decay", live.average->decay()}, {"started", live.average->started()}}
                           : json(nullptr)},
      {"fingerprint", fingerprint(live)},
      {"slice_layout", nullptr},  // one process sums nothing over ranks
      {"config", config},
      {"metadata", metadata}};
  checkpoint.model = module_state(live.module);
  if (live.average) checkpoint.ema = averaged_state(live);
  checkpoint.optimizer = std::move(optimizer.tensors);
  checkpoint.rank = random_state(live.accelerator.device());
  for (const auto& total : progress.log_totals.entries()) {
    // As doubles in a tensor, so that no value, NaN included, loses a bit.
    checkpoint.rank.emplace_back(std::string(log_prefix) + total.name,
                                 at::tensor({total.sum, static_cast<double>(total.count)}, at::kDouble));
  }
  return checkpoint;
}

Progress restore_checkpoint(const Live& live, const Checkpoint& checkpoint, const std::string& path,
                            const std::function<void(const std::string&)>& warn) {
  try {
    const json& manifest = checkpoint.manifest;
    const OptimizerState optimizer{.description = manifest.at("optimizer"), .tensors = checkpoint.optimizer};
    const bool has_average = !manifest.at("ema").is_null();

    Progress progress;
    progress.run_id = manifest.at("run_id").get<std::string>();
    progress.save_index = manifest.at("save_index").get<std::int64_t>();
    progress.state = read_json<TrainState>(manifest.at("state"), json::json_pointer("/state"));
    progress.loss_unit = manifest.at("loss_unit").get<std::int64_t>();
    progress.evaluated = manifest.at("evaluated").get<bool>();
    progress.evaluation_pending = manifest.at("evaluation_pending").get<bool>();
    if (const json& schedule = manifest.at("schedule"); !schedule.is_null()) {
      progress.schedule =
          read_json<WarmupDecay>(schedule.at("warmup_decay"), json::json_pointer("/schedule/warmup_decay"));
    }
    for (const auto& [name, tensor] : checkpoint.rank) {
      if (!name.starts_with(log_prefix)) continue;
      progress.log_totals.add(std::string_view(name).substr(log_prefix.size()), tensor[0].item<double>(),
                              static_cast<std::int64_t>(tensor[1].item<double>()));
    }

    Problems misfits;
    Problems warnings;
    compare_fingerprints(manifest.at("fingerprint"), fingerprint(live), misfits, warnings);
    compare_tensors("model", checkpoint.model, module_state(live.module), misfits);
    if (has_average != (live.average != nullptr)) misfits.push_back(message::problem_average(has_average));
    if (has_average && live.average) {
      compare_tensors("averaged weights", checkpoint.ema, averaged_state(live), misfits);
      if (const double decay = manifest.at("ema").at("decay").get<double>(); decay != live.average->decay()) {
        misfits.push_back(message::problem_setting("ema_decay", std::to_string(decay),
                                                   std::to_string(live.average->decay())));
      }
    }
    for (auto& problem : live.optimizer.misfits(optimizer)) misfits.push_back(std::move(problem));
    if (!misfits.empty()) throw message::checkpoint_does_not_fit(path, misfits);
    compare_options(optimizer.description.at("groups"), live.optimizer.state().description.at("groups"),
                    warnings);
    for (const auto& warning : warnings) warn(warning);

    const c10::AutoGradMode no_grad(false);
    live.optimizer.load(optimizer);
    copy_tensors(checkpoint.model, module_state(live.module));
    if (has_average)
      live.average->load(manifest.at("ema").at("started").get<bool>() ? checkpoint.ema : NamedTensors{});
    set_random_state(checkpoint.rank, live.accelerator.device());
    return progress;
  } catch (const json::exception& error) {
    throw message::damaged_checkpoint(path + "/manifest.json", error.what());
  }
}

}  // namespace lockstep
