// The two notations in SLURM's variables.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// The first host of a list such as "rack1n[03-07,12],login1"; nothing if it is no such list.
[[nodiscard]] std::optional<std::string> first_host(std::string_view list);

/// The tasks on node number `node`, from 0, of a list such as "4(x2),3"; nothing if the list has no such
/// node.
[[nodiscard]] std::optional<int> tasks_on_node(std::string_view list, int node);

}  // namespace lockstep
