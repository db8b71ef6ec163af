// The errors of checkpoints and weights files as such, beside those of messages.hpp. Only compiled parts throw them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.hpp"

namespace lockstep::message {

FileError checkpoint_lock_lost(const std::string& root);
ConfigError no_place_for_metadata(const std::string& path);
ConfigError no_averages_in(const std::string& path);
/// `problems` are made by the functions below.
CheckpointError weights_not_alike(const std::string& first, const std::string& other,
                                  const std::vector<std::string>& problems);
std::string problem_only_in(const std::string& tensor, const std::string& path);
std::string problem_unlike(const std::string& tensor, const std::string& first, const std::string& other);

}  // namespace lockstep::message
