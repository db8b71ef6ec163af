// What a checkpoint or a weights file holds, a file at a time.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep::cli {

struct Contents {
  std::filesystem::path path;
  nlohmann::json manifest;  ///< null: `path` is a weights file
  std::vector<std::string> files;
};

/// Errors: those of find_source(), of the manifest, and of a path with nothing at it.
Contents open_contents(const std::filesystem::path& given);

/// The tensors of one of the files, none if it is not among them. All of the file is verified. Errors: those of reading.
NamedTensors read_tensors(const Contents& contents, const std::string& file);

std::uint64_t bytes_of(const Contents& contents, const std::string& file);

/// The Euclidean norm of the values, in double.
double norm(const at::Tensor& tensor);

}  // namespace lockstep::cli
