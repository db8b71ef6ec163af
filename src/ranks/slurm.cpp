#include "ranks/slurm.hpp"

#include <charconv>

namespace lockstep {
namespace {

/// Takes a number from the front.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

}  // namespace

std::optional<std::string> first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (!take(list, "[")) {
      if (list.front() == ']') return std::nullopt;
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    const auto end = list.find(']');
    if (end == list.npos) return std::nullopt;
    const auto first = list.substr(0, list.find_first_of(",-]"));
    if (first.empty() || first.find_first_not_of("0123456789") != first.npos) return std::nullopt;
    host += first;
    list.remove_prefix(end + 1);
  }
  if (host.empty()) return std::nullopt;
  return host;
}

std::optional<int> tasks_on_node(std::string_view list, int node) {
  do {
    const auto tasks = take_number(list);
    if (!tasks) return std::nullopt;
    int nodes = 1;
    if (take(list, "(x")) {
      const auto repeated = take_number(list);
      if (!repeated || !take(list, ")")) return std::nullopt;
      nodes = *repeated;
    }
    if (node < nodes) return tasks;
    node -= nodes;
  } while (take(list, ","));
  return std::nullopt;
}

}  // namespace lockstep
