#include "lockstep/optim/weight_average.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "lockstep/base/messages.hpp"
#include "tensors/copy_by_name.hpp"

namespace lockstep {
namespace {

/// The part of a buffer that lies beside a block of the arena's.
at::Tensor of_block(const std::vector<at::Tensor>& buffers, const ParameterArena::Block& block) {
  return buffers[block.buffer].narrow(0, block.offset, block.parameters.numel());
}

at::ScalarType type_of_average(const at::Tensor& tensor) {
  return c10::isReducedFloatingType(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
}

/// A tensor in the type of its average; the tensor itself where it has it.
at::Tensor as_average(const at::Tensor& tensor) { return tensor.detach().to(type_of_average(tensor)); }

}  // namespace

WeightAverage::WeightAverage(const WeightAverageOptions& options, const NamedTensors& parameters,
                             ParameterArena* arena)
    : options_(options), arena_(arena && arena->layout() == ParameterLayout::flat ? arena : nullptr) {
  if (!(options.decay >= 0 && options.decay < 1)) {
    throw message::invalid_settings({message::problem_ema_decay(options.decay)});
  }
  std::unordered_map<const at::TensorImpl*, const ParameterArena::Member*> in_arena;
  if (arena_) {
    for (const auto& member : arena_->members())
      in_arena.emplace(member.parameter.unsafeGetTensorImpl(), &member);
  }
  for (const auto& [name, tensor] : parameters) {
    const auto found = in_arena.find(tensor.unsafeGetTensorImpl());
    const bool flat = found != in_arena.end();
    entries_.push_back({name, tensor, flat ? found->second : nullptr, separate_.size()});
    if (flat) {
      in_arena.erase(found);
    } else {
      separate_.push_back(tensor);
    }
  }
  for (const auto& left : in_arena) unaveraged_.push_back(left.second);
}

void WeightAverage::start() {
  if (started_) return;
  const c10::AutoGradMode no_grad(false);
  if (arena_) {
    for (const auto& buffer : arena_->buffers()) {
      buffers_.push_back(buffer.parameters.to(type_of_average(buffer.parameters), false, /*copy=*/true));
    }
  }
  for (const auto& tensor : separate_) {
    separate_average_.push_back(tensor.detach().to(type_of_average(tensor), false, /*copy=*/true));
  }
  started_ = true;
}

double WeightAverage::next_weight() {
  ++updates_;
  const auto n = static_cast<double>(updates_);
  return 1 - (options_.warmup ? std::min(options_.decay, (1 + n) / (10 + n)) : options_.decay);
}

void WeightAverage::update_separate(double weight) {
  if (separate_.empty()) return;
  std::vector<at::Tensor> values;
  values.reserve(separate_.size());
  for (const auto& tensor : separate_) values.push_back(as_average(tensor));
  at::_foreach_lerp_(separate_average_, values, weight);
}

void WeightAverage::update_separate(const at::Tensor& weight) {
  for (std::size_t i = 0; i < separate_.size(); ++i) {
    auto& own = separate_average_[i];
    own.lerp_(as_average(separate_[i]), weight.to(own.scalar_type()));
  }
}

void WeightAverage::update() {
  const c10::AutoGradMode no_grad(false);
  const double weight = next_weight();
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].lerp_(as_average(arena_->buffers()[i].parameters), weight);
  }
  update_separate(weight);
}

at::Tensor WeightAverage::average_of(const Entry& entry) const {
  // Inside a swap the parameters hold the average.
  if (!started_ || swapped_) return as_average(entry.tensor);
  if (!entry.member) return separate_average_[entry.separate];
  return arena_->view(of_block(buffers_, arena_->blocks()[entry.member->block]), *entry.member);
}

NamedTensors WeightAverage::named() const {
  NamedTensors result;
  for (const auto& entry : entries_) result.emplace_back(entry.name, average_of(entry));
  return result;
}

NamedTensors WeightAverage::over(NamedTensors state) const {
  const NamedTensors averages = named();
  const std::map<std::string, at::Tensor> by_name(averages.begin(), averages.end());
  for (auto& [name, tensor] : state) {
    if (const auto found = by_name.find(name); found != by_name.end()) tensor = found->second;
  }
  return state;
}

void WeightAverage::load(const NamedTensors& saved, std::int64_t updates) {
  buffers_.clear();
  separate_average_.clear();
  started_ = false;
  updates_ = updates;
  if (saved.empty()) return;
  start();
  copy_by_name(saved, named());
}

WeightAverage::Swap::Swap(WeightAverage& average) : average_(average) {
  if (!average_.started_) return;
  const c10::AutoGradMode no_grad(false);
  // Whatever needs memory comes first: from here on nothing may fail.
  for (const auto& tensor : average_.separate_) raw_.push_back(tensor.detach().clone());
  for (std::size_t i = 0; i < average_.buffers_.size(); ++i) {
    buffers_.push_back(average_.buffers_[i].to(average_.arena_->buffers()[i].parameters.scalar_type()));
  }
  if (!raw_.empty()) at::_foreach_copy_(average_.separate_, average_.separate_average_);
  exchange();
  for (const auto* member : average_.unaveraged_) {
    const auto& block = average_.arena_->blocks()[member->block];
    member->parameter.detach().copy_(average_.arena_->view(of_block(buffers_, block), *member));
  }
  average_.swapped_ = true;
}

WeightAverage::Swap::~Swap() {
  if (!average_.started_) return;
  const c10::AutoGradMode no_grad(false);
  exchange();
  if (!raw_.empty()) at::_foreach_copy_(average_.separate_, raw_);
  average_.swapped_ = false;
}

void WeightAverage::Swap::exchange() {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const auto& parameters = average_.arena_->buffers()[i].parameters;
    auto& one = *parameters.storage().unsafeGetStorageImpl();
    auto& other = *buffers_[i].storage().unsafeGetStorageImpl();
    one.set_data_ptr_noswap(other.set_data_ptr(one.set_data_ptr(at::DataPtr())));
  }
}

}  // namespace lockstep
