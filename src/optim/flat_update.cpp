#include "optim/flat_update.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/Scalar.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace lockstep::detail {
namespace {

// For each thread: parameter, gradient, two moments and an average of so many floats, 2.6 MB, stay in a cache, if not in
// the second-level one. Smaller pieces lose more to the calls of their operations than they gain.
constexpr std::int64_t piece_elements = 1 << 17;

constexpr const char* master_name = "master";

bool half(const at::Tensor& tensor) { return c10::isReducedFloatingType(tensor.scalar_type()); }

/// What the rule steps for these parameters: themselves, or an fp32 or contiguous copy.
at::Tensor master_of(const at::Tensor& parameters) {
  if (half(parameters)) return parameters.to(at::kFloat).contiguous();
  return parameters.is_non_overlapping_and_dense() ? parameters
                                                   : parameters.clone(at::MemoryFormat::Contiguous);
}

void set(const at::Tensor& scalar, double value) {
  if (scalar.is_cpu()) {
    *scalar.mutable_data_ptr<float>() = static_cast<float>(value);
  } else {
    scalar.fill_(value);
  }
}

/// Where the gradient of a parameter of its own lies otherwise than the parameter: a copy that lies alike.
at::Tensor laid_out_like(const at::Tensor& gradient, const at::Tensor& master) {
  if (gradient.layout() == at::kStrided && gradient.strides() == master.strides()) return gradient;
  return at::empty_like(master, gradient.scalar_type())
      .copy_(gradient.layout() == at::kStrided ? gradient : gradient.to_dense());
}

}  // namespace

FlatUpdate::FlatUpdate(Optimizer& rule, ParameterArena& arena)
    : rule_(rule), arena_(arena), blocks_(arena.blocks().size()), generation_(arena.generation()) {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const auto& block = arena_.blocks()[i];
    auto& own = blocks_[i];
    own.whole.parameters = block.parameters;
    own.whole.master = master_of(block.parameters);
    own.whole.gradients = block.gradients;
    own.steps.resize(block.last - block.first);
    const auto scalar = at::TensorOptions(at::kFloat).device(block.parameters.device());
    own.step = at::zeros({}, scalar);
    own.divisor = at::zeros({}, scalar);
  }
  prepare();
}

void FlatUpdate::prepare() {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    auto& own = blocks_[i];
    const auto names = rule_.state_names(arena_.blocks()[i].group);
    std::vector<at::Tensor> state;
    for (const auto& name : names) {
      const auto found = std::find(own.names.begin(), own.names.end(), name);
      state.push_back(found == own.names.end()
                          ? at::zeros_like(own.whole.master)
                          : own.whole.state[static_cast<std::size_t>(found - own.names.begin())]);
    }
    own.names = names;
    own.whole.state = std::move(state);
    cut(own);
  }
  average_storage_ = nullptr;
}

void FlatUpdate::cut(Block& own) const {
  own.pieces.clear();
  const auto elements = own.whole.master.numel();
  const auto size = piece_elements * at::get_num_threads();
  if (arena_.layout() == ParameterLayout::separate || !own.whole.parameters.is_cpu() || elements <= size) {
    own.pieces.push_back(own.whole);
    return;
  }
  for (std::int64_t first = 0; first < elements; first += size) {
    const auto length = std::min(size, elements - first);
    own.pieces.push_back(narrow(own.whole, first, length));
  }
}

FlatUpdate::Piece FlatUpdate::narrow(const Piece& piece, std::int64_t first, std::int64_t length) {
  Piece part{.parameters = piece.parameters.narrow(0, first, length),
             .master = {},
             .gradients = piece.gradients.narrow(0, first, length),
             .state = {},
             .average = {}};
  part.master =
      piece.master.is_same(piece.parameters) ? part.parameters : piece.master.narrow(0, first, length);
  for (const auto& tensor : piece.state) part.state.push_back(tensor.narrow(0, first, length));
  return part;
}

void FlatUpdate::use_average(const WeightAverage& average) {
  if (average.buffers().empty()) return;
  const auto* storage = average.buffers().front().storage().unsafeGetStorageImpl();
  if (storage == average_storage_) return;
  average_storage_ = storage;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const auto& block = arena_.blocks()[i];
    std::int64_t first = block.offset;
    for (auto& piece : blocks_[i].pieces) {
      piece.average = average.buffers()[block.buffer].narrow(0, first, piece.parameters.numel());
      first += piece.parameters.numel();
    }
  }
}

