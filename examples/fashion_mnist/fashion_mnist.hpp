// Fashion-MNIST: 28 x 28 grey images of clothes in ten classes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <lockstep/data/example.hpp>
#include <span>
#include <utility>

/// `data` [samples, 1, 28, 28], normalised to mean 0 and deviation 1 over the training images; `target`
/// [samples], int64, 0 to 9.
struct FashionMnist {
  lockstep::Example train;       ///< 55,000 of the 60,000 training images, always the same ones
  lockstep::Example validation;  ///< the other 5,000
  lockstep::Example test;        ///< 10,000
};

/// Reads the four files in `folder`, compressed (.gz) or not. Errors: lockstep::DataError `cannot-read-idx`.
[[nodiscard]] FashionMnist load_fashion_mnist(const std::filesystem::path& folder);

/// Images, each moved by up to one pixel along both axes and mirrored half of the time, by its sample seed
/// alone.
class AugmentedImages {
 public:
  explicit AugmentedImages(lockstep::Example images) : images_(std::move(images)) {}

  [[nodiscard]] std::int64_t size() const { return images_.data.size(0); }
  [[nodiscard]] lockstep::Example get_batch(std::span<const std::int64_t> indices,
                                            std::span<const std::uint64_t> sample_seeds) const;

 private:
  lockstep::Example images_;
};
