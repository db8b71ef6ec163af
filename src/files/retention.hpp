// Which checkpoints may go, and how they go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

/// Checkpoints of this run that are older than the `keep` newest and neither named, nor `saved`, nor the newest valid
/// one of the run, nor hold a file of somebody else.
std::vector<std::filesystem::path> superfluous_checkpoints(const std::filesystem::path& root, std::int64_t keep,
                                                           const std::string& run_id,
                                                           const std::filesystem::path& saved = {});

}  // namespace lockstep
