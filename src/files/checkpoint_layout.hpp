// The names and the manifest's text, as reader and writer of checkpoints share them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/posix_file.hpp"
#include "lockstep/base/messages.hpp"
#include "tensors/safetensors_format.hpp"

namespace lockstep {

inline constexpr const char* manifest_file_name = "manifest.json";
inline constexpr const char* model_file_name = "model.safetensors";
inline constexpr const char* ema_file_name = "ema.safetensors";
inline constexpr const char* optimizer_file_name = "optimizer.safetensors";
inline constexpr const char* objective_file_name = "objective.safetensors";
inline constexpr const char* registered_file_name = "registered.safetensors";
inline constexpr std::array<const char*, 3> checkpoint_names = {"last", "best", "final"};

/// `rank-00003.safetensors`
std::string rank_file_name(int rank);

/// `step-00001875`
std::string step_folder_name(std::int64_t step);

/// Whether a name is that of a step folder, a repeated one such as `step-00001875-2` included.
bool is_step_folder_name(const std::string& name);

/// What the manifest says of a file: `size`, `crc32c`, and `tensor_crc32c`, that of each tensor in the order in which
/// they lie in the file. Checksums are eight hexadecimal digits each.
nlohmann::json digest_to_json(const FileDigest& digest);
FileDigest digest_from_json(const nlohmann::json& listed);

/// The manifest as it is written, with its own checksum as the last member.
std::string manifest_text(const nlohmann::json& manifest);

/// Reads and checks the manifest of a step folder: its checksum, version, the members every checkpoint has,
/// and the names of its files. Errors: CheckpointError `damaged-checkpoint`, `checkpoint-format-version`.
nlohmann::json read_manifest(const std::filesystem::path& directory);

/// Throws FileDamage if there is anything but a regular file at `path`.
void require_plain_file(const std::filesystem::path& path);

/// Runs `read` on a file inside a step folder. Whatever is wrong with the file is damage of the checkpoint:
/// throws CheckpointError `damaged-checkpoint`.
template <class Read>
auto read_inside(const std::filesystem::path& path, Read read) {
  try {
    require_plain_file(path);
    return read(InputFile(path, Links::refuse));
  } catch (const FileError& error) {
    throw message::damaged_checkpoint(path, error.what());
  } catch (const FileDamage& damage) {
    throw message::damaged_checkpoint(path, damage.what());
  }
}

}  // namespace lockstep
