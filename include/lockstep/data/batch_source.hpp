// Reading batches from whatever the user trains and evaluates on: a DataLoader, or any range of batches.
//
//     source                                              position is found by
//     a DataLoader                                        seeking
//     a sized random-access range, std::vector<Batch>     indexing
//     any other range with begin() and end()              reading and dropping what comes before
//
// A range of the third kind may be of unknown length and of a single pass, as `*loader` of a torch::data
// loader; begin() is called once an epoch. Sources are never owned: they outlive what reads from them.
#pragma once

#include <cassert>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <ranges>
#include <type_traits>
#include <utility>

#include "lockstep/base/messages.hpp"
#include "lockstep/config/batch_limit.hpp"
#include "lockstep/data/data_loader.hpp"

namespace lockstep {

/// Anything with begin() and end().
///
///     static_assert(lockstep::BatchRange<std::vector<lockstep::Example>>);      // valid
///     static_assert(!lockstep::BatchRange<lockstep::TensorDataset>);            // invalid: wrap it in a
///     DataLoader
template <class Source>
concept BatchRange = requires(Source& source) {
  *source.begin();
  { source.begin() != source.end() } -> std::convertible_to<bool>;
};

namespace detail {

template <class Source>
concept Seekable = requires(const Source& source, std::int64_t number) {
  { source.options() } -> std::convertible_to<const DataLoaderOptions&>;
  source.epoch(number, number).next();
};

template <class Source>
concept Indexable = !Seekable<Source> && std::ranges::random_access_range<const Source> &&
                    std::ranges::sized_range<const Source>;

template <class Source>
struct BatchOf {
  using Type = NoBatch;
};
template <BatchRange Source>
struct BatchOf<Source> {
  using Type = std::remove_cvref_t<decltype(*std::declval<Source&>().begin())>;
};

}  // namespace detail

/// The type of the batches that a source yields.
template <class Source>
using batch_t = typename detail::BatchOf<std::remove_reference_t<Source>>::Type;

/// One epoch of `source` from `first_batch` on.
///
/// Of sources that seek, `epoch` chooses the order; others yield what they yield. more() may read the next
/// batch of a range, so a batch must stay valid while the one after it is read. next() needs more(). Errors:
/// DataError `position-past-end`, and what the source throws.
template <class Source>
class BatchStream {
  static_assert(BatchRange<Source>,
                "lockstep: batches are read from a DataLoader or a range with begin() and end()");

 public:
  using Batch = batch_t<Source>;

  BatchStream(Source& source, std::int64_t /*epoch*/, std::int64_t first_batch)
      : position_(source.begin()), end_(source.end()) {
    for (std::int64_t batch = 0; batch < first_batch; ++batch) {
      if (!more()) throw message::position_past_end(first_batch, batch);
      used_ = true;
    }
  }

  [[nodiscard]] bool more() {
    // Not when the batch is handed out: the step on it need not wait for the one after it.
    if (used_) ++position_;
    used_ = false;
    return position_ != end_;
  }

  [[nodiscard]] Batch next() {
    [[maybe_unused]] const bool has_next = more();
    assert(has_next);
    used_ = true;
    return *position_;
  }

 private:
  decltype(std::declval<Source&>().begin()) position_;
  decltype(std::declval<Source&>().end()) end_;
  bool used_ = false;  // the batch at position_ was handed out or dropped
};

template <detail::Seekable Source>
class BatchStream<Source> {
 public:
  using Batch = batch_t<Source>;

  BatchStream(Source& source, std::int64_t epoch, std::int64_t first_batch)
      : stream_(source.epoch(epoch, first_batch)) {}

  [[nodiscard]] bool more() { return stream_.more(); }
  [[nodiscard]] Batch next() {
    auto batch = stream_.next();
    assert(batch);
    return *std::move(batch);
  }

 private:
  decltype(std::declval<Source&>().epoch(0, 0)) stream_;
};

template <detail::Indexable Source>
class BatchStream<Source> {
 public:
  using Batch = batch_t<Source>;

