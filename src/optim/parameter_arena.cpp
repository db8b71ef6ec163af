#include "lockstep/optim/parameter_arena.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

// Matrix products of one or two rows give other last bits where a weight does not start on 64 bytes.
constexpr std::int64_t alignment_bytes = 64;
// The norm is taken by rows of this many elements.
constexpr std::int64_t buffer_multiple = 4096;

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

at::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

std::string describe(const at::Tensor& tensor) {
  std::string text = std::string(c10::toString(tensor.scalar_type())) + " [";
  for (const auto size : tensor.sizes()) text += (text.back() == '[' ? "" : ", ") + std::to_string(size);
  return text + "] on " + tensor.device().str();
}

at::Tensor dense(const at::Tensor& gradient) {
  return gradient.layout() == at::kStrided ? gradient : gradient.to_dense();
}

/// Why a parameter cannot be a view of a flat buffer; empty: it can.
std::string obstacle(const at::Tensor& parameter) {
  if (parameter.layout() != at::kStrided) return "it is not dense";
  if (!parameter.is_floating_point()) return "it is not of a real floating-point type";
  for (std::int64_t i = 0; i < parameter.dim(); ++i) {
    if (parameter.stride(i) == 0 && parameter.size(i) > 1) return "its own elements share memory";
  }
  return {};
}

/// The strides that a parameter keeps in a buffer: its own, unless they leave gaps.
std::vector<std::int64_t> dense_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(parameter.dim()), 1);
  for (std::size_t i = strides.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<std::int64_t>(parameter.size(static_cast<std::int64_t>(i)), 1);
  }
  return strides;
}

/// Parameters that are different tensors over the same memory would come apart in a buffer.
void refuse_shared_memory(const std::vector<ParameterArena::Member>& members) {
  struct Range {
    const char* begin;
    const char* end;
    const std::string* name;
  };
  std::vector<Range> ranges;
  for (const auto& member : members) {
    if (member.parameter.numel() == 0) continue;
    std::int64_t extent = 1;
    for (std::int64_t i = 0; i < member.parameter.dim(); ++i) {
      extent += (member.parameter.size(i) - 1) * member.parameter.stride(i);
    }
    const auto* begin = static_cast<const char*>(member.parameter.const_data_ptr());
    ranges.push_back({begin, begin + extent * member.parameter.element_size(), &member.name});
  }
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[i - 1].end) {
      throw message::parameter_not_flat(*ranges[i].name, "it shares memory with " + *ranges[i - 1].name);
    }
  }
}

}  // namespace

ParameterArena::ParameterArena(const std::vector<NamedTensors>& groups, ParameterLayout layout)
    : layout_(layout) {
  // By device and type first, so that a buffer's groups stand together in it.
  using Kind = std::pair<at::Device, at::ScalarType>;
  std::vector<Kind> kinds;
  for (const auto& group : groups) {
    for (const auto& [name, parameter] : group) {
      const Kind kind{parameter.device(), parameter.scalar_type()};
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    }
  }
  for (std::size_t buffer = 0; buffer < kinds.size(); ++buffer) {
    for (std::size_t group = 0; group < groups.size(); ++group) {
      for (const auto& [name, parameter] : groups[group]) {
        if (Kind{parameter.device(), parameter.scalar_type()} != kinds[buffer]) continue;
        const bool first =
            blocks_.empty() || blocks_.back().group != group || blocks_.back().buffer != buffer;
        if (first || layout_ == ParameterLayout::separate) {
          auto& block = blocks_.emplace_back();
          block.group = group;
          block.buffer = buffer;
          block.first = members_.size();
          block.parameters = parameter.detach();
        }
        members_.push_back({.name = name, .parameter = parameter, .block = blocks_.size() - 1});
        blocks_.back().last = members_.size();
      }
    }
  }
  if (layout_ == ParameterLayout::flat) lay_out();
}

