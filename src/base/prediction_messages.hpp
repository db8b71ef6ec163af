// The errors of predictions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.hpp"

namespace lockstep::message {

// `output`: its name; empty for a function's only one.

StepError undefined_prediction(const std::string& output);
/// `shape`: of the output; `rows`: the batch's samples, if their number is known.
StepError prediction_rows(const std::string& output, const std::vector<std::int64_t>& shape,
                          std::optional<std::int64_t> rows);
/// `first` and `other` describe the outputs of two batches.
StepError predictions_differ(const std::string& first, const std::string& other);
DataError nothing_to_predict();
/// For invalid_settings().
std::string problem_prediction_drops(std::int64_t dropped);

}  // namespace lockstep::message
