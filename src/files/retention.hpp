// Which checkpoints may go, and how they go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/files/checkpoint_folder.hpp"

namespace lockstep {

/// Of `entries`, the newest first: checkpoints of this run that are older than the `keep` newest and neither named, nor
/// `saved`, nor the newest valid one of the run, nor hold a file of somebody else.
std::vector<std::filesystem::path> superfluous_checkpoints(const std::vector<CheckpointEntry>& entries,
                                                           std::int64_t keep, const std::string& run_id,
                                                           const std::filesystem::path& saved = {});

}  // namespace lockstep
