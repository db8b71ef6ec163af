// A Torch optimizer keys its state by the address of the parameter and can save itself only to an archive.
// The archive is taken apart here and put together again, so that any optimizer that can save itself is saved
// by name, also one the library has never heard of.
#include "optim/optimizer_adapter.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <typeinfo>
#include <unordered_map>

#include "lockstep/base/messages.hpp"
#include "lockstep/optim/grouped_optimizer.hpp"

namespace lockstep {
namespace {

using nlohmann::json;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

InputArchive reopen(OutputArchive& archive) {
  std::stringstream stream;
  archive.save_to(stream);
  InputArchive result;
  result.load_from(stream);
  return result;
}

json json_of(const c10::IValue& value, const std::string& where) {
  if (value.isInt()) return value.toInt();
  if (value.isBool()) return value.toBool();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isNone()) return nullptr;
  if (value.isTuple()) {
    auto list = json::array();
    for (const auto& element : value.toTupleRef().elements()) list.push_back(json_of(element, where));
    return list;
  }
  throw message::optimizer_state_not_saved(where, value.tagKind());
}

c10::IValue to_ivalue(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    std::vector<c10::IValue> elements;
    for (const auto& element : value) elements.push_back(to_ivalue(element));
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  return {};
}

json options_of(InputArchive& options, const std::string& where) {
  auto result = json::object();
  for (const auto& key : options.keys()) {
    c10::IValue value;
    options.read(key, value);
    result[key] = json_of(value, where + "/" + key);
  }
  return result;
}

/// Where our own optimizers' state has how often a parameter was stepped.
const std::string step_field = "/step";

/// L-BFGS has lists of tensors: in the state's description stands how many, and each has a name of its own.
const std::string list_size = "tensors";

std::string name_in_list(const std::string& list, std::size_t place) { return list + "." + std::to_string(place); }

bool is_tensor_list(const c10::IValue& value) {
  if (!value.isList()) return false;
  const auto elements = value.toListRef();
  return std::all_of(elements.begin(), elements.end(), [](const auto& element) { return element.isTensor(); });
}

/// What an L-BFGS holds between its updates only to save allocations; LibTorch fails to save it.
void drop_scratch(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr) return;
  for (const auto& entry : optimizer.state()) {
    static_cast<torch::optim::LBFGSParamState&>(*entry.second).al(std::nullopt);
  }
}

std::string group_key(std::size_t group) { return "param_groups/" + std::to_string(group); }

}  // namespace

OptimizerAdapter::OptimizerAdapter(torch::optim::Optimizer& optimizer, const NamedTensors& model_parameters,
                                   ParameterLayout layout)
    : optimizer_(optimizer), own_(dynamic_cast<Optimizer*>(&optimizer)) {
  std::unordered_map<const at::TensorImpl*, std::string> names;
  for (const auto& [name, tensor] : model_parameters) names.emplace(tensor.unsafeGetTensorImpl(), name);

  std::map<std::string, std::size_t> group_of;
  std::vector<NamedTensors> groups;
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    auto& group_names = names_.emplace_back();
    auto& group_parameters = groups.emplace_back();
    for (const auto& parameter : optimizer.param_groups()[group].params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      if (found == names.end()) throw message::foreign_parameter(group, parameter.sizes().vec());
      const auto& name = found->second;
      if (!group_of.emplace(name, group).second)
        throw message::duplicate_parameter(name, group_of[name], group);
      parameters_.emplace_back(name, parameter);
      group_parameters.emplace_back(name, parameter);
      group_names.push_back(name);
    }
    group_names_.push_back("group_" + std::to_string(group));
    base_lrs_.push_back(optimizer.param_groups()[group].options().get_lr());
  }
  if (const auto* named = dynamic_cast<const HasGroupNames*>(&optimizer)) group_names_ = named->group_names();
  if (parameters_.empty()) throw message::no_trainable_parameter();
  arena_.emplace(groups, layout);
  if (own_) own_->attach(*arena_);
}

OptimizerAdapter::~OptimizerAdapter() {
  if (own_) own_->detach(*arena_);
}

void OptimizerAdapter::tie() {
  arena_->tie_parameters();
  if (!own_) return;
  own_->attach(*arena_);
  own_->follow_parameters();
}

void OptimizerAdapter::step(const UpdatePass& pass) {
  if (own_) return own_->update(pass);
  const auto& gradients = arena_->gradients();
  if (!gradients.empty() && pass.divisor != 1) at::_foreach_div_(gradients, pass.divisor);
  {
    const ParameterArena::HideUntouched hidden(*arena_);
    optimizer_.step();
  }
  if (pass.average) pass.average->update();
}

