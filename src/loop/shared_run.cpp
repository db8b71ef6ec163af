#include "loop/shared_run.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "base/crc32c.hpp"
#include "base/rank_messages.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/tensors/profiler_range.hpp"

namespace lockstep {
namespace {

using nlohmann::json;

std::string kind_of(const at::Tensor& tensor) {
  return std::string(c10::toString(tensor.scalar_type())) + " " + json(tensor.sizes().vec()).dump();
}

std::vector<at::Tensor> all_tensors(const TrainedModules& modules) {
  std::vector<at::Tensor> tensors = modules.buffers();
  for (const auto& parameter : modules.parameters()) tensors.push_back(parameter.second);
  return tensors;
}

/// Where `theirs` differs from `main`, at most `limit` sentences.
void describe_differences(int rank, const json& main, const json& theirs, std::vector<std::string>& found,
                          std::size_t limit) {
  for (const auto& change : json::diff(main, theirs)) {
    if (found.size() == limit) return;
    const json::json_pointer place(change.at("path").get<std::string>());
    const auto value = [&place](const json& from) {
      return from.contains(place) ? from.at(place).dump() : std::string("absent");
    };
    found.push_back(message::difference_between_ranks(rank, place.to_string(), value(theirs), value(main)));
  }
}

}  // namespace

SharedRun::SharedRun(const Accelerator& accelerator, ParameterArena& arena, const TrainedModules& modules)
    : arena_(arena), modules_(modules), agreement_(accelerator.agreement()) {
  if (alone()) return;
  const auto& options = accelerator.options();
  sync_.emplace(arena, modules.parameters(), agreement_.collectives(), options.slice_bytes, options.overlap_sync);
}

json SharedRun::describe_tensors() const {
  json tensors = json::object();
  for (const auto& [name, parameter] : modules_.parameters()) {
    tensors[name] = kind_of(parameter) + (parameter.requires_grad() ? "" : ", frozen");
  }
  json buffers = json::array();
  for (const auto& buffer : modules_.buffers()) buffers.push_back(kind_of(buffer));
  return {{"parameters", std::move(tensors)}, {"buffers", std::move(buffers)}};
}

void SharedRun::compare(const json& description) {
  if (alone()) return;
  constexpr std::size_t shown = 10;
  const auto texts = agreement_.exchange(description.dump());
  std::vector<std::string> found;
  const json main = json::parse(texts.front());
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts.front()) continue;
    describe_differences(static_cast<int>(rank), main, json::parse(texts[rank]), found, shown);
  }
  if (!found.empty()) agreement_.together([&]() { throw message::ranks_differ(found); });
}

void SharedRun::broadcast_weights() {
  if (alone()) return;
  const c10::AutoGradMode no_grad(false);
  agreement_.together([&] { agreement_.collectives().broadcast(all_tensors(modules_)); });
}

void SharedRun::compare_weights(std::int64_t update) {
  if (alone()) return;
  std::vector<std::uint32_t> digests;
  for (const auto& parameter : modules_.parameters()) {
    const at::Tensor values = parameter.second.detach().cpu().contiguous();
    digests.push_back(crc32c(values.const_data_ptr(), values.nbytes()));
  }
  const auto all = agreement_.exchange(
      std::string(reinterpret_cast<const char*>(digests.data()), digests.size() * sizeof(digests[0])));
  agreement_.together([&] {
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      const auto differing = std::mismatch(all[0].begin(), all[0].end(), all[rank].begin()).first;
      if (differing == all[0].end()) continue;
      const auto place = static_cast<std::size_t>(differing - all[0].begin()) / sizeof(digests[0]);
      throw message::weights_differ(modules_.parameters()[place].first, static_cast<int>(rank), update);
    }
  });
}

void SharedRun::open_window(const AccumulationWindow& window) {
  unit_known_ = window.loss_unit() != 0;
  agreement_.throw_kept();
  if (sync_ && unit_known_) sync_->expect_vote();
}

void SharedRun::add(AccumulationWindow& window, const StepOutput& output, bool last, const Backward& backward) {
  // Until the ranks know the unit that all divide by, a gradient may have to be rescaled before it is sent.
  const bool overlap = sync_ && last && unit_known_;
  if (overlap) sync_->arm();
  window.add(output, backward);
  if (overlap) sync_->disarm();
  arena_.after_backward();
}