void ParameterArena::lay_out() {
  for (const auto& member : members_) {
    if (const auto why = obstacle(member.parameter); !why.empty()) {
      throw message::parameter_not_flat(member.name, why);
    }
  }
  refuse_shared_memory(members_);

  const c10::AutoGradMode no_grad(false);
  places_.resize(members_.size());
  for (std::size_t first = 0; first < blocks_.size();) {
    const auto options = members_[blocks_[first].first].parameter.options().requires_grad(false);
    const auto aligned = alignment_bytes / static_cast<std::int64_t>(options.dtype().itemsize());
    std::int64_t elements = 0;
    std::size_t last = first;
    for (; last < blocks_.size() && blocks_[last].buffer == buffers_.size(); ++last) {
      auto& block = blocks_[last];
      block.offset = elements;
      for (std::size_t i = block.first; i < block.last; ++i) {
        const auto& parameter = members_[i].parameter;
        members_[i].offset = elements - block.offset;
        places_[i].offset = elements;
        places_[i].sizes = parameter.sizes().vec();
        places_[i].strides = dense_strides(parameter);
        elements += rounded_up(parameter.numel(), aligned);
      }
    }
    elements = rounded_up(elements, buffer_multiple);
    buffers_.push_back({at::zeros({elements}, options), at::zeros({elements}, options)});
    gradients_.push_back(buffers_.back().gradients);
    const auto& buffer = buffers_.back();
    for (std::size_t i = first; i < last; ++i) {
      auto& block = blocks_[i];
      const auto end = i + 1 < last ? blocks_[i + 1].offset : elements;
      block.parameters = buffer.parameters.narrow(0, block.offset, end - block.offset);
      block.gradients = buffer.gradients.narrow(0, block.offset, end - block.offset);
    }
    first = last;
  }
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& place = places_[i];
    const auto& buffer = buffers_[blocks_[members_[i].block].buffer];
    place.storage = storage_of(buffer.parameters);
    // Not a view in the eyes of autograd, which optimizers of Torch could not detach when they zero
    // gradients.
    place.gradient = at::empty({0}, buffer.gradients.options())
                         .set_(buffer.gradients.storage(), place.offset, place.sizes, place.strides);
    tie(i);
    members_[i].parameter.mutable_grad() = place.gradient;
  }
  generation_ = 0;
}

ParameterArena::~ParameterArena() {
  if (layout_ == ParameterLayout::separate) return;
  const c10::AutoGradMode no_grad(false);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const auto& parameter = members_[i].parameter;
    try {
      if (parameter.grad().unsafeGetTensorImpl() == places_[i].gradient.unsafeGetTensorImpl()) {
        parameter.mutable_grad().reset();
      }
      if (!lies(i)) continue;
      const auto own = at::empty_strided(places_[i].sizes, places_[i].strides, parameter.options());
      parameter.set_data(own.copy_(parameter));
    } catch (...) {
      // Without memory for a copy it stays a view of the buffer, which lives as long as it does.
    }
  }
}

bool ParameterArena::lies(std::size_t member) const {
  const auto& parameter = members_[member].parameter;
  if (layout_ == ParameterLayout::separate) {
    const auto& held = blocks_[members_[member].block].parameters;
    return storage_of(parameter) == storage_of(held) && parameter.storage_offset() == held.storage_offset() &&
           parameter.sizes() == held.sizes() &&
           (!held.has_storage() || parameter.strides() == held.strides());
  }
  const auto& place = places_[member];
  return storage_of(parameter) == place.storage && parameter.storage_offset() == place.offset &&
         parameter.sizes() == place.sizes && parameter.strides() == place.strides;
}

void ParameterArena::tie(std::size_t member) {
  const c10::AutoGradMode no_grad(false);
  const auto& parameter = members_[member].parameter;
  auto& block = blocks_[members_[member].block];
  at::Tensor place = block.parameters;
  if (layout_ == ParameterLayout::flat) {
    const auto& buffer = buffers_[block.buffer].parameters;
    const auto& [offset, sizes, strides] =
        std::tie(places_[member].offset, places_[member].sizes, places_[member].strides);
    place = at::empty({0}, buffer.options()).set_(buffer.storage(), offset, sizes, strides);
  }
  ++generation_;
  if (parameter.scalar_type() != place.scalar_type() || parameter.device() != place.device() ||
      parameter.sizes() != place.sizes()) {
    const std::string now = describe(parameter);
    parameter.set_data(place);
    throw message::parameter_moved(members_[member].name, describe(place), now);
  }
  if (layout_ == ParameterLayout::separate) {
    block.parameters = parameter.detach();
  } else {
    // It may be another view of the buffer.
    parameter.set_data(place.copy_(parameter.clone()));
  }
}

void ParameterArena::tie_parameters() {
  // All before the first is reported: a conversion moves a whole module.
  std::exception_ptr refusal;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (lies(i)) continue;
    try {
      tie(i);
    } catch (const StepError&) {
      if (!refusal) refusal = std::current_exception();
    }
  }
  if (refusal) std::rethrow_exception(refusal);
}

