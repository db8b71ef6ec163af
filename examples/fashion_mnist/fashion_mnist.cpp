#include "fashion_mnist.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <lockstep/base/random.hpp>
#include <lockstep/data/sampler.hpp>
#include <string>

#include "idx_file.hpp"

namespace {

constexpr std::int64_t side = 28;
// Of the training images, in units of the brightest grey.
constexpr double mean_grey = 0.2860;
constexpr double grey_deviation = 0.3530;
constexpr auto black = static_cast<float>(-mean_grey / grey_deviation);

lockstep::Example load(const std::filesystem::path& folder, const std::string& set, std::int64_t samples) {
  const auto find = [&folder](const std::string& name) {
    const auto plain = folder / name;
    return std::filesystem::exists(plain) ? plain : folder / (name + ".gz");
  };
  const at::Tensor images = read_idx(find(set + "-images-idx3-ubyte"), {samples, side, side});
  const at::Tensor labels = read_idx(find(set + "-labels-idx1-ubyte"), {samples});
  return {images.unsqueeze(1).to(at::kFloat).div_(255).sub_(mean_grey).div_(grey_deviation),
          labels.to(at::kLong)};
}

}  // namespace

FashionMnist load_fashion_mnist(const std::filesystem::path& folder) {
  constexpr std::int64_t training = 55000;
  constexpr std::int64_t all = 60000;
  constexpr std::uint64_t split_seed =
      0;  // of its own, so that no run's seed moves an image between the sets

  const lockstep::Example images = load(folder, "train", all);
  const at::Tensor order = at::tensor(lockstep::permutation(all, split_seed, 0));
  const auto part = [&images](const at::Tensor& indices) -> lockstep::Example {
    return {images.data.index_select(0, indices), images.target.index_select(0, indices)};
  };
  return {.train = part(order.slice(0, 0, training)),
          .validation = part(order.slice(0, training)),
          .test = load(folder, "t10k", 10000)};
}

lockstep::Example AugmentedImages::get_batch(std::span<const std::int64_t> indices,
                                             std::span<const std::uint64_t> sample_seeds) const {
  constexpr std::int64_t farthest = 1;
  const auto count = static_cast<std::int64_t>(indices.size());
  at::Tensor data = at::full({count, 1, side, side}, black, at::kFloat);
  at::Tensor target = at::empty({count}, at::kLong);
  const float* const pixels = images_.data.const_data_ptr<float>();
  const auto* const labels = images_.target.const_data_ptr<std::int64_t>();
  auto* const moved_pixels = data.mutable_data_ptr<float>();
  auto* const batch_labels = target.mutable_data_ptr<std::int64_t>();

  for (std::int64_t i = 0; i < count; ++i) {
    const auto sample = static_cast<std::size_t>(i);
    batch_labels[i] = labels[indices[sample]];
    lockstep::SampleRandom random(sample_seeds[sample]);
    const std::int64_t down = random.uniform_int(-farthest, farthest + 1);
    const std::int64_t right = random.uniform_int(-farthest, farthest + 1);
    const bool mirror = random.uniform() < 0.5;
    const float* const image = pixels + indices[sample] * side * side;
    float* const moved = moved_pixels + i * side * side;
    for (std::int64_t y = std::max<std::int64_t>(0, down); y < std::min(side, side + down); ++y) {
      for (std::int64_t x = std::max<std::int64_t>(0, right); x < std::min(side, side + right); ++x) {
        const std::int64_t column = x - right;
        moved[y * side + x] = image[(y - down) * side + (mirror ? side - 1 - column : column)];
      }
    }
  }
  return {data, target};
}
