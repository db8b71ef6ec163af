#include "loop/snapshot.hpp"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>
#include <torch/version.h>

#include <algorithm>
#include <map>

#include "config/json.hpp"
#include "base/rank_messages.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/base/random.hpp"
#include "lockstep/base/version.hpp"
#include "lockstep/tensors/random_state.hpp"
#include "loop/packed_history.hpp"
#include "loop/torch_build.hpp"
#include "tensors/copy_by_name.hpp"

namespace lockstep {
namespace {

using nlohmann::json;
using Problems = std::vector<std::string>;

const std::string source_batch_name = "source_batch";
/// Of rank 0, if there are completed epochs.
const std::string history_name = "history";
/// Of ranks other than 0, by their number: rank 0's are the model's.
const std::string buffer_prefix = "buffer/";

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

/// What the course of the loss scale depends on; its initial value is in the state.
json loss_scaler_settings(const AcceleratorOptions& options) {
  if (!scales_loss(options.precision)) return nullptr;
  const auto settings = options.loss_scaler.value_or(LossScalerOptions{});
  return {{"growth_factor", settings.growth_factor},
          {"backoff_factor", settings.backoff_factor},
          {"growth_interval", settings.growth_interval}};
}

/// The elements of a list that another one does not have.
json without(json list, const json& other) {
  std::erase_if(list.get_ref<json::array_t&>(),
                [&other](const json& one) { return std::find(other.begin(), other.end(), one) != other.end(); });
  return list;
}

/// Settings without which a run cannot be continued, and those that only cost exact bits.
void compare_fingerprints(const json& saved, const json& own, Permission another_world_size, Problems& problems,
                          Problems& warnings) {
  if (saved.at("world_size") != own.at("world_size")) {
    const auto before = saved.at("world_size").get<int>();
    const auto now = own.at("world_size").get<int>();
    if (another_world_size == Permission::allow && !own.at("own_batches").get<bool>()) {
      warnings.push_back(message::warning_world_size(before, now));
    } else {
      problems.push_back(message::problem_world_size(before, now));
    }
  }
  for (const auto* name : {"precision", "loss_scaler", "gradient_accumulation_steps", "seed", "own_batches"}) {
    if (saved.at(name) != own.at(name)) {
      problems.push_back(message::problem_setting(name, saved.at(name).dump(), own.at(name).dump()));
    }
  }
  for (const auto& [name, value] : own.at("data").items()) {
    const auto& before = saved.at("data").at(name);
    if (before != value)
      problems.push_back(message::problem_setting("data " + name, before.dump(), value.dump()));
  }
  for (const auto* name : {"torch", "cpu_capability", "threads", "device", "flat_parameters"}) {
    if (saved.at(name) != own.at(name)) {
      warnings.push_back(message::warning_not_bit_exact(name, saved.at(name).dump(), own.at(name).dump()));
    }
  }
  // Checkpoints of earlier versions do not say.
  if (const auto build = saved.find("build"); build != saved.end() && *build != own.at("build")) {
    warnings.push_back(message::warning_not_bit_exact("build", without(*build, own.at("build")).dump(),
                                                      without(own.at("build"), *build).dump()));
  }
}

/// Takes out of `object` what `other` does not have.
void keep_common(json& object, const json& other) {
  for (auto field = object.begin(); field != object.end();) {
    field = other.contains(field.key()) ? std::next(field) : object.erase(field);
  }
}

/// Rates and options that the checkpoint replaces. The present rate is base times schedule, so only the base
/// counts. What only one of two optimizers of a kind knows, `maximize` say, is no difference.
void compare_options(const json& saved_groups, const json& own_groups, Problems& warnings) {
  for (std::size_t i = 0; i < own_groups.size(); ++i) {
    json saved = saved_groups.at(i).at("options");
    json own = own_groups.at(i).at("options");
    saved["lr"] = saved_groups.at(i).at("base_lr");
    own["lr"] = own_groups.at(i).at("base_lr");
    keep_common(saved, own);
    keep_common(own, saved);
    if (saved != own) {
      const auto name = own_groups.at(i).at("name").get<std::string>();
      warnings.push_back(message::warning_options_restored(name, saved.dump(), own.dump()));
    }
  }
}

/// Whether the saved objects are those registered now. Of the registered ones, what was not saved keeps its
/// values.
void compare_registered(const json& saved, const std::vector<RegisteredState>& registered, Problems& problems,
                        Problems& warnings) {
  std::set<std::string> left = saved.get<std::set<std::string>>();
  for (const auto& object : registered) {
    if (left.erase(object.name) == 0)
      warnings.push_back(message::warning_registered_state_absent(object.name));
  }
  for (const auto& name : left) problems.push_back(message::problem_left_over_state(name));
}

void load_registered(const NamedTensors& saved, const json& names,
                     const std::vector<RegisteredState>& registered) {
  for (const auto& object : registered) {
    if (std::find(names.begin(), names.end(), object.name) == names.end()) continue;
    NamedTensors own;
    for (const auto& [name, tensor] : saved) {
      if (name.starts_with(object.name + "/")) own.emplace_back(name.substr(object.name.size() + 1), tensor);
    }
    object.load(own);
  }
}

void restore_buffers(const NamedTensors& rank, const TrainedModules& modules) {
  for (const auto& [name, tensor] : rank) {
    if (name.starts_with(buffer_prefix)) modules.buffers().at(std::stoul(name.substr(buffer_prefix.size()))).copy_(tensor);
  }
}

at::Tensor tensor_of(const std::string& bytes) {
  const at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.data_ptr()));
  return tensor;
}

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

}  // namespace

