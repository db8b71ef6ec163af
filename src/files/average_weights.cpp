#include "lockstep/files/average_weights.hpp"

#include <c10/util/StringUtil.h>

#include <cassert>
#include <cstddef>
#include <map>
#include <string>

#include "base/file_messages.hpp"
#include "files/weights_at.hpp"

namespace lockstep {
namespace {

/// "Float [2, 3]"
std::string kind_of(const at::Tensor& tensor) { return c10::str(tensor.scalar_type(), ' ', tensor.sizes()); }

/// Throws unless both hold tensors of the same names, shapes and types. Returns `other` in the order of `first`.
NamedTensors in_order_of(const NamedTensors& first, const std::string& first_path, const NamedTensors& other,
                         const std::string& other_path) {
  std::map<std::string, at::Tensor> left(other.begin(), other.end());
  std::vector<std::string> problems;
  NamedTensors ordered;
  for (const auto& [name, tensor] : first) {
    const auto found = left.find(name);
    if (found == left.end()) {
      problems.push_back(message::problem_only_in(name, first_path));
      continue;
    }
    if (kind_of(tensor) != kind_of(found->second)) {
      problems.push_back(message::problem_unlike(name, kind_of(tensor), kind_of(found->second)));
    }
    ordered.emplace_back(name, found->second);
    left.erase(found);
  }
  for (const auto& only_here : left) problems.push_back(message::problem_only_in(only_here.first, other_path));
  if (!problems.empty()) throw message::weights_not_alike(first_path, other_path, problems);
  return ordered;
}

}  // namespace

NamedTensors average_weights(const std::vector<std::filesystem::path>& paths, Weights weights) {
  assert(!paths.empty());
  NamedTensors last = weights_at(paths.front(), weights);
  NamedTensors sums;
  for (const auto& [name, tensor] : last) sums.emplace_back(name, tensor.to(at::kDouble));
  for (std::size_t i = 1; i < paths.size(); ++i) {
    last = in_order_of(last, paths.front(), weights_at(paths[i], weights), paths[i]);
    for (std::size_t t = 0; t < sums.size(); ++t) sums[t].second.add_(last[t].second);
  }
  for (std::size_t t = 0; t < sums.size(); ++t) {
    if (!last[t].second.is_floating_point()) continue;
    last[t].second = sums[t].second.div_(static_cast<double>(paths.size())).to(last[t].second.scalar_type());
  }
  return last;
}

}  // namespace lockstep