std::string OptimizerAdapter::kind() const {
  if (own_) return own_->kind();
  // By base class, so that a GroupedOptimizer<AdamW> and an AdamW read each other's checkpoints.
  const auto* optimizer = &optimizer_;
  if (dynamic_cast<const torch::optim::AdamW*>(optimizer)) return "AdamW";
  if (dynamic_cast<const torch::optim::Adam*>(optimizer)) return "Adam";
  if (dynamic_cast<const torch::optim::SGD*>(optimizer)) return "SGD";
  if (dynamic_cast<const torch::optim::RMSprop*>(optimizer)) return "RMSprop";
  if (dynamic_cast<const torch::optim::Adagrad*>(optimizer)) return "Adagrad";
  if (dynamic_cast<const torch::optim::LBFGS*>(optimizer)) return "LBFGS";
  return c10::demangle(typeid(*optimizer).name());
}

void OptimizerAdapter::set_rates(double factor) {
  for (std::size_t i = 0; i < base_lrs_.size(); ++i) {
    set_rate(i, base_lrs_[i] * factor);
  }
}

void OptimizerAdapter::set_rate(std::size_t group, double rate) {
  optimizer_.param_groups()[group].options().set_lr(rate);
}

double OptimizerAdapter::rate(std::size_t group) const {
  return optimizer_.param_groups()[group].options().get_lr();
}

OptimizerState OptimizerAdapter::own_state() const {
  OptimizerState result;
  result.description = {{"kind", kind()}, {"groups", json::array()}, {"state", json::object()}};
  for (std::size_t i = 0; i < names_.size(); ++i) {
    auto options = json::object();
    for (const auto& [name, value] : own_->options(i)) {
      std::visit([&options, &name = name](const auto& own) { options[name] = own; }, value);
    }
    result.description["groups"].push_back({{"name", group_names_[i]},
                                            {"base_lr", base_lrs_[i]},
                                            {"options", std::move(options)},
                                            {"parameters", names_[i]}});
  }
  for (auto& [name, tensor] : own_->state()) {
    const auto slash = name.rfind('/');
    if (name.substr(slash) == step_field) {
      result.description["state"][name.substr(0, slash)]["step"] = tensor.item<std::int64_t>();
    } else {
      result.tensors.emplace_back(name, tensor);
    }
  }
  return result;
}

void OptimizerAdapter::load_own(const OptimizerState& saved) {
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const auto& group = saved.description.at("groups").at(i);
    base_lrs_[i] = group.at("base_lr").get<double>();
    for (const auto& [name, value] : group.at("options").items()) {
      if (value.is_boolean()) own_->set_option(i, name, value.get<bool>());
      if (value.is_number()) own_->set_option(i, name, value.get<double>());
      if (value.is_array()) own_->set_option(i, name, value.get<std::vector<double>>());
    }
  }
  NamedTensors state = saved.tensors;
  for (const auto& [parameter, scalars] : saved.description.at("state").items()) {
    if (!scalars.contains("step")) continue;
    state.emplace_back(parameter + step_field,
                       at::scalar_tensor(scalars.at("step").get<std::int64_t>(), at::kLong));
  }
  own_->load_state(state);
}

OptimizerState OptimizerAdapter::state() const {
  if (own_) return own_state();
  drop_scratch(optimizer_);
  OutputArchive archive;
  optimizer_.save(archive);
  InputArchive saved = reopen(archive);
  InputArchive state;
  InputArchive groups;
  saved.read("state", state);
  saved.read("param_groups", groups);

  OptimizerState result;
  result.description = {{"kind", kind()}, {"groups", json::array()}, {"state", json::object()}};
  for (std::size_t i = 0; i < names_.size(); ++i) {
    InputArchive group;
    InputArchive options;
    groups.read(group_key(i), group);
    group.read("options", options);
    result.description["groups"].push_back({{"name", group_names_[i]},
                                            {"base_lr", base_lrs_[i]},
                                            {"options", options_of(options, group_names_[i])},
                                            {"parameters", names_[i]}});
    for (std::size_t j = 0; j < names_[i].size(); ++j) {
      c10::IValue key;
      group.read("params/" + std::to_string(j), key);
      InputArchive fields;
      if (!state.try_read(key.toStringRef(), fields)) continue;  // not stepped yet
      auto scalars = json::object();
      for (const auto& field : fields.keys()) {
        c10::IValue value;
        fields.read(field, value);
        const std::string name = names_[i][j] + "/" + field;
        if (value.isTensor()) {
          result.tensors.emplace_back(name, value.toTensor());
        } else if (is_tensor_list(value)) {
          const auto elements = value.toListRef();
          scalars[field] = {{list_size, elements.size()}};
          for (std::size_t k = 0; k < elements.size(); ++k) {
            result.tensors.emplace_back(name_in_list(name, k), elements[k].toTensor());
          }
        } else {
          scalars[field] = json_of(value, name);
        }
      }
      result.description["state"][names_[i][j]] = std::move(scalars);
    }
  }
  return result;
}

