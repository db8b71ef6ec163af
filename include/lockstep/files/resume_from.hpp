// Where train() continues from.
#pragma once

#include <concepts>
#include <filesystem>
#include <optional>

namespace lockstep {

struct Latest {
  explicit constexpr Latest() = default;
};
/// Continue from the newest valid checkpoint in checkpoint_dir; start fresh if there is none.
inline constexpr Latest latest{};

/// Either `latest` or the path of one checkpoint (a step folder, or a name such as `checkpoints/best`).
/// An explicit path never falls back to another checkpoint.
class ResumeFrom {
 public:
  ResumeFrom(Latest) {}
  template <class Path>
    requires std::convertible_to<Path, std::filesystem::path>
  ResumeFrom(const Path& path) : path_(path) {}

  /// Unset: the newest one.
  [[nodiscard]] const std::optional<std::filesystem::path>& path() const { return path_; }

 private:
  std::optional<std::filesystem::path> path_ = {};
};

}  // namespace lockstep
