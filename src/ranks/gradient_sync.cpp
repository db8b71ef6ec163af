#include "ranks/gradient_sync.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/rank_messages.hpp"

namespace lockstep {
namespace {

/// What a rank may send along with a vote, to all others together. Above about this size an all-reduce is as fast.
constexpr std::int64_t small_bytes = 64 << 10;

bool is_small(const at::Tensor& values, int ranks) {
  const bool summable = values.scalar_type() == at::kFloat || values.scalar_type() == at::kDouble;
  return values.is_cpu() && summable && static_cast<std::int64_t>(values.nbytes()) * (ranks - 1) <= small_bytes;
}

}  // namespace

struct GradientSync::Slice {
  std::size_t first = 0;  // members, as they lie in memory
  std::size_t last = 0;
  at::Tensor values = {};  // flat: of the arena's buffer; separate: where the members' gradients are gathered
  std::int64_t elements = 0;
  std::size_t missing = 0;  // gradients that have not arrived in the armed pass
  std::unique_ptr<PendingSum> sum = nullptr;
};

/// Called by autograd when a gradient was added to a parameter.
class GradientSync::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientSync& sync, std::size_t member) : sync_(sync), member_(member) {}
  void operator()(const torch::autograd::Variable&) override {
    if (sync_.armed_) sync_.arrived(member_);
  }

 private:
  GradientSync& sync_;
  std::size_t member_;
};

GradientSync::GradientSync(ParameterArena& arena, const NamedTensors& model_parameters, Collectives& collectives,
                           std::int64_t slice_bytes, bool overlap)
    : arena_(arena), collectives_(collectives) {
  cut(slice_bytes);
  order(model_parameters);
  const auto& members = arena_.members();
  const bool flat = arena_.layout() == ParameterLayout::flat;
  small_ = flat && slices_.size() == 1 && is_small(slices_.front().values, collectives_.world_size());
  // A parameter has one such hook, and one of the user's must not be replaced.
  const bool free = std::all_of(members.begin(), members.end(), [](const auto& member) {
    return !torch::autograd::impl::post_acc_grad_hooks(member.parameter);
  });
  hooked_ = overlap && free && flat && !small_;
  if (!hooked_) return;
  here_.resize(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(members[i].parameter, std::make_unique<Hook>(*this, i));
  }
}

GradientSync::~GradientSync() {
  if (!hooked_) return;
  for (const auto& member : arena_.members()) {
    torch::autograd::impl::set_post_acc_grad_hooks(member.parameter, nullptr);
  }
}

void GradientSync::cut(std::int64_t slice_bytes) {
  const auto& members = arena_.members();
  const auto& blocks = arena_.blocks();
  const bool flat = arena_.layout() == ParameterLayout::flat;
  std::int64_t begin = 0;  // of the slice, in its buffer
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto& block = blocks[members[i].block];
    const auto offset = block.offset + members[i].offset;
    const bool another_kind =
        i == 0 || block.buffer != blocks[members[i - 1].block].buffer ||
        (!flat && (members[i].parameter.dtype() != members[i - 1].parameter.dtype() ||
                   members[i].parameter.device() != members[i - 1].parameter.device()));
    const auto size = static_cast<std::int64_t>(members[i].parameter.element_size());
    if (another_kind || slices_.back().elements * size >= slice_bytes) {
      slices_.push_back({.first = i, .last = i});
      begin = another_kind ? 0 : offset;
    }
    auto& slice = slices_.back();
    slice.last = i + 1;
    slice.elements = flat ? offset + members[i].parameter.numel() - begin
                          : slice.elements + members[i].parameter.numel();
  }
  for (auto& slice : slices_) {
    const auto& first = members[slice.first];
    const auto& block = blocks[first.block];
    slice.values = flat ? arena_.buffers()[block.buffer].gradients.narrow(0, block.offset + first.offset, slice.elements)
                        : at::empty({slice.elements}, first.parameter.options().requires_grad(false));
  }
}

