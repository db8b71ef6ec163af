#include "files/checkpoint_layout.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <regex>
#include <system_error>

#include "base/crc32c.hpp"
#include "files/checkpoint.hpp"
#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

constexpr std::uint64_t max_manifest_size = 100'000'000;
// Copying and writing JSON takes stack for each level.
constexpr int max_manifest_depth = 100;

constexpr std::size_t crc_digits = 8;

std::string crc32c_text(std::uint32_t crc) {
  char text[crc_digits + 1];
  std::snprintf(text, sizeof text, "%08x", crc);
  return text;
}

std::string checksum_line(const char* text, std::size_t size) {
  return ",\n  \"manifest_crc32c\": \"" + crc32c_text(crc32c(text, size)) + "\"\n}\n";
}

bool is_count(const nlohmann::json& object, const char* member) {
  const auto found = object.find(member);
  return found != object.end() && found->is_number_unsigned() &&
         found->get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
}

bool is_file_name(const std::string& name) {
  static const std::regex rank_file("rank-[0-9]{5,9}\\.safetensors");
  return name == model_file_name || name == ema_file_name || name == optimizer_file_name ||
         name == objective_file_name || name == registered_file_name ||
         std::regex_match(name, rank_file);
}

bool are_checksums(const nlohmann::json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return text.size() % crc_digits == 0 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Checkpoints of the first versions have no checksums of tensors.
bool is_digest(const nlohmann::json& digest) {
  return digest.is_object() && is_count(digest, "size") && digest.contains("crc32c") &&
         are_checksums(digest["crc32c"]) && digest["crc32c"].get_ref<const std::string&>().size() == crc_digits &&
         (!digest.contains("tensor_crc32c") || are_checksums(digest["tensor_crc32c"]));
}

void check_members(const nlohmann::json& manifest) {
  if (!manifest.contains("run_id") || !manifest["run_id"].is_string()) throw FileDamage("it has no run_id");
  if (!is_count(manifest, "save_index")) throw FileDamage("it has no save_index");
  const auto state = manifest.find("state");
  if (state == manifest.end() || !is_count(*state, "step") || !is_count(*state, "batches")) {
    throw FileDamage("it has no state with step and batches");
  }
  const auto files = manifest.find("files");
  if (files == manifest.end() || !files->is_object() || !files->contains(model_file_name)) {
    throw FileDamage(std::string("it lists no ") + model_file_name);
  }
  for (const auto& [name, digest] : files->items()) {
    if (!is_file_name(name)) throw FileDamage("it lists a file that no checkpoint has, \"" + name + "\"");
    if (!is_digest(digest)) throw FileDamage("it lists no size and crc32c for " + name);
  }
}

nlohmann::json parse_manifest(const std::string& text) {
  const auto limit_depth = [](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
    if (depth > max_manifest_depth) throw FileDamage("it is nested too deep");
    return true;
  };
  nlohmann::json manifest = nlohmann::json::parse(text, limit_depth, false);
  if (!manifest.is_object()) throw FileDamage("it is no JSON object");
  manifest.erase("manifest_crc32c");
  return manifest;
}

std::string read_manifest_text(const InputFile& file) {
  if (file.size() > max_manifest_size) throw FileDamage("it has more than 100 MB");
  std::string text = file.text();
  const std::size_t line_size = checksum_line("", 0).size();
  const std::size_t covered = text.size() - std::min(text.size(), line_size);
  if (text.substr(covered) != checksum_line(text.data(), covered)) {
    throw FileDamage("its last lines do not hold the checksum of the ones before");
  }
  return text;
}

}  // namespace

std::string rank_file_name(int rank) {
  char name[40];
  std::snprintf(name, sizeof name, "rank-%05d.safetensors", rank);
  return name;
}

std::string step_folder_name(std::int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

bool is_step_folder_name(const std::string& name) {
  static const std::regex pattern("step-[0-9]{8,19}(-[0-9]{1,9})?");
  return std::regex_match(name, pattern);
}

nlohmann::json digest_to_json(const FileDigest& digest) {
  std::string tensors;
  for (const std::uint32_t crc : digest.tensors) tensors += crc32c_text(crc);
  return {{"size", digest.size}, {"crc32c", crc32c_text(digest.crc32c)}, {"tensor_crc32c", std::move(tensors)}};
}

FileDigest digest_from_json(const nlohmann::json& listed) {
  const auto number = [](const std::string& text, std::size_t begin) {
    std::uint32_t crc = 0;
    std::from_chars(text.data() + begin, text.data() + begin + crc_digits, crc, 16);
    return crc;
  };
  FileDigest digest{listed["size"].get<std::uint64_t>(), number(listed["crc32c"].get_ref<const std::string&>(), 0)};
  if (const auto found = listed.find("tensor_crc32c"); found != listed.end()) {
    const auto& text = found->get_ref<const std::string&>();
    for (std::size_t begin = 0; begin < text.size(); begin += crc_digits) digest.tensors.push_back(number(text, begin));
  }
  return digest;
}

std::string manifest_text(const nlohmann::json& manifest) {
  // A byte that is not UTF-8, in a reason to stop for example, must not cost the checkpoint.
  std::string text = manifest.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize(text.size() - 2);  // the closing brace, on its own line, comes after the checksum
  return text + checksum_line(text.data(), text.size());
}

void require_plain_file(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(path, ignored);
  if (std::filesystem::is_symlink(status))
    throw FileDamage("it is a symbolic link, which is not followed here");
  if (!std::filesystem::exists(status)) throw FileDamage("it is missing");
  if (!std::filesystem::is_regular_file(status)) throw FileDamage("it is not a regular file");
}

nlohmann::json read_manifest(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / manifest_file_name;
  return read_inside(path, [&path](const InputFile& file) {
    nlohmann::json manifest = parse_manifest(read_manifest_text(file));
    if (!is_count(manifest, "format_version")) throw FileDamage("it has no format_version");
    const auto version = manifest["format_version"].get<std::int64_t>();
    if (version != checkpoint_format_version) {
      throw message::checkpoint_format_version(path, version, checkpoint_format_version);
    }
    check_members(manifest);
    return manifest;
  });
}

}  // namespace lockstep
