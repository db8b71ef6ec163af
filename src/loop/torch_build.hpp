// How the LibTorch at hand was built.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// What of at::show_config()'s text may decide the last bits of a result: compiler and libraries with their versions,
/// the kind of build, and the commit it was made of. Left out: compiler flags, which say mostly where and what else was
/// built, and the processor's capability, which is of the machine.
std::vector<std::string> torch_build(const std::string& configuration);

/// Of this process; read once, since every checkpoint asks.
const std::vector<std::string>& torch_build();

}  // namespace lockstep