void FlatUpdate::run(const UpdatePass& pass) {
  const c10::AutoGradMode no_grad(false);
  if (arena_.generation() != generation_) follow_parameters();
  double weight = 0;
  if (pass.average) {
    weight = pass.average->next_weight();
    use_average(*pass.average);
  }
  at::Tensor device_weight;
  if (pass.average && pass.decision) {
    device_weight = at::rsub(*pass.decision->found_inf, 1).to(at::kDouble).mul_(weight);
  }
  const bool flat = arena_.layout() == ParameterLayout::flat;
  const bool clear = pass.clear_gradients && flat;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    auto& own = blocks_[i];
    const auto& block = arena_.blocks()[i];
    if (pass.decision) own.steps_before = own.steps;
    if (!flat) {
      if (!block.gradients.defined()) continue;
      own.pieces.front().gradients = laid_out_like(block.gradients, own.whole.master);
    }
    const bool as_one = steps_as_one(i);
    if (as_one) {
      for (auto& count : own.steps) ++count;
    } else {
      step_runs(i, pass, !clear);
    }
    for (const auto& piece : own.pieces) {
      if (as_one) step(own, block.group, own.steps.front(), piece, pass, !clear);
      finish(piece, pass.average && flat ? weight : 0, device_weight, clear);
    }
  }
  if (pass.average) {
    pass.decision ? pass.average->update_separate(device_weight) : pass.average->update_separate(weight);
  }
  if (clear) arena_.gradients_are_zero();
}

void FlatUpdate::take_back() {
  for (auto& own : blocks_) own.steps.swap(own.steps_before);
}

/// Whether all members of the block were touched, and are at the same step.
bool FlatUpdate::steps_as_one(std::size_t block) const {
  const auto& steps = blocks_[block].steps;
  if (std::any_of(steps.begin(), steps.end(), [&](auto count) { return count != steps.front(); }))
    return false;
  if (arena_.all_touched()) return true;
  const auto first = arena_.members().begin() + static_cast<std::ptrdiff_t>(arena_.blocks()[block].first);
  return std::all_of(first, first + static_cast<std::ptrdiff_t>(steps.size()),
                     [](const auto& member) { return member.touched; });
}

/// Runs of touched members at the same step.
void FlatUpdate::step_runs(std::size_t index, const UpdatePass& pass, bool keep_gradients) {
  const auto& block = arena_.blocks()[index];
  const auto* members = &arena_.members()[block.first];
  auto& own = blocks_[index];
  const std::size_t count = own.steps.size();
  for (std::size_t first = 0; first < count;) {
    if (!members[first].touched) {
      ++first;
      continue;
    }
    std::size_t last = first;
    const std::int64_t step_before = own.steps[first];
    for (; last < count && members[last].touched && own.steps[last] == step_before; ++last) ++own.steps[last];
    const auto end = last < count ? members[last].offset : block.parameters.numel();
    step(own, block.group, step_before + 1,
         narrow(own.whole, members[first].offset, end - members[first].offset), pass, keep_gradients);
    first = last;
  }
}

void FlatUpdate::step(Block& own, std::size_t group, std::int64_t count, const Piece& piece,
                      const UpdatePass& pass, bool keep_gradients) {
  static const std::optional<at::Tensor> none;
  set(own.step, static_cast<double>(count));
  const bool converted = half(piece.parameters);
  const at::Tensor gradients = converted ? piece.gradients.to(at::kFloat) : piece.gradients;
  const auto* const decision = pass.decision;
  const bool divides = decision || pass.divisor != 1;
  // The operations take the divisor as a float, which is exact enough for floats alone.
  const bool in_double = gradients.scalar_type() == at::kDouble;
  if (decision) {
    in_double ? gradients.div_(decision->divisor) : own.divisor->copy_(decision->divisor);
  } else if (divides) {
    in_double ? (void)gradients.div_(pass.divisor) : set(*own.divisor, pass.divisor);
  }
  rule_.apply({.group = group,
               .lr = rule_.param_groups()[group].options().get_lr(),
               .step = count,
               .parameters = piece.master,
               .gradients = gradients,
               .state = piece.state,
               .step_tensor = own.step,
               .divisor = divides && !in_double ? own.divisor : none,
               .found_inf = decision ? decision->found_inf : none});
  if (converted && keep_gradients) piece.gradients.copy_(gradients);
}