void ParameterArena::open_window() {
  if (layout_ == ParameterLayout::separate) {
    for (const auto& member : members_) member.parameter.mutable_grad().reset();
    return;
  }
  if (!std::exchange(zero_, false)) {
    for (const auto& buffer : buffers_) buffer.gradients.zero_();
  }
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& place = places_[i];
    auto& gradient = members_[i].parameter.unsafeGetTensorImpl()->mutable_grad();
    if (gradient.unsafeGetTensorImpl() != place.gradient.unsafeGetTensorImpl()) gradient = place.gradient;
    place.opened_at = place.seen = version_of(place.gradient);
  }
}

void ParameterArena::after_backward() {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    auto& place = places_[i];
    // Identity before version: where the gradient was replaced, the version of the one here says nothing.
    if (!gradient_lies(i)) {
      take_gradient(i);
    } else if (place.seen != place.opened_at && version_of(place.gradient) - place.seen > 1) {
      // A backward pass adds once. What else wrote to it has zeroed it, most likely.
      throw message::gradient_replaced(members_[i].name);
    }
    place.seen = version_of(place.gradient);
  }
  tie_parameters();
}

void ParameterArena::take_gradient(std::size_t member) {
  const c10::AutoGradMode no_grad(false);
  auto& place = places_[member];
  const at::Tensor gradient = std::exchange(members_[member].parameter.mutable_grad(), place.gradient);
  // A gradient with a graph of its own is the sum of the old one and the new: backward with create_graph.
  const bool whole = place.seen == place.opened_at || (gradient.defined() && gradient.requires_grad());
  if (!whole) throw message::gradient_replaced(members_[member].name);
  if (gradient.defined()) place.gradient.copy_(dense(gradient));
}

void ParameterArena::take_gradients() {
  if (layout_ == ParameterLayout::separate) return close_window();
  const c10::AutoGradMode no_grad(false);
  all_touched_ = true;
  zero_ = false;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& gradient = members_[i].parameter.mutable_grad();
    const auto& own = places_[i].gradient;
    members_[i].touched = gradient.defined();
    all_touched_ = all_touched_ && gradient.defined();
    if (gradient.defined() && !gradient.is_same(own)) gradient = own.copy_(dense(gradient));
  }
}

void ParameterArena::close_window() {
  all_touched_ = true;
  if (layout_ == ParameterLayout::separate) gradients_.clear();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& member = members_[i];
    if (layout_ == ParameterLayout::separate) {
      blocks_[member.block].gradients = member.parameter.grad();
      member.touched = member.parameter.grad().defined();
      if (member.touched) gradients_.push_back(member.parameter.grad());
    } else {
      member.touched = places_[i].seen != places_[i].opened_at;
    }
    all_touched_ = all_touched_ && member.touched;
  }
}

void ParameterArena::touch(const std::vector<bool>& members) {
  const c10::AutoGradMode no_grad(false);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!members[i] || members_[i].touched) continue;
    members_[i].touched = true;
    if (layout_ == ParameterLayout::separate) {
      members_[i].parameter.mutable_grad() = at::zeros_like(members_[i].parameter);
    }
  }
  if (layout_ == ParameterLayout::separate) return close_window();
  all_touched_ = std::all_of(members_.begin(), members_.end(), [](const auto& member) { return member.touched; });
}

bool ParameterArena::gradient_lies(std::size_t member) const {
  return members_[member].parameter.unsafeGetTensorImpl()->grad().unsafeGetTensorImpl() ==
         places_[member].gradient.unsafeGetTensorImpl();
}

ParameterArena::HideUntouched::HideUntouched(ParameterArena& arena) : arena_(arena) {
  if (arena_.layout_ == ParameterLayout::separate || arena_.all_touched_) return;
  for (const auto& member : arena_.members_) {
    if (!member.touched) member.parameter.mutable_grad().reset();
  }
}

ParameterArena::HideUntouched::~HideUntouched() {
  if (arena_.layout_ == ParameterLayout::separate || arena_.all_touched_) return;
  for (std::size_t i = 0; i < arena_.members_.size(); ++i) {
    if (!arena_.members_[i].touched) {
      arena_.members_[i].parameter.mutable_grad() = arena_.places_[i].gradient;
    }
  }
}

at::Tensor ParameterArena::view(const at::Tensor& of_block, const Member& member) const {
  if (layout_ == ParameterLayout::separate) return of_block;
  const auto& place = places_[static_cast<std::size_t>(&member - members_.data())];
  return at::as_strided(of_block, place.sizes, place.strides, of_block.storage_offset() + member.offset);
}

}  // namespace lockstep