std::optional<LossScaler> new_loss_scaler(const AcceleratorOptions& options) {
  if (!scales_loss(options.precision)) return {};
  return LossScaler(options.loss_scaler.value_or(LossScalerOptions{}));
}

json fingerprint(const Live& live) {
  const auto& source = live.source;
  const auto& options = live.accelerator.options();
  return {{"lockstep", LOCKSTEP_VERSION},
          {"torch", TORCH_VERSION},
          {"build", torch_build()},
          {"cpu_capability", at::get_cpu_capability()},
          {"threads", at::get_num_threads()},
          {"device", c10::DeviceTypeName(live.accelerator.device().type(), true)},
          {"world_size", live.accelerator.world_size()},
          {"precision", to_string(options.precision)},
          {"own_batches", live.own_batches},
          {"flat_parameters", live.optimizer.arena().layout() == ParameterLayout::flat},
          {"loss_scaler", loss_scaler_settings(options)},
          {"gradient_accumulation_steps", options.gradient_accumulation_steps},
          {"seed", options.seed},
          {"data",
           {{"batches", or_null(source.batches)},
            {"samples", or_null(source.samples)},
            {"batch_size", or_null(source.batch_size)},
            {"seed", or_null(source.seed)},
            {"shuffle", or_null(source.shuffle)},
            {"drop_last", or_null(source.drop_last)},
            {"even_batches", or_null(source.even_batches)},
            {"split_batches", or_null(source.split_batches)}}}};
}

Checkpoint take_checkpoint(const Live& live, Progress& progress, const json& config, const json& metadata) {
  OptimizerState optimizer = live.optimizer.state();
  Checkpoint checkpoint;
  checkpoint.manifest = {
      {"run_id", progress.run_id},
      {"save_index", progress.save_index},
      {"state", to_json(progress.state)},
      {"source_batch", progress.source_batch},  // of rank 0, for ranks that are new on resume
      {"loss_unit", progress.loss_unit},
      {"evaluated", progress.evaluated},
      {"evaluation_pending", progress.pending},
      {"monitor", progress.monitor ? to_json(*progress.monitor) : json(nullptr)},
      {"schedule", to_json(progress.rates)},
      {"loss_scaler", progress.loss_scaler ? json{{"scale", progress.loss_scaler->scale()},
                                                  {"growth_tracker", progress.loss_scaler->growth_tracker()}}
                                           : json(nullptr)},
      {"optimizer", std::move(optimizer.description)},
      {"ema", live.average ? json{{"decay", live.average->options().decay},
                                  {"warmup", live.average->options().warmup},
                                  {"updates", live.average->updates()},
                                  {"started", live.average->started()}}
                           : json(nullptr)},
      {"registered", json::array()},
      {"fingerprint", fingerprint(live)},
      {"slice_layout", live.slice_layout},
      {"config", config},
      {"metadata", metadata}};
  checkpoint.model = live.modules.model_state();
  if (live.average) checkpoint.ema = live.average->over(checkpoint.model);
  checkpoint.optimizer = std::move(optimizer.tensors);
  checkpoint.objective = live.modules.objective_state();
  for (const auto& object : live.registered) {
    checkpoint.manifest["registered"].push_back(object.name);
    for (auto& [name, tensor] : object.state()) {
      checkpoint.registered.emplace_back(object.name + "/" + name, tensor);
    }
  }
  checkpoint.rank = random_state(live.accelerator.device());
  checkpoint.rank.emplace_back(source_batch_name, at::scalar_tensor(progress.source_batch, at::kLong));
  if (!live.accelerator.is_main_process()) {
    const auto& buffers = live.modules.buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      checkpoint.rank.emplace_back(buffer_prefix + std::to_string(i), buffers[i]);
    }
  }
  for (auto& total : progress.totals.state()) checkpoint.rank.push_back(std::move(total));
  if (live.accelerator.is_main_process() && !progress.history.empty()) {
    checkpoint.rank.emplace_back(history_name, tensor_of(packed(progress.history)));
  }
  return checkpoint;
}

