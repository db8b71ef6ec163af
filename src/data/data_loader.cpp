#include "lockstep/data/data_loader.hpp"

#include <ATen/Context.h>

#include <string>

namespace lockstep::detail {

void check_dataset_pointer(const void* dataset) {
  if (dataset == nullptr) {
    throw message::invalid_settings(
        {"the data set is a null pointer; hand over the data set itself, or a "
         "std::shared_ptr that holds one"});
  }
}

void check_data_loader(const DataLoaderOptions& options, std::optional<std::size_t> dataset_size) {
  std::vector<std::string> problems;
  if (options.batch_size < 1) {
    problems.push_back("batch_size is " + std::to_string(options.batch_size) + "; it must be at least 1");
  }
  if (options.workers < 0) {
    problems.push_back("workers is " + std::to_string(options.workers) +
                       "; use 0 to load in the training thread, or a number of threads");
  }
  if (options.pin_memory && !at::hasCUDA()) {
    problems.push_back("pin_memory speeds up copies to CUDA, and there is no CUDA device; unset it");
  }
  if (!problems.empty()) throw message::invalid_settings(problems);
  if (!dataset_size) throw message::dataset_without_size();
  const auto samples = static_cast<std::int64_t>(*dataset_size);
  if (samples < 1) throw message::empty_dataset();
  if (batches_per_epoch(samples, options) == 0) {
    throw message::invalid_settings({"drop_last with batch_size " + std::to_string(options.batch_size) +
                                     " leaves no batch of " + std::to_string(samples) +
                                     " samples; lower batch_size or unset drop_last"});
  }
}

void check_shard(const DataLoaderOptions& options, const Shard& shard, std::int64_t dataset_size) {
  const std::string ranks = std::to_string(shard.ranks) + " ranks";
  if (shard.rank < 0 || shard.rank >= shard.ranks) {
    throw message::invalid_settings({"rank " + std::to_string(shard.rank) + " of " + ranks +
                                     " does not exist; ranks count from 0"});
  }
  const std::string batch_size = "batch_size " + std::to_string(options.batch_size);
  if (options.split_batches && options.batch_size % shard.ranks != 0) {
    throw message::invalid_settings({"split_batches cannot cut " + batch_size + " into equal parts for " +
                                     ranks + "; make it a multiple of their number, or unset split_batches"});
  }
  if (batches_per_epoch(dataset_size, options, shard) == 0) {
    throw message::invalid_settings({"even_batches and drop_last with " + batch_size + " leave no batch of " +
                                     std::to_string(dataset_size) + " samples to each of " + ranks +
                                     "; lower batch_size or unset one of the two"});
  }
}

void check_first_batch(std::int64_t first_batch, std::int64_t batches) {
  if (first_batch < 0 || first_batch > batches) throw message::position_past_end(first_batch, batches);
}

}  // namespace lockstep::detail
