#include "base/prediction_messages.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::message {
namespace {

std::string called(const std::string& output) {
  return output.empty() ? std::string("the prediction") : fmt::format("the prediction \"{}\"", output);
}

}  // namespace

StepError undefined_prediction(const std::string& output) {
  return {
      "undefined-prediction",
      output.empty()
          ? "what predicts has returned no defined tensor for a batch. Return one with a row for each sample."
          : fmt::format(
                "{} of a batch is an undefined tensor. Give it a row for each sample, or leave it out "
                "for all batches.",
                called(output))};
}

StepError prediction_rows(const std::string& output, const std::vector<std::int64_t>& shape,
                          std::optional<std::int64_t> rows) {
  return {"prediction-rows", fmt::format("{} of a batch has the sizes [{}], and its first one should be {}. "
                                         "Return a row for each sample: not "
                                         "a value for the batch, and no other dimension in front.",
                                         called(output), fmt::join(shape, ", "),
                                         rows ? fmt::format("the batch's number of samples, {}", *rows)
                                              : "the batch's number of samples")};
}

StepError predictions_differ(const std::string& first, const std::string& other) {
  return {
      "predictions-differ",
      fmt::format("the predictions of two batches do not fit together: {} for one, {} for another. Return "
                  "outputs of the "
                  "same names, types and sizes (but the first) for all batches; pad what varies in length.",
                  first, other)};
}

DataError nothing_to_predict() {
  return {"nothing-to-predict",
          "there is nothing to predict: the source yielded no batch on any rank. Check the data behind it; "
          "one that can be "
          "read only once may have been."};
}

std::string problem_prediction_drops(std::int64_t dropped) {
  return fmt::format(
      "drop_last of the DataLoader leaves {} out of the predictions; predict from a loader without it.",
      dropped == 1 ? "one sample" : fmt::format("{} samples", dropped));
}

}  // namespace lockstep::message
