#include "lockstep/ranks/sync_batch_norm.hpp"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <ostream>
#include <utility>

#include "base/rank_messages.hpp"
#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// All dimensions but that of the features.
std::vector<std::int64_t> other_dimensions(const at::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t i = 2; i < input.dim(); ++i) dimensions.push_back(i);
  return dimensions;
}

/// [features] in the shape that spreads over `input`.
at::Tensor spread(const at::Tensor& of_features, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = input.size(1);
  return of_features.view(shape);
}

at::ScalarType computing_type(const at::Tensor& input) {
  return input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16 ? at::kFloat : input.scalar_type();
}

/// Mean, sum of squared deviations and count of each feature over all ranks.
struct Statistics {
  at::Tensor mean;        // [features]
  at::Tensor deviations;  // [features]
  double count = 0;
};

Statistics over_ranks(const at::Tensor& input, Collectives& collectives) {
  const auto features = input.size(1);
  const auto dimensions = other_dimensions(input);
  const auto count = static_cast<double>(input.numel() / std::max<std::int64_t>(features, 1));
  // Every rank fills its own row of zeros, so that the sum holds the rows of all.
  auto rows = at::zeros({collectives.world_size(), 2 * features + 1}, input.options().dtype(at::kDouble));
  auto own = rows[collectives.rank()];
  if (count > 0) {
    const auto mean = input.mean(dimensions, /*keepdim=*/false, at::kDouble);
    const auto deviations = (input.to(at::kDouble) - spread(mean, input)).square().sum(dimensions);
    own.narrow(0, 0, features).copy_(mean);
    own.narrow(0, features, features).copy_(deviations);
    own[2 * features].fill_(count);
  }
  collectives.sum(rows)->wait();

  const auto counts = rows.select(1, 2 * features).unsqueeze(1);
  const double all = counts.sum().item<double>();
  const auto means = rows.narrow(1, 0, features);
  const auto mean = (means * counts).sum(0) / all;
  const auto deviations = rows.narrow(1, features, features).sum(0) + ((means - mean).square() * counts).sum(0);
  return {.mean = mean, .deviations = deviations, .count = all};
}

/// (x - mean) / sqrt(variance + eps) with mean and variance over all ranks; its backward pass sums over them too.
class Normalise : public torch::autograd::Function<Normalise> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& input, double eps, std::int64_t collectives) {
    auto& ranks = *reinterpret_cast<Collectives*>(collectives);
    const auto statistics = over_ranks(input, ranks);
    const auto inverse = (statistics.deviations / statistics.count + eps).rsqrt();
    const auto normalised = ((input - spread(statistics.mean, input).to(input.scalar_type())) *
                             spread(inverse, input).to(input.scalar_type()));
    context->save_for_backward({normalised, inverse});
    context->saved_data["count"] = statistics.count;
    context->saved_data["collectives"] = collectives;
    const auto variance = statistics.deviations / statistics.count;
    const auto count = at::full({}, statistics.count, variance.options());
    context->mark_non_differentiable({statistics.mean, variance, count});
    return {normalised, statistics.mean, variance, count};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& normalised = saved[0];
    const auto& inverse = saved[1];
    const double count = context->saved_data["count"].toDouble();
    auto& ranks = *reinterpret_cast<Collectives*>(context->saved_data["collectives"].toInt());
    const auto& gradient = gradients[0];
    const auto dimensions = other_dimensions(normalised);
    const auto features = normalised.size(1);
    auto sums = at::zeros({2 * features}, inverse.options());
    sums.narrow(0, 0, features).copy_(gradient.sum(dimensions, /*keepdim=*/false, at::kDouble));
    sums.narrow(0, features, features).copy_((gradient * normalised).sum(dimensions, /*keepdim=*/false, at::kDouble));
    ranks.sum(sums)->wait();
    const auto type = normalised.scalar_type();
    const auto means = sums / count;
    const auto result = (gradient - spread(means.narrow(0, 0, features), normalised).to(type) -
                         normalised * spread(means.narrow(0, features, features), normalised).to(type)) *
                        spread(inverse, normalised).to(type);
    return {result, at::Tensor(), at::Tensor()};
  }
};

/// The modules that normalise batches, each with the Sequential that holds it, if one does.
struct Found {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  torch::nn::SequentialImpl* holder = nullptr;
  std::string name_in_holder;
};

template <class BatchNorm>
bool is(const torch::nn::Module& module) {
  return dynamic_cast<const BatchNorm*>(&module) != nullptr;
}

bool is_batch_norm(const torch::nn::Module& module) {
  return is<torch::nn::BatchNorm1dImpl>(module) || is<torch::nn::BatchNorm2dImpl>(module) ||
         is<torch::nn::BatchNorm3dImpl>(module);
}