void FlatUpdate::finish(const Piece& piece, double average_weight, const at::Tensor& device_weight,
                        bool clear_gradients) {
  if (!piece.master.is_same(piece.parameters)) piece.parameters.copy_(piece.master);
  if (average_weight != 0) {
    const at::Tensor end = half(piece.parameters) ? piece.parameters.to(at::kFloat) : piece.parameters;
    if (device_weight.defined()) {
      piece.average.lerp_(end, device_weight.to(end.scalar_type()));
    } else {
      piece.average.lerp_(end, average_weight);
    }
  }
  if (clear_gradients) piece.gradients.zero_();
}

void FlatUpdate::follow_parameters() {
  const c10::AutoGradMode no_grad(false);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    auto& own = blocks_[i];
    const auto& [parameters, master] = std::tie(own.whole.parameters, own.whole.master);
    const bool is_master = master.is_same(parameters);
    if (!parameters.is_same(arena_.blocks()[i].parameters)) {
      parameters = arena_.blocks()[i].parameters;
      if (is_master) master = laid_out_like(parameters, master);
      cut(own);
    }
    if (is_master) continue;
    const auto moved = at::ne(master.to(parameters.scalar_type()), parameters);
    master.copy_(at::where(moved, parameters.to(master.scalar_type()), master));
  }
  generation_ = arena_.generation();
}

NamedTensors FlatUpdate::fields(const ParameterArena::Member& member) const {
  const auto& own = blocks_[member.block];
  NamedTensors result;
  for (std::size_t i = 0; i < own.names.size(); ++i) {
    result.emplace_back(own.names[i], arena_.view(own.whole.state[i], member));
  }
  if (half(own.whole.parameters)) result.emplace_back(master_name, arena_.view(own.whole.master, member));
  return result;
}

NamedTensors FlatUpdate::state() const {
  NamedTensors result;
  for (std::size_t i = 0; i < arena_.members().size(); ++i) {
    const auto& member = arena_.members()[i];
    const auto steps = blocks_[member.block].steps[i - arena_.blocks()[member.block].first];
    const auto own = fields(member);
    if (steps == 0 || own.empty()) continue;
    for (const auto& [field, tensor] : own) result.emplace_back(member.name + "/" + field, tensor);
    result.emplace_back(member.name + "/step", at::scalar_tensor(steps, at::kLong));
  }
  return result;
}

void FlatUpdate::load(const NamedTensors& state) {
  const c10::AutoGradMode no_grad(false);
  prepare();
  const std::map<std::string, at::Tensor> saved(state.begin(), state.end());
  for (std::size_t i = 0; i < arena_.members().size(); ++i) {
    const auto& member = arena_.members()[i];
    auto& steps = blocks_[member.block].steps[i - arena_.blocks()[member.block].first];
    bool any = false;
    for (const auto& [field, tensor] : fields(member)) {
      const auto found = saved.find(member.name + "/" + field);
      any = any || found != saved.end();
      if (found != saved.end()) {
        tensor.copy_(found->second);
      } else if (field == master_name) {
        tensor.copy_(member.parameter);
      } else {
        tensor.zero_();
      }
    }
    // Torch's SGD does not count, and asks only whether there is a buffer.
    const auto count = saved.find(member.name + "/step");
    steps = count != saved.end() ? count->second.item<std::int64_t>() : any ? 1 : 0;
  }
}

void FlatUpdate::adopt(const FlatUpdate& other) {
  std::unordered_map<const at::TensorImpl*, std::string> names;
  for (const auto& member : arena_.members()) {
    names.emplace(member.parameter.unsafeGetTensorImpl(), member.name);
  }
  std::unordered_map<std::string, std::string> name_here;
  for (const auto& member : other.arena_.members()) {
    name_here.emplace(member.name, names.at(member.parameter.unsafeGetTensorImpl()));
  }
  NamedTensors state = other.state();
  for (auto& tensor : state) {
    const auto slash = tensor.first.rfind('/');
    tensor.first = name_here.at(tensor.first.substr(0, slash)) + tensor.first.substr(slash);
  }
  load(state);
}

}  // namespace lockstep::detail