void GradientSync::order(const NamedTensors& model_parameters) {
  std::unordered_map<const at::TensorImpl*, std::size_t> place;
  for (const auto& parameter : model_parameters) place.emplace(parameter.second.unsafeGetTensorImpl(), place.size());
  const auto completed_by = [&](const Slice& slice) {
    std::size_t first = std::numeric_limits<std::size_t>::max();
    for (std::size_t i = slice.first; i < slice.last; ++i) {
      first = std::min(first, place.at(arena_.members()[i].parameter.unsafeGetTensorImpl()));
    }
    return first;
  };
  std::stable_sort(slices_.begin(), slices_.end(), [&](const Slice& left, const Slice& right) {
    return completed_by(left) > completed_by(right);
  });
  slice_of_.resize(arena_.members().size());
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    std::fill(slice_of_.begin() + static_cast<std::ptrdiff_t>(slices_[i].first),
              slice_of_.begin() + static_cast<std::ptrdiff_t>(slices_[i].last), i);
  }
}

void GradientSync::expect_vote() {
  if (!small_ || with_vote_) return;
  collectives_.sum_with_vote(slices_.front().values);
  with_vote_ = true;
}

void GradientSync::arm() {
  if (!hooked_) return;
  std::fill(here_.begin(), here_.end(), 0);
  for (auto& slice : slices_) slice.missing = slice.last - slice.first;
  armed_ = true;
}

void GradientSync::disarm() { armed_ = false; }

void GradientSync::arrived(std::size_t member) {
  auto& slice = slices_[slice_of_[member]];
  if (here_[member]) {
    if (slice.sum) throw message::gradient_after_sync(arena_.members()[member].name);
    return;
  }
  here_[member] = 1;
  // One that autograd put elsewhere is copied to its place after the pass, and its slice sent then.
  if (!arena_.gradient_lies(member)) return;
  --slice.missing;
  const c10::AutoGradMode no_grad(false);
  while (sent_ < slices_.size() && slices_[sent_].missing == 0) send(slices_[sent_]);
}

void GradientSync::send(Slice& slice) {
  slice.sum = collectives_.sum(slice.values);
  ++sent_;
}

void GradientSync::send_rest() {
  if (with_vote_) return;
  const c10::AutoGradMode no_grad(false);
  while (sent_ < slices_.size()) {
    auto& slice = slices_[sent_];
    if (arena_.layout() == ParameterLayout::separate) {
      each_part(slice, [this](std::size_t member, const at::Tensor& part) {
        const auto& gradient = arena_.members()[member].parameter.grad();
        gradient.defined() ? part.copy_(gradient) : part.zero_();
      });
    }
    send(slice);
  }
}

void GradientSync::wait(const std::vector<bool>& touched) {
  const c10::AutoGradMode no_grad(false);
  drop();
  arena_.touch(touched);
  if (arena_.layout() == ParameterLayout::flat) return;
  for (const auto& slice : slices_) {
    each_part(slice, [&](std::size_t member, const at::Tensor& part) {
      if (touched[member]) arena_.members()[member].parameter.mutable_grad().copy_(part);
    });
  }
}

void GradientSync::each_part(const Slice& slice,
                             const std::function<void(std::size_t member, const at::Tensor& part)>& use) const {
  std::int64_t offset = 0;
  for (std::size_t i = slice.first; i < slice.last; ++i) {
    const auto& parameter = arena_.members()[i].parameter;
    use(i, slice.values.narrow(0, offset, parameter.numel()).view(parameter.sizes()));
    offset += parameter.numel();
  }
}

void GradientSync::drop() {
  armed_ = false;
  with_vote_ = false;
  for (auto& slice : slices_) {
    if (slice.sum) slice.sum->wait();
    slice.sum.reset();
  }
  sent_ = 0;
}

std::vector<std::int64_t> GradientSync::layout() const {
  std::vector<std::int64_t> elements;
  for (const auto& slice : slices_) elements.push_back(slice.elements);
  return elements;
}

}  // namespace lockstep