void find_batch_norms(torch::nn::Module& parent, const std::string& prefix, std::vector<Found>& found) {
  for (const auto& child : parent.named_children()) {
    const auto name = prefix + child.key();
    if (is_batch_norm(*child.value())) {
      found.push_back({name, child.value(), dynamic_cast<torch::nn::SequentialImpl*>(&parent), child.key()});
    } else {
      find_batch_norms(*child.value(), name + ".", found);
    }
  }
}

/// The same module, synchronised; null if it is another one.
template <class BatchNorm>
std::shared_ptr<SyncBatchNormImpl> converted(const torch::nn::Module& module, Accelerator& accelerator) {
  const auto* norm = dynamic_cast<const BatchNorm*>(&module);
  return norm ? std::make_shared<SyncBatchNormImpl>(accelerator, norm->options, module) : nullptr;
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(Accelerator& accelerator, torch::nn::BatchNormOptions given)
    : SyncBatchNormImpl(accelerator, given, *torch::nn::BatchNorm1d(given)) {}

SyncBatchNormImpl::SyncBatchNormImpl(Accelerator& accelerator, torch::nn::BatchNormOptions given,
                                     const torch::nn::Module& norm)
    : options(std::move(given)), accelerator_(accelerator) {
  for (const auto& parameter : norm.named_parameters(/*recurse=*/false)) {
    auto& own = parameter.key() == "weight" ? weight : bias;
    own = register_parameter(parameter.key(), parameter.value(), parameter.value().requires_grad());
  }
  for (const auto& buffer : norm.named_buffers(/*recurse=*/false)) {
    auto& own = buffer.key() == "running_mean"  ? running_mean
                : buffer.key() == "running_var" ? running_var
                                                : num_batches_tracked;
    own = register_buffer(buffer.key(), buffer.value());
  }
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps() << ")";
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  const bool batch_statistics = is_training() || !running_mean.defined();
  auto& collectives = accelerator_.collectives();
  if (!batch_statistics || collectives.world_size() == 1) {
    if (batch_statistics && num_batches_tracked.defined()) num_batches_tracked.add_(1);
    const double momentum = options.momentum().value_or(
        batch_statistics && num_batches_tracked.defined() ? 1.0 / num_batches_tracked.item<double>() : 0.0);
    return at::batch_norm(input, weight, bias, running_mean, running_var, batch_statistics, momentum, options.eps(),
                          /*cudnn_enabled=*/true);
  }
  if (input.dim() < 2 || input.size(1) != options.num_features()) {
    throw message::sync_batch_norm_input(input.sizes().vec(), options.num_features());
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto type = computing_type(input);
  const auto results = Normalise::apply(input.to(type), options.eps(),
                                        reinterpret_cast<std::int64_t>(&collectives.inside_step()));
  if (is_training() && running_mean.defined()) {
    const c10::AutoGradMode no_grad(false);
    num_batches_tracked.add_(1);
    const double momentum = options.momentum().value_or(1.0 / num_batches_tracked.item<double>());
    const double count = results[3].item<double>();
    running_mean.mul_(1 - momentum).add_(results[1].to(running_mean.scalar_type()), momentum);
    running_var.mul_(1 - momentum)
        .add_((results[2] * (count / std::max(count - 1, 1.0))).to(running_var.scalar_type()), momentum);
  }
  auto output = results[0];
  if (weight.defined()) {
    output = output * spread(weight, output).to(type) + spread(bias, output).to(type);
  }
  return output.to(input.scalar_type());
}

void convert_sync_batch_norm(torch::nn::Module& model, Accelerator& accelerator) {
  std::vector<Found> found;
  find_batch_norms(model, "", found);
  std::vector<std::string> problems;
  for (const auto& norm : found) {
    if (norm.holder == nullptr) problems.push_back(message::problem_batch_norm_member(norm.name));
  }
  if (!problems.empty()) throw message::invalid_settings(problems);

  for (const auto& [name, module, holder, name_in_holder] : found) {
    auto sync = converted<torch::nn::BatchNorm1dImpl>(*module, accelerator);
    if (!sync) sync = converted<torch::nn::BatchNorm2dImpl>(*module, accelerator);
    if (!sync) sync = converted<torch::nn::BatchNorm3dImpl>(*module, accelerator);
    sync->train(module->is_training());
    for (auto& part : *holder) {
      if (part.ptr() == module) part = torch::nn::AnyModule(sync);
    }
    (void)holder->replace_module(name_in_holder, sync);
  }
}

bool detail::has_sync_batch_norm(const torch::nn::Module& module) {
  if (is<SyncBatchNormImpl>(module)) return true;
  for (const auto& below : module.modules(/*include_self=*/false)) {
    if (is<SyncBatchNormImpl>(*below)) return true;
  }
  return false;
}

}  // namespace lockstep
