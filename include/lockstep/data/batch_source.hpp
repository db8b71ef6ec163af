// Reading batches from whatever the user trains and evaluates on: a DataLoader, or any range of batches.
//
//     source                                              a batch is found by
//     a DataLoader                                        seeking
//     a sized random-access range, std::vector<Batch>     indexing
//     any other range with begin() and end()              reading and dropping what is not wanted
//
// Several ranks share an epoch: from where they begin its batches go to them in turn, so that a round of all
// ranks is what a single rank would read next. A DataLoader with split_batches gives each its part of every
// batch instead. Positions and limits count the batches of all ranks. A range that already is one rank's own
// part is read with Shard{}.
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
#include "lockstep/tensors/profiler_range.hpp"

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
  source.epoch(number, number, Shard()).next();
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

/// The rank's batches of one epoch of `source`, from the `first_batch`-th of all ranks on.
///
/// Of sources that seek, `epoch` chooses the order; others yield what they yield. more() may read the next
/// batch of a range, so a batch must stay valid while those after it are read. next() needs more(). Errors:
/// DataError `position-past-end`, ConfigError `invalid-settings` when the ranks cannot share the source, and
/// what it throws.
template <class Source>
class BatchStream {
  static_assert(BatchRange<Source>,
                "lockstep: batches are read from a DataLoader or a range with begin() and end()");

 public:
  using Batch = batch_t<Source>;

  BatchStream(Source& source, std::int64_t /*epoch*/, std::int64_t first_batch, const Shard& shard = {})
      : position_(source.begin()), end_(source.end()), ranks_(shard.ranks) {
    for (std::int64_t batch = 0; batch < first_batch; ++batch) {
      if (!more()) throw message::position_past_end(first_batch, batch);
      to_drop_ = 1;
    }
    to_drop_ += shard.rank;
  }

  [[nodiscard]] bool more() {
    // Not when the batch is handed out: the step on it need not wait for those after it.
    for (; to_drop_ > 0 && position_ != end_; --to_drop_) {
      const ProfilerRange range("lockstep::fetch");
      ++position_;
    }
    return position_ != end_;
  }

  [[nodiscard]] Batch next() {
    [[maybe_unused]] const bool has_next = more();
    assert(has_next);
    to_drop_ = ranks_;
    return *position_;
  }

 private:
  decltype(std::declval<Source&>().begin()) position_;
  decltype(std::declval<Source&>().end()) end_;
  int ranks_;
  int to_drop_ = 0;  // batches from position_ on that were handed out or are another rank's
};

template <detail::Seekable Source>
class BatchStream<Source> {
 public:
  using Batch = batch_t<Source>;

  BatchStream(Source& source, std::int64_t epoch, std::int64_t first_batch, const Shard& shard = {})
      : stream_(source.epoch(epoch, first_batch, shard)) {}

  [[nodiscard]] bool more() { return stream_.more(); }
  [[nodiscard]] Batch next() {
    auto batch = stream_.next();
    assert(batch);
    return *std::move(batch);
  }

 private:
  decltype(std::declval<Source&>().epoch(0, 0, Shard())) stream_;
};

template <detail::Indexable Source>
class BatchStream<Source> {
 public:
  using Batch = batch_t<Source>;

  BatchStream(Source& source, std::int64_t /*epoch*/, std::int64_t first_batch, const Shard& shard = {})
      : source_(&source), position_(first_batch + shard.rank), ranks_(shard.ranks) {
    detail::check_first_batch(first_batch,
                              static_cast<std::int64_t>(std::ranges::size(std::as_const(source))));
  }

  [[nodiscard]] bool more() const {
    return position_ < static_cast<std::int64_t>(std::ranges::size(*source_));
  }
  [[nodiscard]] Batch next() {
    assert(more());
    return std::ranges::begin(*source_)[std::exchange(position_, position_ + ranks_)];
  }

 private:
  const Source* source_;
  std::int64_t position_;
  int ranks_;
};

/// What is known of a source before it is read.
struct SourceFacts {
  std::optional<std::int64_t> batches = {};  ///< in an epoch of all ranks
  std::optional<std::int64_t> samples = {};  ///< in the data set
  std::optional<std::int64_t> batch_size = {};
  std::optional<std::uint64_t> seed = {};
  std::optional<bool> shuffle = {};
  std::optional<bool> drop_last = {};
  std::optional<bool> even_batches = {};
  std::optional<bool> split_batches = {};
  /// A run can be continued inside an epoch, bit for bit. Of a range of the third kind nobody can say.
  bool exact_resume = false;
};