std::vector<std::string> OptimizerAdapter::misfits(const OptimizerState& saved) const {
  const std::string saved_kind = saved.description.at("kind").get<std::string>();
  if (saved_kind != kind()) return {message::problem_optimizer_kind(saved_kind, kind())};

  std::vector<std::string> problems;
  const auto& groups = saved.description.at("groups");
  if (groups.size() != names_.size())
    problems.push_back(message::problem_group_count(groups.size(), names_.size()));
  for (std::size_t i = 0; i < std::min(groups.size(), names_.size()); ++i) {
    if (groups[i].at("parameters").get<std::vector<std::string>>() != names_[i]) {
      problems.push_back(message::problem_group_parameters(i, group_names_[i]));
    }
  }
  for (const auto& [name, tensor] : saved.tensors) {
    const auto parameter_name = name.substr(0, name.rfind('/'));
    for (const auto& [own_name, parameter] : parameters_) {
      // Every state tensor of the common optimizers has its parameter's shape, or is a scalar; but L-BFGS has all
      // parameters in one.
      if (saved_kind != "LBFGS" && own_name == parameter_name && tensor.dim() != 0 && tensor.sizes() != parameter.sizes()) {
        problems.push_back(message::problem_shape(name, tensor.sizes().vec(), parameter.sizes().vec()));
      }
    }
  }
  return problems;
}

std::function<void()> OptimizerAdapter::restore_point() {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer_) == nullptr) {
    OptimizerState before = state();
    if (own_) {
      for (auto& tensor : before.tensors) tensor.second = tensor.second.clone();
    }
    return [this, before = std::move(before)] { load(before); };
  }
  // Its history may be a hundred times the parameters, and is replaced by it, never written into: so that is shared.
  std::vector<std::pair<void*, std::shared_ptr<torch::optim::LBFGSParamState>>> before;
  const auto copy_of = [](const torch::optim::OptimizerParamState& state) {
    auto copy = static_cast<const torch::optim::LBFGSParamState&>(state);
    if (copy.prev_flat_grad().defined()) copy.prev_flat_grad(copy.prev_flat_grad().clone());
    return copy;
  };
  for (const auto& [key, state] : optimizer_.state()) {
    before.emplace_back(key, std::make_shared<torch::optim::LBFGSParamState>(copy_of(*state)));
  }
  return [this, before = std::move(before), copy_of] {
    optimizer_.state().clear();
    for (const auto& [key, state] : before) {
      optimizer_.state()[key] = std::make_unique<torch::optim::LBFGSParamState>(copy_of(*state));
    }
  };
}

void OptimizerAdapter::load(const OptimizerState& saved) {
  if (own_) return load_own(saved);
  std::map<std::string, std::map<std::string, at::Tensor>> fields_of;
  for (const auto& [name, tensor] : saved.tensors) {
    const auto slash = name.rfind('/');
    fields_of[name.substr(0, slash)].emplace(name.substr(slash + 1), tensor);
  }

  OutputArchive archive;
  OutputArchive state(archive.compilation_unit());
  OutputArchive groups(archive.compilation_unit());
  archive.write("pytorch_version",
                c10::IValue("1.5.0"));  // the version of the archive's layout, fixed by LibTorch
  const auto& description = saved.description;
  groups.write("param_groups/size", at::tensor(static_cast<std::int64_t>(names_.size())));
  std::int64_t key = 0;  // stands for the parameter inside this archive
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const auto& saved_group = description.at("groups").at(i);
    OutputArchive group(archive.compilation_unit());
    OutputArchive options(archive.compilation_unit());
    for (const auto& [option, value] : saved_group.at("options").items())
      options.write(option, to_ivalue(value));
    group.write("params/size", at::tensor(static_cast<std::int64_t>(names_[i].size())));
    for (std::size_t j = 0; j < names_[i].size(); ++j) {
      const auto& name = names_[i][j];
      const std::string parameter_key = std::to_string(++key);
      group.write("params/" + std::to_string(j), c10::IValue(parameter_key));
      if (!description.at("state").contains(name)) continue;
      OutputArchive fields(archive.compilation_unit());
      auto& tensors = fields_of[name];
      const auto device = optimizer_.param_groups()[i].params()[j].device();
      for (const auto& [field, value] : description.at("state").at(name).items()) {
        if (!value.is_object()) {
          fields.write(field, to_ivalue(value));
          continue;
        }
        c10::List<at::Tensor> list;
        for (std::size_t k = 0; k < value.at(list_size).get<std::size_t>(); ++k) {
          const auto element = name_in_list(field, k);
          list.push_back(tensors.at(element).to(device));
          tensors.erase(element);
        }
        fields.write(field, c10::IValue(std::move(list)));
      }
      for (const auto& [field, tensor] : tensors) fields.write(field, c10::IValue(tensor.to(device)));
      state.write(parameter_key, fields);
    }
    group.write("options", options);
    groups.write(group_key(i), group);
    base_lrs_[i] = saved_group.at("base_lr").get<double>();
  }
  archive.write("state", state);
  archive.write("param_groups", groups);
  InputArchive input = reopen(archive);
  optimizer_.state().clear();  // LibTorch keeps the state of parameters that the archive has none for
  optimizer_.load(input);
}

}  // namespace lockstep
