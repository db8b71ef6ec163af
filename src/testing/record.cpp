#include "lockstep/testing/record.hpp"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <stdlib.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <sstream>

#include "lockstep/base/messages.hpp"
#include "lockstep/optim/optimizer.hpp"
#include "lockstep/tensors/module_state.hpp"
#include "lockstep/tensors/random_state.hpp"
#include "lockstep/watch/performance_meter.hpp"

namespace lockstep::testing {
namespace {

at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.detach()
      .to(tensor.options().device(at::kCPU), /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

at::Tensor tensor_of(const c10::IValue& value) {
  if (value.isTensor()) return copy_of(value.toTensor());
  if (value.isInt()) return at::scalar_tensor(value.toInt(), at::kLong);
  if (value.isDouble()) return at::scalar_tensor(value.toDouble(), at::kDouble);
  const std::vector<char> bytes = torch::jit::pickle(value);
  return at::tensor(std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
}

void append_optimizer(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
                      NamedTensors& tensors) {
  if (const auto* own = dynamic_cast<const Optimizer*>(&optimizer)) {
    for (const auto& [name, tensor] : own->state()) tensors.emplace_back("optimizer/" + name, copy_of(tensor));
    return;
  }
  for (const auto& parameter : module.named_parameters()) {
    const auto state = optimizer.state().find(parameter.value().unsafeGetTensorImpl());
    if (state == optimizer.state().end()) continue;
    torch::serialize::OutputArchive written;
    state->second->serialize(written);
    std::stringstream stream;
    written.save_to(stream);
    torch::serialize::InputArchive fields;
    fields.load_from(stream);
    for (const auto& field : fields.keys()) {
      c10::IValue value;
      fields.read(field, value);
      tensors.emplace_back("optimizer/" + parameter.key() + "/" + field, tensor_of(value));
    }
  }
}

bool same_bits(double left, double right) {
  return std::bit_cast<std::uint64_t>(left) == std::bit_cast<std::uint64_t>(right);
}

std::string shown(double number) { return text_of(number); }
std::string shown(std::int64_t number) { return std::to_string(number); }
std::string shown(const std::string& text) { return '"' + text + '"'; }
template <class Value>
std::string shown(const std::optional<Value>& value) {
  return value ? shown(*value) : "unset";
}

template <class Value>
std::string change(const std::string& what, const Value& expected, const Value& found) {
  return what + " is " + shown(found) + " instead of " + shown(expected);
}

std::string state_difference(const TrainState& expected, const TrainState& found) {
  if (expected == found) return "";
  const auto member = [&](const char* name, auto TrainState::*value) {
    return expected.*value == found.*value
               ? ""
               : change(std::string("TrainState::") + name, expected.*value, found.*value);
  };
  for (const auto& text :
       {member("step", &TrainState::step), member("epoch", &TrainState::epoch),
        member("next_batch", &TrainState::next_batch), member("batches", &TrainState::batches),
        member("samples", &TrainState::samples), member("best_metric", &TrainState::best_metric),
        member("best_step", &TrainState::best_step),
        member("evaluations_without_improvement", &TrainState::evaluations_without_improvement),
        member("stop_reason", &TrainState::stop_reason)}) {
    if (!text.empty()) return text;
  }
  return change("TrainState::end", to_string(expected.end), to_string(found.end));
}

std::string tensor_difference(const std::string& name, const at::Tensor& expected, const at::Tensor& found) {
  if (expected.scalar_type() != found.scalar_type() || expected.sizes() != found.sizes()) {
    return name + " has another type or shape";
  }
  if (expected.numel() == 0 ||
      std::memcmp(expected.const_data_ptr(), found.const_data_ptr(), expected.nbytes()) == 0) {
    return "";
  }
  const at::Tensor distance = (found.to(at::kDouble) - expected.to(at::kDouble)).abs().flatten();
  std::ostringstream text;
  text << name << " differs in " << distance.ne(0).sum().item<std::int64_t>() << " of " << distance.numel()
       << " elements, by " << distance.max().item<double>() << " at most";
  return text.str();
}

std::string tensors_difference(const NamedTensors& expected, const NamedTensors& found) {
  for (std::size_t i = 0; i < std::min(expected.size(), found.size()); ++i) {
    if (expected[i].first != found[i].first)
      return "there is " + found[i].first + " instead of " + expected[i].first;
    if (const auto text = tensor_difference(expected[i].first, expected[i].second, found[i].second);
        !text.empty()) {
      return text;
    }
  }
  if (expected.size() > found.size()) return expected[found.size()].first + " is missing";
  if (found.size() > expected.size()) return found[expected.size()].first + " is there and should not be";
  return "";
}

std::vector<LogEvent> compared_events(const std::vector<LogEvent>& events) {
  std::vector<LogEvent> result;
  for (const auto& event : events) {
    if (event.event != "train" && event.event != "evaluate" && event.event != "skip") continue;
    result.push_back(event);
    std::erase_if(result.back().values, [](const auto& value) { return is_measurement(value.first); });
  }
  return result;
}

std::string at_update(const LogEvent& event) {
  return "the " + event.event + " event at update " + shown(event.step);
}

std::string event_difference(const LogEvent& expected, const LogEvent& found) {
  if (expected.event != found.event || expected.step != found.step) {
    return at_update(found) + " comes instead of " + at_update(expected);
  }
  if (expected.epoch != found.epoch || expected.samples != found.samples) {
    return at_update(found) + " is at " + shown(found.samples) + " samples instead of " +
           shown(expected.samples);
  }
  if (expected.values.size() != found.values.size())
    return at_update(found) + " has another number of values";
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const auto& [name, value] = expected.values[i];
    if (found.values[i].first != name)
      return at_update(found) + " has " + found.values[i].first + " instead of " + name;
    if (!same_bits(value, found.values[i].second)) {
      return "in " + at_update(found) + ", " + change(name, value, found.values[i].second);
    }
  }
  return "";
}

std::string events_difference(const std::vector<LogEvent>& expected, const std::vector<LogEvent>& found) {
  for (std::size_t i = 0; i < std::min(expected.size(), found.size()); ++i) {
    if (auto text = event_difference(expected[i], found[i]); !text.empty()) return text;
  }
  if (expected.size() > found.size()) return at_update(expected[found.size()]) + " is missing";
  if (found.size() > expected.size())
    return at_update(found[expected.size()]) + " is there and should not be";
  return "";
}

}  // namespace

std::string text_of(double number) {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  text << number;
  return text.str();
}

NamedTensors copies(const NamedTensors& tensors) {
  NamedTensors result;
  for (const auto& [name, tensor] : tensors) result.emplace_back(name, copy_of(tensor));
  return result;
}

NamedTensors run_tensors(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
                         const NamedTensors& averages, at::Device device) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : module_state(module))
    tensors.emplace_back("model/" + name, copy_of(tensor));
  for (const auto& [name, tensor] : averages) tensors.emplace_back("averaged/" + name, copy_of(tensor));
  append_optimizer(module, optimizer, tensors);
  for (const auto& [name, tensor] : random_state(device)) tensors.emplace_back(name, copy_of(tensor));
  return tensors;
}

