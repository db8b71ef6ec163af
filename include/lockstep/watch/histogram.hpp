// How often values fall between limits: weights or gradients at one update, say.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// A distribution, in the form in which TensorBoard draws it.
struct Histogram {
  std::string name;
  double min = 0;
  double max = 0;
  double num = 0;  ///< how many values
  double sum = 0;
  double sum_squares = 0;
  /// Rising. Bucket i holds the values below limit i that are not below limit i - 1.
  std::vector<double> bucket_limits = {};
  std::vector<double> counts = {};  ///< one for each limit
};

/// The limits that TensorBoard's own writers use: 0, and on both sides of it 1e-12 growing by a tenth each up
/// to 1e20, then the largest double. Where they are too many, buckets at the ends that are empty may be left
/// out.
[[nodiscard]] const std::vector<double>& default_bucket_limits();

}  // namespace lockstep