  BatchStream(Source& source, std::int64_t /*epoch*/, std::int64_t first_batch)
      : source_(&source), position_(first_batch) {
    detail::check_first_batch(first_batch,
                              static_cast<std::int64_t>(std::ranges::size(std::as_const(source))));
  }

  [[nodiscard]] bool more() const {
    return position_ < static_cast<std::int64_t>(std::ranges::size(*source_));
  }
  [[nodiscard]] Batch next() {
    assert(more());
    return std::ranges::begin(*source_)[position_++];
  }

 private:
  const Source* source_;
  std::int64_t position_;
};

/// A BatchStream that ends at `limit` batches of the epoch, counted from its start; unset: at its end.
template <class Source>
class EpochBatches {
 public:
  EpochBatches(Source& source, std::int64_t epoch, std::int64_t first_batch, std::optional<std::int64_t> limit)
      : stream_(source, epoch, first_batch),
        left_(limit ? *limit - first_batch : std::numeric_limits<std::int64_t>::max()) {}

  [[nodiscard]] bool more() { return left_ > 0 && stream_.more(); }
  [[nodiscard]] auto next() {
    --left_;
    return stream_.next();
  }

 private:
  BatchStream<Source> stream_;
  std::int64_t left_;
};

/// What is known of a source before it is read.
struct SourceFacts {
  std::optional<std::int64_t> batches = {};  ///< in an epoch
  std::optional<std::int64_t> samples = {};  ///< in the data set
  std::optional<std::int64_t> batch_size = {};
  std::optional<std::uint64_t> seed = {};
  std::optional<bool> shuffle = {};
  std::optional<bool> drop_last = {};
  /// A run can be continued inside an epoch, bit for bit. Of a range of the third kind nobody can say.
  bool exact_resume = false;
};

template <class Source>
[[nodiscard]] SourceFacts source_facts(const Source& source) {
  if constexpr (detail::Seekable<Source>) {
    const DataLoaderOptions& options = source.options();
    return {.batches = source.size(),
            .samples = source.dataset_size(),
            .batch_size = options.batch_size,
            .seed = options.seed,
            .shuffle = options.shuffle,
            .drop_last = options.drop_last,
            .exact_resume = true};
  } else if constexpr (std::ranges::sized_range<const Source>) {
    return {.batches = static_cast<std::int64_t>(std::ranges::size(source)),
            .exact_resume = detail::Indexable<Source>};
  } else {
    return {};
  }
}

/// A reference to a source of batches whose own type is forgotten: what evaluation sets are made of.
///
///     std::map<std::string, lockstep::BatchSource<lockstep::Example>> sets{{"validation", loader}};
///
/// Converts from any source that yields `Batch`. Does not own it.
template <class Batch>
class BatchSource {
 public:
  template <class Source>
  requires(!std::same_as<std::remove_const_t<Source>, BatchSource>)
      BatchSource(Source& source) {  // NOLINT(google-explicit-constructor)
    constexpr bool same_batch = std::same_as<batch_t<Source>, Batch>;
    static_assert(same_batch, "lockstep: this evaluation set yields another batch type than the Step takes");
    if constexpr (same_batch) {
      read_ = [&source](const std::optional<BatchLimit>& limit, const std::function<void(const Batch&)>& use) {
        EpochBatches<Source> stream(source, 0, 0, limited(limit, source_facts(source).batches));
        while (stream.more()) use(stream.next());
      };
    }
  }

  /// Calls `use` with the batches of epoch 0, in order, up to the limit. Errors: ConfigError `unknown-length` for a
  /// share of a source of unknown length.
  void for_each(const std::optional<BatchLimit>& limit, const std::function<void(const Batch&)>& use) const {
    read_(limit, use);
  }

 private:
  std::function<void(const std::optional<BatchLimit>&, const std::function<void(const Batch&)>&)> read_;
};

}  // namespace lockstep