Record without(Record record, std::string_view prefix) {
  std::erase_if(record.tensors, [&](const auto& tensor) { return tensor.first.starts_with(prefix); });
  return record;
}

std::string first_difference(const Record& expected, const Record& found) {
  // The log first: it says when the runs parted.
  if (auto text = events_difference(compared_events(expected.events), compared_events(found.events));
      !text.empty()) {
    return text;
  }
  if (auto text = state_difference(expected.state, found.state); !text.empty()) return text;
  return tensors_difference(expected.tensors, found.tensors);
}

std::string first_difference(const NamedTensors& start, const NamedTensors& expected,
                             const NamedTensors& found, double tolerance) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& [name, tensor] = expected[i];
    if (tensor.numel() == 0) continue;
    const double moved = (tensor - start[i].second).abs().max().item<double>();
    const double distance = (tensor - found[i].second).abs().max().item<double>();
    if (distance <= tolerance * moved) continue;
    std::ostringstream text;
    text << name << " is off by " << distance << " after it moved by " << moved;
    return text.str();
  }
  return "";
}

std::vector<LogEvent> merged_events(std::vector<LogEvent> cut_off, const std::vector<LogEvent>& resumed) {
  while (!cut_off.empty() && cut_off.back().event != "checkpoint") cut_off.pop_back();
  cut_off.insert(cut_off.end(), resumed.begin(), resumed.end());
  return cut_off;
}

ScratchDirectory::ScratchDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-testing-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw message::cannot_create_directory(pattern, errno);
  path_ = pattern;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace lockstep::testing
