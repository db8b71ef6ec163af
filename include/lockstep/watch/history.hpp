// What a run came to, epoch by epoch, in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/config/monitor.hpp"

namespace lockstep {

/// The end of one epoch.
struct EpochRecord {
  std::int64_t epoch = 0;  ///< completed epochs
  std::int64_t step = 0;   ///< successful updates
  /// Means over the epoch (`epoch/loss`, `epoch/<metric>`, `epoch/grad_norm`), the rates of its last update
  /// (`lr` or `lr/<group>`), and what was evaluated at its end (`<set>/<metric>`); in the order of
  /// History::names().
  std::vector<std::pair<std::string, double>> values = {};

  /// Unset if the epoch has no such value.
  [[nodiscard]] std::optional<double> value(const std::string& name) const;

  bool operator==(const EpochRecord&) const = default;
};

/// The records of all epochs that a run has completed, over all its train() calls and resumes; the same on
/// all ranks.
///
///     for (const auto& record : trainer.history()) plot(record.epoch, *record.value("epoch/loss"));
///     const auto best = trainer.history().best("validation/accuracy", lockstep::Direction::maximize);
class History {
 public:
  /// One value of an epoch.
  struct Point {
    std::int64_t epoch = 0;
    std::int64_t step = 0;
    double value = 0;

    bool operator==(const Point&) const = default;
  };

  [[nodiscard]] auto begin() const { return records_.begin(); }
  [[nodiscard]] auto end() const { return records_.end(); }
  [[nodiscard]] std::size_t size() const { return records_.size(); }
  [[nodiscard]] bool empty() const { return records_.empty(); }
  [[nodiscard]] const EpochRecord& operator[](std::size_t index) const { return records_[index]; }
  /// The latest; there must be one.
  [[nodiscard]] const EpochRecord& back() const { return records_.back(); }

  /// Of all values, in the order in which they first appeared.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  /// The value of this name in every epoch that has it.
  [[nodiscard]] std::vector<Point> series(const std::string& name) const;
  /// The best finite value of this name and when it was reached; a tie keeps the earlier. Unset if there is
  /// none.
  [[nodiscard]] std::optional<Point> best(const std::string& name,
                                          Direction direction = Direction::minimize) const;

  /// `[{"epoch":1,"step":120,"values":{"epoch/loss":0.31}}]`; what is not finite is "nan", "inf" or "-inf".
  [[nodiscard]] std::string json() const;

  /// Internal: only the Trainer writes.
  void add(EpochRecord record);
  /// Adds values to the latest record, or replaces them. Internal, as above.
  void extend(const std::vector<std::pair<std::string, double>>& values);

 private:
  std::size_t column(const std::string& name);

  std::vector<std::string> names_;
  std::vector<EpochRecord> records_;
};

}  // namespace lockstep
