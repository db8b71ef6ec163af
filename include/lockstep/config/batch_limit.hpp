// How much of an epoch or of an evaluation set is used.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace lockstep {

/// At most this many batches: a whole number is a count, a floating-point number a share, so `1` is one batch and `1.0`
/// all of them.
class BatchLimit {
 public:
  template <std::integral Integer>
  BatchLimit(Integer count) : limit_(static_cast<std::int64_t>(count)) {}
  template <std::floating_point Floating>
  BatchLimit(Floating share) : limit_(static_cast<double>(share)) {}

  [[nodiscard]] const std::variant<std::int64_t, double>& value() const { return limit_; }

  /// How many of `available` batches are used, rounded down but at least one; `available` unset: their number is not
  /// known. Errors: ConfigError `unknown-length` for a share of an unknown number.
  [[nodiscard]] std::int64_t of(std::optional<std::int64_t> available) const;

  bool operator==(const BatchLimit&) const = default;

 private:
  std::variant<std::int64_t, double> limit_;
};

/// `limit` or, if it is unset, all there are; unset if nobody knows.
[[nodiscard]] std::optional<std::int64_t> limited(const std::optional<BatchLimit>& limit,
                                                  std::optional<std::int64_t> available);

/// The mistake in a limit called `name`, a sentence with its remedy; empty if there is none.
std::vector<std::string> problems(const std::string& name, const BatchLimit& limit);

}  // namespace lockstep
