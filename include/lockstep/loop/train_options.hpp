// What one train() call reads and writes besides its settings.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "lockstep/config/save_request.hpp"
#include "lockstep/config/stop_request.hpp"
#include "lockstep/files/resume_from.hpp"

namespace lockstep {

enum class Permission { refuse, allow };
/// `.resume_world_size = lockstep::allow`
inline constexpr Permission allow = Permission::allow;

struct TrainOptions {
  /// Where checkpoints go; empty: none are written. Locked while train() runs.
  std::filesystem::path checkpoint_dir = {};
  /// `latest`, or the path of a checkpoint; unset: go on from where this Trainer stands.
  std::optional<ResumeFrom> resume_from = {};
  /// Asked at every update; outlives the call.
  StopRequest* stop = nullptr;
  /// Asked at every update: the run saves there and goes on. Outlives the call.
  SaveRequest* save_now = nullptr;
  /// Kept in every checkpoint's manifest.json as it is.
  std::map<std::string, std::string> metadata = {};
  /// The program's own settings as JSON text, Settings::resolved() say; kept beside the Trainer's in config.json and in
  /// every checkpoint.
  std::string settings = {};
  /// Whether a run of another number of ranks may be continued. Where batches are dealt to the ranks it goes on at the
  /// same sample, with other windows.
  Permission resume_world_size = Permission::refuse;
  /// On resume take the schedule given to set_scheduler(), not the checkpoint's; a Plateau begins anew.
  bool keep_schedule = false;
  /// Begin Trainer::history() anew, also on resume.
  bool reset_history = false;
};

}  // namespace lockstep