std::vector<bool> SharedRun::touched_on_any_rank(bool all_touched) const {
  const auto& members = arena_.members();
  std::vector<bool> touched(members.size(), true);
  if (all_touched) return touched;
  std::string mine;
  for (const auto& member : members) mine += member.touched ? '1' : '0';
  const auto masks = agreement_.exchange(mine);
  for (std::size_t i = 0; i < members.size(); ++i) {
    touched[i] = std::any_of(masks.begin(), masks.end(), [i](const auto& mask) { return mask[i] == '1'; });
  }
  return touched;
}

AgreedWindow SharedRun::close_window(AccumulationWindow& window, bool stop, bool save, bool more_data) {
  const ProfilerRange range("lockstep::sync");
  arena_.close_window();
  if (sync_ && unit_known_) sync_->send_rest();
  const auto votes = agreement_.meet({.phase = Phase::window,
                                      .stop = stop,
                                      .save = save,
                                      .more_data = more_data,
                                      .all_touched = arena_.all_touched(),
                                      .samples = window.samples(),
                                      .microbatches = window.microbatches(),
                                      .loss_unit = window.loss_unit()});
  AgreedWindow agreed;
  bool all_touched = true;
  std::int64_t unit = 0;
  for (const auto& vote : votes) {
    agreed.samples += vote.samples;
    agreed.microbatches = std::max(agreed.microbatches, vote.microbatches);
    agreed.more_data |= vote.more_data;
    agreed.stop |= vote.stop;
    agreed.saves += vote.save ? 1 : 0;
    all_touched &= vote.all_touched;
    if (unit == 0) unit = vote.loss_unit;
  }
  if (!sync_) return agreed;

  const bool sums = unit_known_ || agreed.samples > 0;
  if (sums && !unit_known_) {
    const c10::AutoGradMode no_grad(false);
    if (window.samples() > 0 && window.loss_unit() != unit) {
      at::_foreach_mul_(arena_.gradients(), static_cast<double>(window.loss_unit()) / static_cast<double>(unit));
    }
    sync_->send_rest();
  }
  if (sums) sync_->wait(touched_on_any_rank(all_touched));
  window.agree_on(unit);
  return agreed;
}

void SharedRun::fail_window(const std::exception_ptr& failure, std::int64_t loss_unit) noexcept {
  try {
    agreement_.fail(failure);
    // Others may wait for it inside their Step.
    agreement_.collectives().inside_step().abandon(text_of(failure));
    if (sync_) sync_->disarm();
    if (sync_ && loss_unit != 0) {
      sync_->expect_vote();
      sync_->send_rest();
    }
    (void)agreement_.meet({.phase = Phase::window});
  } catch (...) {
    // Either all ranks are told now, or none can be reached.
  }
}

void SharedRun::drop_sums() noexcept {
  try {
    if (sync_ && agreement_.collectives().usable()) sync_->drop();
  } catch (...) {
    // A rank was lost meanwhile: nothing of the run goes on.
  }
}

std::shared_ptr<void> SharedRun::buffers_of_main() const {
  const auto& buffers = modules_.buffers();
  if (alone() || buffers.empty()) return nullptr;
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> own;
  for (const auto& buffer : buffers) own.push_back(buffer.clone());
  std::shared_ptr<void> scope(nullptr, [buffers, own = std::move(own)](void*) {
    const c10::AutoGradMode none(false);
    at::_foreach_copy_(buffers, own);
  });
  agreement_.together([&] { agreement_.collectives().broadcast(buffers); });
  return scope;
}

json SharedRun::slice_layout() const { return sync_ ? json(sync_->layout()) : json(nullptr); }

MetricTotals over_ranks(MetricTotals own, Agreement& agreement) {
  if (agreement.alone()) return own;
  // Binary, so that no value, NaN included, loses a bit.
  json mine = json::array();
  for (const auto& entry : own.entries()) mine.push_back({entry.name, entry.sum, entry.count});
  const auto packed = json::to_msgpack(mine);
  MetricTotals all;
  for (const auto& text : agreement.exchange(std::string(packed.begin(), packed.end()))) {
    for (const auto& entry : json::from_msgpack(text)) {
      all.add(entry[0].get<std::string>(), entry[1].get<double>(), entry[2].get<std::int64_t>());
    }
  }
  return all;
}

}  // namespace lockstep