namespace detail {

template <class Source>
std::optional<std::int64_t> epoch_size(const Source& source, const Shard& shard) {
  if constexpr (Seekable<Source>) {
    return source.size(shard);
  } else if constexpr (std::ranges::sized_range<const Source>) {
    return static_cast<std::int64_t>(std::ranges::size(source));
  } else {
    return std::nullopt;
  }
}

}  // namespace detail

/// The facts for training on `ranks`. Errors: ConfigError `invalid-settings` when they cannot share the
/// source.
template <class Source>
[[nodiscard]] SourceFacts source_facts(const Source& source, int ranks = 1) {
  const auto batches = detail::epoch_size(source, Shard{.ranks = ranks});
  if constexpr (detail::Seekable<Source>) {
    const DataLoaderOptions& options = source.options();
    return {.batches = batches,
            .samples = source.dataset_size(),
            .batch_size = options.batch_size,
            .seed = options.seed,
            .shuffle = options.shuffle,
            .drop_last = options.drop_last,
            .even_batches = options.even_batches,
            .split_batches = options.split_batches,
            .exact_resume = true};
  } else {
    return {.batches = batches, .exact_resume = detail::Indexable<Source>};
  }
}

/// By how many batches of all ranks the epoch moves on while each rank reads one.
[[nodiscard]] inline std::int64_t batches_per_round(const SourceFacts& facts, int ranks) {
  return facts.split_batches.value_or(false) ? 1 : ranks;
}

/// A BatchStream that ends at `limit` batches of the epoch, all ranks' from its start; unset: at its end.
template <class Source>
class EpochBatches {
 public:
  EpochBatches(Source& source, std::int64_t epoch, std::int64_t first_batch,
               std::optional<std::int64_t> limit, const Shard& shard = {})
      : stream_(source, epoch, first_batch, shard) {
    if (!limit) return;
    const bool dealt = batches_per_round(source_facts(source, shard.ranks), shard.ranks) == shard.ranks;
    left_ = dealt ? dealt_batches(*limit - first_batch, shard) : *limit - first_batch;
  }

  [[nodiscard]] bool more() { return left_ > 0 && stream_.more(); }
  [[nodiscard]] auto next() {
    const ProfilerRange range("lockstep::fetch");
    --left_;
    return stream_.next();
  }

 private:
  BatchStream<Source> stream_;
  std::int64_t left_ = std::numeric_limits<std::int64_t>::max();
};

/// A reference to a source of batches whose own type is forgotten: what evaluation sets are made of.
///
///     std::map<std::string, lockstep::BatchSource<lockstep::Example>> sets{{"validation", loader}};
///
/// Converts from any source that yields `Batch`. Does not own it.
template <class Batch>
class BatchSource {
 public:
  using Use = std::function<void(const Batch&)>;

  template <class Source>
  requires(!std::same_as<std::remove_const_t<Source>, BatchSource>)
      BatchSource(Source& source) {  // NOLINT(google-explicit-constructor)
    constexpr bool same_batch = std::same_as<batch_t<Source>, Batch>;
    static_assert(same_batch, "lockstep: this evaluation set yields another batch type than the Step takes");
    if constexpr (same_batch) {
      size_ = [&source](const Shard& shard) { return detail::epoch_size(source, shard); };
      read_ = [&source](const std::optional<BatchLimit>& limit, const Shard& shard, const Use& use) {
        EpochBatches<Source> stream(source, 0, 0, limited(limit, detail::epoch_size(source, shard)), shard);
        while (stream.more()) use(stream.next());
      };
    }
  }

  /// Batches in an epoch of all ranks, if that is known. Errors: ConfigError `invalid-settings` when the
  /// ranks cannot share the source.
  [[nodiscard]] std::optional<std::int64_t> size(const Shard& shard) const { return size_(shard); }

  /// Calls `use` with the rank's batches of epoch 0, in order, up to the limit. Errors: ConfigError
  /// `unknown-length` for a share of a source of unknown length; those of size().
  void for_each(const std::optional<BatchLimit>& limit, const Shard& shard, const Use& use) const {
    read_(limit, shard, use);
  }

 private:
  std::function<std::optional<std::int64_t>(const Shard&)> size_;
  std::function<void(const std::optional<BatchLimit>&, const Shard&, const Use&)> read_;
};

}  // namespace lockstep
