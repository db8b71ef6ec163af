#include "lockstep/loop/prediction.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/prediction_messages.hpp"
#include "lockstep/base/messages.hpp"

namespace lockstep::detail {
namespace {

using nlohmann::json;

/// What the outputs of all batches have in common: name -> [type, sizes of a row].
json layout_of(const Outputs& outputs) {
  auto layout = json::object();
  for (const auto& [name, output] : outputs) {
    layout[name] = {static_cast<int>(output.scalar_type()), output.sizes().slice(1).vec()};
  }
  return layout;
}

/// For people.
std::string text_of_layout(const json& layout) {
  std::string text;
  for (const auto& [name, output] : layout.items()) {
    text += text.empty() ? "" : ", ";
    if (!name.empty()) text += "\"" + name + "\" ";
    text += c10::toString(static_cast<at::ScalarType>(output[0].get<int>()));
    text += " rows of " + output[1].dump();
  }
  return text;
}

void compare(const json& first, const json& other) {
  if (first != other) throw message::predictions_differ(text_of_layout(first), text_of_layout(other));
}

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

at::Tensor rows_from(const std::string& bytes, at::ScalarType type, std::vector<std::int64_t> sizes,
                     std::int64_t rows) {
  sizes.insert(sizes.begin(), rows);
  at::Tensor tensor = at::empty(sizes, type);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

at::Tensor joined(std::vector<at::Tensor>&& parts) {
  return parts.size() == 1 ? std::move(parts.front()) : at::cat(std::exchange(parts, {}));
}

}  // namespace

void Predictions::keep(const Outputs& outputs, std::optional<std::int64_t> rows) {
  if (outputs.empty()) throw message::undefined_prediction("");
  Outputs first;
  for (const auto& [name, output] : outputs) {
    if (!output.defined()) throw message::undefined_prediction(name);
    if (output.dim() == 0 || output.size(0) != rows.value_or(output.size(0))) {
      throw message::prediction_rows(name, output.sizes().vec(), rows);
    }
    rows = output.size(0);
  }
  for (const auto& [name, parts] : parts_) first.emplace(name, parts.front());
  if (!first.empty()) compare(layout_of(first), layout_of(outputs));
  for (const auto& [name, output] : outputs) {
    // A copy, since the function may return a tensor that it fills anew for the next batch.
    const auto plain = output.detach().resolve_conj().resolve_neg();
    parts_[name].push_back(plain.to(at::TensorOptions(at::kCPU), /*non_blocking=*/false, /*copy=*/true,
                                    at::MemoryFormat::Contiguous));
  }
}

void Predictions::add(const Outputs& outputs, std::span<const std::int64_t> samples) {
  keep(outputs, static_cast<std::int64_t>(samples.size()));
  places_.insert(places_.end(), samples.begin(), samples.end());
}

void Predictions::add(const Outputs& outputs, std::int64_t batch) {
  keep(outputs, std::nullopt);
  places_.insert(places_.end(), static_cast<std::size_t>(outputs.begin()->second.size(0)), batch);
}

Outputs Predictions::over_ranks(Agreement& agreement) && {
  Outputs mine;
  at::Tensor places;
  agreement.locally([&] {
    for (auto& [name, parts] : parts_) mine.emplace(name, joined(std::move(parts)));
    places = at::tensor(places_, at::kLong);
  });
  (void)agreement.meet({.phase = Phase::evaluation});

  if (!agreement.alone()) {
    // A rank without a batch learns from the others what there is.
    json layout;
    std::vector<std::int64_t> rows;
    for (const auto& text : agreement.exchange(json{places.size(0), layout_of(mine)}.dump())) {
      const auto of_rank = json::parse(text);
      rows.push_back(of_rank[0]);
      if (of_rank[1].empty()) continue;
      if (layout.is_null()) layout = of_rank[1];
      agreement.together([&] { compare(layout, of_rank[1]); });
    }
    const auto gather = [&](const at::Tensor& rows_here, at::ScalarType type,
                            const std::vector<std::int64_t>& sizes) {
      std::vector<at::Tensor> parts;
      for (const auto& bytes : agreement.exchange(rows_here.defined() ? bytes_of(rows_here) : "")) {
        parts.push_back(rows_from(bytes, type, sizes, rows[parts.size()]));
      }
      return joined(std::move(parts));
    };
    places = gather(places, at::kLong, {});
    for (const auto& [name, output] : layout.items()) {
      mine[name] = gather(mine[name], static_cast<at::ScalarType>(output[0].get<int>()), output[1]);
    }
  }

  if (mine.empty()) agreement.together([] { throw message::nothing_to_predict(); });
  const auto* const first = places.const_data_ptr<std::int64_t>();
  if (!std::is_sorted(first, first + places.numel())) {
    const auto order = places.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
    for (auto& [name, output] : mine) output = output.index_select(0, order);
  }
  return mine;
}

void check_prediction_source(const DataLoaderOptions& options, std::int64_t dataset_size) {
  const std::int64_t dropped = options.drop_last ? dataset_size % options.batch_size : 0;
  if (dropped != 0) throw message::invalid_settings({message::problem_prediction_drops(dropped)});
}

}  // namespace lockstep::detail
