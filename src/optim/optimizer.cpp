#include "lockstep/optim/optimizer.hpp"

#include <c10/core/GradMode.h>

#include "lockstep/optim/grouped_optimizer.hpp"
#include "optim/flat_update.hpp"

namespace lockstep {
namespace {

/// The rate of a group, where Torch's schedules look for it.
class GroupRate : public torch::optim::OptimizerCloneableOptions<GroupRate> {
 public:
  explicit GroupRate(double lr) : lr_(lr) {}
  [[nodiscard]] double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }

 private:
  double lr_;
};

}  // namespace

Optimizer::Optimizer(const ParameterGroups& groups, const std::vector<double>& lrs)
    : torch::optim::Optimizer(detail::torch_groups(groups), std::make_unique<GroupRate>(0)) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    names_.push_back(groups[i].name);
    parameters_.push_back(groups[i].parameters);
    // Not before: LibTorch replaces the options of a group that are of a class it does not know by the
    // defaults.
    param_groups()[i].options().set_lr(lrs[i]);
  }
}

Optimizer::~Optimizer() = default;

at::Tensor Optimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode gradients(true);
    loss = closure();
  }
  if (!flat_) work_in_place();
  flat_->arena().tie_parameters();
  follow_parameters();
  flat_->arena().take_gradients();
  update({});
  return loss;
}

void Optimizer::attach(ParameterArena& arena) {
  if (flat_ && &flat_->arena() == &arena) return;
  auto flat = std::make_unique<detail::FlatUpdate>(*this, arena);
  if (flat_) flat->adopt(*flat_);
  flat_ = std::move(flat);
  own_arena_.reset();
}

void Optimizer::detach(const ParameterArena& arena) noexcept {
  if (!flat_ || &flat_->arena() != &arena) return;
  const auto attached = std::move(flat_);
  try {
    work_in_place();
    flat_->adopt(*attached);
  } catch (...) {
    flat_.reset();
  }
}

void Optimizer::work_in_place() {
  own_arena_ = std::make_unique<ParameterArena>(parameters_, ParameterLayout::separate);
  flat_ = std::make_unique<detail::FlatUpdate>(*this, *own_arena_);
}

void Optimizer::state_names_changed() {
  if (flat_) flat_->prepare();
}

void Optimizer::update(const UpdatePass& pass) { flat_->run(pass); }

void Optimizer::take_back() { flat_->take_back(); }

NamedTensors Optimizer::state() const { return flat_ ? flat_->state() : NamedTensors{}; }

void Optimizer::load_state(const NamedTensors& state) {
  if (!flat_) work_in_place();
  flat_->load(state);
}

void Optimizer::follow_parameters() {
  if (flat_) flat_->follow_parameters();
}

}  // namespace lockstep
