// Debugging without a change to the program.
#pragma once

namespace lockstep {

/// Whether the environment's LOCKSTEP_DEBUG asks for what TrainConfig::debug does: 1, true or on; not if it is 0, empty or
/// unset. Errors: ConfigError `invalid-debug-variable` for anything else.
[[nodiscard]] bool debug_variable();

}  // namespace lockstep
