#include "loop/trainer_impl.hpp"

#include <utility>

#include "base/saving_messages.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/tensors/profiler_range.hpp"
#include "loop/packed_history.hpp"
#include "tensors/safetensors_format.hpp"

namespace lockstep::detail {
namespace {

bool in_background(SaveFor purpose) { return purpose == SaveFor::interval || purpose == SaveFor::request; }

}  // namespace

template <class Work>
void TrainerCore::Impl::try_to_save(SaveFor purpose, Work work) {
  try {
    work();
  } catch (...) {
    const auto failure = std::current_exception();
    switch (purpose) {
      case SaveFor::interval:
      case SaveFor::request:
        return save_failed(failure);
      case SaveFor::end:
        unsaved = failure;
        return;
      case SaveFor::failure:
        return warn(message::warning_not_saved(text_of(failure)));
    }
  }
}

void TrainerCore::Impl::resume(const LatestCheckpoint& found, const TrainOptions& options) {
  progress = restore_checkpoint(live(), found.checkpoint, found.directory.string(), progress.rates,
                                {.keep_schedule = options.keep_schedule || torch_schedule,
                                 .resume_world_size = options.resume_world_size},
                                [this](const std::string& text) { warn(text); });
  if (!parts.source.exact_resume && progress.state.next_batch > 0) warn(message::warning_source_reread());
  checkpoints.saved_before(position(), found.directory);
  resumed = true;
  take_over_best(found);
}

void TrainerCore::Impl::share_history() {
  if (agreement.alone()) return;
  const auto bytes = agreement.exchange(is_main() ? packed(progress.history) : "").front();
  if (!is_main()) progress.history = unpacked(bytes);
}

void TrainerCore::Impl::take_over_best(const LatestCheckpoint& found) {
  best.clear();
  if (!progress.state.best_step || !progress.monitor) return;
  const auto take = [&](const Checkpoint& checkpoint) {
    if (checkpoint.manifest.at("state").at("step") != *progress.state.best_step ||
        checkpoint.manifest.at("run_id") != progress.run_id) {
      return false;
    }
    NamedTensors tensors =
        average && !is_raw(progress.monitor->metric()) && !checkpoint.ema.empty() ? checkpoint.ema : checkpoint.model;
    tensors.insert(tensors.end(), checkpoint.objective.begin(), checkpoint.objective.end());
    best.keep(tensors);
    return true;
  };
  try {
    if (take(read_checkpoint(found.directory.parent_path() / "best", parts.accelerator.rank()))) return;
  } catch (const CheckpointError&) {
    // Said below: a run can do without its best weights until there are better ones.
  }
  if (!take(found.checkpoint)) warn(message::warning_best_absent(*progress.state.best_step));
}

void TrainerCore::Impl::forget_best_of_another_monitor() {
  if (!config.monitor) return;
  const auto& before = progress.monitor;
  if (before && progress.state.best_step &&
      (before->metric() != config.monitor->metric() ||
       before->options().direction != config.monitor->options().direction)) {
    warn(message::warning_another_monitor(before->metric(), config.monitor->metric()));
    progress.state.best_metric = {};
    progress.state.best_step = {};
    progress.state.evaluations_without_improvement = 0;
    best.clear();
  }
  progress.monitor = config.monitor;
}

Position TrainerCore::Impl::position() const {
  Position here{progress.state, progress.evaluated, progress.pending};
  here.state.end = EndReason::none;
  here.state.stop_reason = {};
  return here;
}

void TrainerCore::Impl::save(const CheckpointNames& names, SaveFor purpose) {
  if (!saves()) return;
  const Position here = position();
  bool needed = false;
  bool skipped = false;
  agreement.locally([&] {
    if (!is_main()) return;
    if (!in_background(purpose)) checkpoints.wait();
    if (const auto failure = checkpoints.take_failure()) earlier_save_failed(failure, purpose);
    skipped = purpose == SaveFor::interval && config.skip_busy_saves && checkpoints.busy();
    if (skipped) return note_skipped_save();
    needed = !checkpoints.is_saved(here);
  });
  if (agreement.meet({.phase = Phase::checkpoint, .save = needed}).front().save) {
    if (config.check_ranks_every) shared.compare_weights(state().step);
    write(here, names, purpose);
  } else if (!skipped) {
    agreement.locally([&] {
      if (is_main()) try_to_save(purpose, [&] { checkpoints.name(list_of(names), config.keep_checkpoints, progress.run_id); });
    });
  }
}

std::vector<std::string> TrainerCore::Impl::list_of(const CheckpointNames& names) {
  std::vector<std::string> list = {"last"};
  if (names.best) list.emplace_back("best");
  if (names.final) list.emplace_back("final");
  return list;
}

void TrainerCore::Impl::write(const Position& here, const CheckpointNames& names, SaveFor purpose) {
  const ProfilerRange range("lockstep::save");
  const auto begin = save_clock();
  ++progress.save_index;
  SaveJob job{.names = list_of(names), .keep = config.keep_checkpoints, .run_id = progress.run_id};
  agreement.locally([&] {
    const TrainState full = std::exchange(progress.state, here.state);
    job.checkpoint = take_checkpoint(live(), progress, resolved_config(), metadata);
    progress.state = full;
  });
  if (!agreement.alone()) {
    // One rank writes all files, so that a checkpoint is complete or absent however many ranks there are.
    std::string mine;
    agreement.locally([&] {
      if (!is_main()) mine = safetensors_bytes({job.checkpoint.rank});
    });
    job.checkpoint.other_ranks = agreement.exchange(mine);
    job.checkpoint.other_ranks.erase(job.checkpoint.other_ranks.begin());
  }
  agreement.locally([&] {
    if (!is_main()) return;
    std::filesystem::path directory;
    try_to_save(purpose, [&] { directory = checkpoints.save(here, std::move(job), in_background(purpose)); });
    save_timer.saved(begin);
    lap(Activity::checkpoint);
    if (!directory.empty()) log("checkpoint", {}, directory.string());
  });
}

// ---- saves that fail ----

void TrainerCore::Impl::save_failed(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const FileError& error) {
    if (config.fail_on_save_error) throw;
    warn(message::warning_save_failed(error.what()));
  }
}

void TrainerCore::Impl::earlier_save_failed(const std::exception_ptr& failure, SaveFor purpose) {
  switch (purpose) {
    case SaveFor::interval:
    case SaveFor::request:
      return save_failed(failure);
    case SaveFor::end:
      return try_to_save(SaveFor::end, [&] { save_failed(failure); });
    case SaveFor::failure:
      return warn(message::warning_earlier_save_failed(text_of(failure)));
  }
}

void TrainerCore::Impl::note_skipped_save() {
  save_timer.skipped();
  ++skipped_saves;
  log("skip_save", {{"skipped_saves", static_cast<double>(skipped_saves)}}, message::save_skipped(skipped_saves));
}

void TrainerCore::Impl::save_before_failure() noexcept {
  if (!saves()) return;
  try {
    random_before_window.put_back();
    save({}, SaveFor::failure);
  } catch (const std::exception& error) {
    warn(message::warning_not_saved(error.what()));
  }
}

}  // namespace lockstep::detail