Progress restore_checkpoint(const Live& live, const Checkpoint& checkpoint, const std::string& path,
                            const RateSchedule& given, const RestoreOptions& options,
                            const std::function<void(const std::string&)>& warn) {
  try {
    const json& manifest = checkpoint.manifest;
    const OptimizerState optimizer{.description = manifest.at("optimizer"), .tensors = checkpoint.optimizer};
    const bool has_average = !manifest.at("ema").is_null();

    Progress progress;
    progress.run_id = manifest.at("run_id").get<std::string>();
    progress.save_index = manifest.at("save_index").get<std::int64_t>();
    progress.state = read_json<TrainState>(manifest.at("state"), json::json_pointer("/state"));
    progress.source_batch = manifest.at("source_batch").get<std::int64_t>();
    progress.loss_unit = manifest.at("loss_unit").get<std::int64_t>();
    progress.evaluated = manifest.at("evaluated").get<std::set<std::string>>();
    progress.pending = manifest.at("evaluation_pending").get<std::set<std::string>>();
    if (const json& monitor = manifest.at("monitor"); !monitor.is_null()) {
      progress.monitor = read_json<Monitor>(monitor, json::json_pointer("/monitor"));
    }
    progress.loss_scaler = new_loss_scaler(live.accelerator.options());
    if (const json& scaler = manifest.at("loss_scaler"); progress.loss_scaler && !scaler.is_null()) {
      progress.loss_scaler->restore(scaler.at("scale").get<double>(),
                                    scaler.at("growth_tracker").get<std::int64_t>());
    }
    for (const auto& [name, tensor] : checkpoint.rank) {
      if (name == source_batch_name) progress.source_batch = tensor.item<std::int64_t>();
      if (name == history_name) progress.history = unpacked(bytes_of(tensor));
    }
    progress.totals.load(checkpoint.rank);

    Problems misfits;
    Problems warnings;
    progress.rates = restored(manifest.at("schedule"), given, options.keep_schedule, misfits, warnings);
    const json& saved_fingerprint = manifest.at("fingerprint");
    const json own_fingerprint = fingerprint(live);
    const bool same_world = saved_fingerprint.at("world_size") == own_fingerprint.at("world_size");
    compare_fingerprints(saved_fingerprint, own_fingerprint, options.resume_world_size, misfits, warnings);
    if (same_world && manifest.at("slice_layout") != live.slice_layout) {
      warnings.push_back(message::warning_not_bit_exact("slice_layout", manifest.at("slice_layout").dump(),
                                                        live.slice_layout.dump()));
    }
    const NamedTensors model = live.modules.model_state();
    const NamedTensors objective = live.modules.objective_state();
    compare_tensors("model", checkpoint.model, model, misfits);
    compare_tensors("objective", checkpoint.objective, objective, misfits);
    if (has_average != (live.average != nullptr)) misfits.push_back(message::problem_average(has_average));
    if (has_average && live.average) {
      compare_tensors("averaged weights", checkpoint.ema, live.average->over(model), misfits);
      const auto& own = live.average->options();
      for (const auto& [name, value] : {std::pair("decay", json(own.decay)), {"warmup", json(own.warmup)}}) {
        const auto& before = manifest.at("ema").at(name);
        if (before == value) continue;
        misfits.push_back(message::problem_setting(std::string("ema_") + name, before.dump(), value.dump()));
      }
    }
    for (auto& problem : live.optimizer.misfits(optimizer)) misfits.push_back(std::move(problem));
    compare_registered(manifest.at("registered"), live.registered, misfits, warnings);
    if (!misfits.empty()) throw message::checkpoint_does_not_fit(path, misfits);
    compare_options(optimizer.description.at("groups"), live.optimizer.state().description.at("groups"),
                    warnings);
    for (const auto& warning : warnings) warn(warning);

    const c10::AutoGradMode no_grad(false);
    live.optimizer.load(optimizer);
    copy_by_name(checkpoint.model, model);
    copy_by_name(checkpoint.objective, objective);
    if (has_average) {
      const auto& ema = manifest.at("ema");
      live.average->load(ema.at("started").get<bool>() ? checkpoint.ema : NamedTensors{},
                         ema.at("updates").get<std::int64_t>());
    }
    load_registered(checkpoint.registered, manifest.at("registered"), live.registered);
    if (!checkpoint.rank.empty()) {
      set_random_state(checkpoint.rank, live.accelerator.device());
      restore_buffers(checkpoint.rank, live.modules);
    } else {
      // A rank that the run did not have.
      at::manual_seed(mix(live.accelerator.options().seed, live.accelerator.rank(), progress.state.batches));
    }
    return progress;
  } catch (const json::exception& error) {
    throw message::damaged_checkpoint(path + "/manifest.json", error.what());
  }
}

}  // namespace lockstep
