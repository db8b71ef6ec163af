#include "lockstep/tensors/safetensors.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/crc32c.hpp"
#include "base/posix_file.hpp"
#include "lockstep/base/messages.hpp"
#include "tensors/safetensors_format.hpp"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and values are not swapped");

constexpr std::uint64_t length_size = 8;
constexpr std::uint64_t max_header_length = 100'000'000;
constexpr std::size_t max_dimensions = 64;
constexpr const char* metadata_name = "__metadata__";

struct Dtype {
  std::string_view name;
  at::ScalarType type;
  std::uint64_t size;
};

constexpr std::array<Dtype, 10> dtypes = {{{"F64", at::kDouble, 8},
                                           {"F32", at::kFloat, 4},
                                           {"F16", at::kHalf, 2},
                                           {"BF16", at::kBFloat16, 2},
                                           {"I64", at::kLong, 8},
                                           {"I32", at::kInt, 4},
                                           {"I16", at::kShort, 2},
                                           {"I8", at::kChar, 1},
                                           {"U8", at::kByte, 1},
                                           {"BOOL", at::kBool, 1}}};

// ---- writing ----

const Dtype& storable_dtype(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) throw message::cannot_store_tensor(name, "it is undefined; leave it out");
  if (tensor.layout() != at::kStrided) {
    throw message::cannot_store_tensor(name, "it is sparse; store its to_dense()");
  }
  const auto found = std::find_if(dtypes.begin(), dtypes.end(),
                                  [&](const Dtype& dtype) { return dtype.type == tensor.scalar_type(); });
  if (found == dtypes.end()) {
    throw message::cannot_store_tensor(
        name, std::string("its type ") + c10::toString(tensor.scalar_type()) +
                  " has no place in a safetensors file; convert it to one of double, float, half, "
                  "bfloat16, bool and the integers up to 64 bits");
  }
  return *found;
}

std::string quoted(const std::string& text) {
  // What nearly all names are, at a fraction of the time.
  const bool plain = std::all_of(text.begin(), text.end(),
                                 [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  if (plain) return '"' + text + '"';
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw message::cannot_store_tensor(text, "its name is not valid UTF-8; rename it");
  }
}

void append_shape(std::string& header, at::IntArrayRef sizes) {
  header += '[';
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0) header += ',';
    header += std::to_string(sizes[i]);
  }
  header += ']';
}

std::string make_header(const SafetensorsFile& file) {
  std::string header = "{";
  if (!file.metadata.empty()) {
    // A byte that is not UTF-8 in a remark is no reason to lose the weights.
    header += std::string("\"") + metadata_name + "\":" +
              nlohmann::json(file.metadata).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  std::unordered_set<std::string_view> names;
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : file.tensors) {
    if (name == metadata_name)
      throw message::cannot_store_tensor(name, "the format keeps this name for itself");
    if (!names.insert(name).second) {
      throw message::cannot_store_tensor(name, "another one has the same name; give each its own");
    }
    const Dtype& dtype = storable_dtype(name, tensor);
    const std::uint64_t end = offset + static_cast<std::uint64_t>(tensor.numel()) * dtype.size;
    if (header.size() > 1) header += ',';
    header.append(quoted(name)).append(R"(:{"dtype":")").append(dtype.name).append(R"(","shape":)");
    append_shape(header, tensor.sizes());
    header.append(R"(,"data_offsets":[)").append(std::to_string(offset)).append(",").append(std::to_string(end)).append("]}");
    if (header.size() > max_header_length) {
      throw message::cannot_store_tensor(name,
                                         "the header would pass 100 MB; store fewer tensors in one file");
    }
    offset = end;
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

// ---- reading ----

// A hostile name may be as long as the header, and hold anything.
std::string shown(const std::string& name) {
  constexpr std::size_t limit = 100;
  const std::string text = nlohmann::json(name).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= limit ? text : text.substr(0, limit) + "...\"";
}

struct Entry {
  std::string name;
  const Dtype* dtype = nullptr;
  std::vector<std::int64_t> shape;
  std::vector<std::uint64_t> offsets;
};

// Takes the header's JSON event by event: no tree is built, so nesting and repetition cost nothing, and only
// what the format allows gets through. The member functions are those that nlohmann's parser calls.
class HeaderReader {
 public:
  [[nodiscard]] std::vector<Entry>& entries() { return entries_; }
  [[nodiscard]] std::map<std::string, std::string>& metadata() { return metadata_; }

  bool null() { unexpected("null"); }
  bool boolean(bool) { unexpected("true or false"); }
  bool number_integer(std::int64_t) { unexpected("a negative number"); }
  bool number_float(double, const std::string&) { unexpected("a number that is not a whole one below 2^64"); }
  bool binary(nlohmann::json::binary_t&) { unexpected("binary data"); }

  bool start_object(std::size_t) {
    if (place_ == Place::document) {
      place_ = Place::root;
    } else if (place_ == Place::root) {
      place_ = key_ == metadata_name ? Place::metadata : Place::entry;
      if (place_ == Place::entry) entries_.push_back({key_, nullptr, {}, {}});
      // A set that has grown, in __metadata__ say, would take its size in time to clear for each tensor.
      members_ = {};
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& key) {
    auto& seen = place_ == Place::root ? names_ : members_;
    if (!seen.insert(key).second) throw FileDamage("the name " + shown(key) + " appears twice in the header");
    if (place_ == Place::entry && key != "dtype" && key != "shape" && key != "data_offsets") {
      throw FileDamage(where() + " has an unknown member " + shown(key));
    }
    key_ = key;
    return true;
  }

  bool string(std::string& text) {
    if (place_ == Place::metadata) {
      metadata_.emplace(key_, std::move(text));
    } else if (place_ == Place::entry && key_ == "dtype") {
      const auto found =
          std::find_if(dtypes.begin(), dtypes.end(), [&](const Dtype& dtype) { return dtype.name == text; });
      if (found == dtypes.end()) throw FileDamage(where() + " has the unknown dtype " + shown(text));
      entries_.back().dtype = &*found;
    } else {
      unexpected("a text");
    }
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ != Place::entry || key_ == "dtype") unexpected("an array");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }

  bool number_unsigned(std::uint64_t number) {
    if (place_ == Place::shape) {
      auto& shape = entries_.back().shape;
      if (shape.size() == max_dimensions) throw FileDamage(where() + " has more than 64 dimensions");
      if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        throw FileDamage(where() + " has a dimension beyond 2^63");
      }
      shape.push_back(static_cast<std::int64_t>(number));
    } else if (place_ == Place::offsets) {
      auto& offsets = entries_.back().offsets;
      if (offsets.size() == 2) throw FileDamage(where() + " has more than two data_offsets");
      offsets.push_back(number);
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool end_array() {
    place_ = Place::entry;
    return true;
  }

  bool end_object() {
    if (place_ == Place::entry) {
      if (members_.size() != 3) throw FileDamage(where() + " lacks dtype, shape or data_offsets");
      if (entries_.back().offsets.size() != 2) throw FileDamage(where() + " lacks one of two data_offsets");
    }
    place_ = place_ == Place::root ? Place::end : Place::root;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    throw FileDamage("the header is no valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class Place { document, root, metadata, entry, shape, offsets, end };

  [[nodiscard]] std::string where() const {
    return entries_.empty() ? "the header" : "tensor " + shown(entries_.back().name);
  }

  [[noreturn]] void unexpected(const char* found) const {
    throw FileDamage("the header has " + std::string(found) + " where the format allows none, at " +
                     (place_ == Place::document ? "its begin" : "or after " + shown(key_)));
  }

  Place place_ = Place::document;
  std::string key_;
  std::unordered_set<std::string> names_, members_;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

HeaderReader read_header(const std::string& text) {
  // nlohmann's parser skips a byte order mark and takes a zero byte for the end.
  if (text.empty() || text.front() != '{') throw FileDamage("the header does not begin with {");
  if (text.find('\0') != std::string::npos) throw FileDamage("the header holds a zero byte");
  HeaderReader reader;
  nlohmann::json::sax_parse(text, &reader);
  return reader;
}

// Checks that the tensors cover exactly the bytes after the header, each as many as its shape and type ask
// for. Sizes are compared with the file's before anything is allocated.
void check_layout(std::vector<Entry>& entries, std::uint64_t data_size) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& left, const Entry& right) { return left.offsets < right.offsets; });
  std::uint64_t covered = 0;
  for (const Entry& entry : entries) {
    const auto tensor = [&entry] { return "tensor " + shown(entry.name); };
    const std::uint64_t begin = entry.offsets[0], end = entry.offsets[1];
    if (begin < covered) throw FileDamage(tensor() + " overlaps the one before it");
    if (begin > covered) throw FileDamage("there is a gap before " + tensor());
    if (end < begin) throw FileDamage(tensor() + " ends before it begins");
    if (end > data_size) throw FileDamage(tensor() + " ends beyond the file's end");
    std::uint64_t bytes = entry.dtype->size;
    bool empty = false;
    for (const std::int64_t size : entry.shape) {
      empty |= size == 0;
      // Strides are products of the other dimensions, so that these must fit also where one is zero.
      if (size != 0 && __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
        throw FileDamage(tensor() + " has a shape that no memory can hold");
      }
    }
    if (bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      throw FileDamage(tensor() + " has a shape that no memory can hold");
    }
    if (end - begin != (empty ? 0 : bytes)) {
      throw FileDamage(tensor() + " has data_offsets that do not fit its shape and dtype");
    }
    covered = end;
  }
  if (covered != data_size) throw FileDamage("there are bytes after the last tensor");
}

struct Layout {
  std::vector<Entry> entries;  ///< in the order in which the tensors lie in the file
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;
  std::uint32_t head_crc32c = 0;  ///< of all before data_begin
};

/// `read(data, size, offset)` takes bytes from the file, of which there are `size`.
template <class Read>
Layout read_layout(std::uint64_t size, Read read) {
  if (size < length_size) throw FileDamage("it has fewer than 8 bytes");
  std::uint64_t header_length = 0;
  read(&header_length, length_size, 0);
  if (header_length > max_header_length) throw FileDamage("its header length is beyond 100 MB");
  if (header_length > size - length_size) throw FileDamage("its header is longer than the file");
  std::string text(header_length, '\0');
  read(text.data(), text.size(), length_size);

  HeaderReader header = read_header(text);
  const std::uint64_t data_begin = length_size + header_length;
  check_layout(header.entries(), size - data_begin);
  return {std::move(header.entries()), std::move(header.metadata()), data_begin,
          crc32c(text.data(), text.size(), crc32c(&header_length, length_size))};
}

Layout read_layout(const InputFile& file, const FileDigest* expected) {
  if (expected && file.size() != expected->size) {
    throw FileDamage("it has " + std::to_string(file.size()) + " bytes instead of " + std::to_string(expected->size));
  }
  auto layout = read_layout(file.size(), [&](void* data, std::size_t size, std::uint64_t offset) {
    file.read(data, size, offset);
  });
  if (expected && !expected->tensors.empty() && expected->tensors.size() != layout.entries.size()) {
    throw FileDamage("it has " + std::to_string(layout.entries.size()) + " tensors, of which " +
                     std::to_string(expected->tensors.size()) + " were noted when it was written");
  }
  return layout;
}

/// Reads the tensors piece by piece, so that what is checked is still in the processor's cache. `destination(entry)` is
/// where the bytes of a tensor go; null: they are only checked.
template <class Destination>
void read_tensors(const InputFile& file, const Layout& layout, const FileDigest* expected, Destination destination) {
  constexpr std::uint64_t piece_size = std::uint64_t{1} << 20;
  std::vector<unsigned char> scratch;
  std::uint32_t crc = layout.head_crc32c;
  for (std::size_t i = 0; i < layout.entries.size(); ++i) {
    const Entry& entry = layout.entries[i];
    unsigned char* const given = destination(entry);
    const std::uint64_t size = entry.offsets[1] - entry.offsets[0];
    const std::uint32_t before = crc;
    for (std::uint64_t done = 0; done < size; done += piece_size) {
      const std::uint64_t count = std::min(piece_size, size - done);
      if (!given) scratch.resize(std::max<std::size_t>(scratch.size(), count));
      unsigned char* const piece = given ? given + done : scratch.data();
      file.read(piece, count, layout.data_begin + entry.offsets[0] + done);
      if (expected) crc = crc32c(piece, count, crc);
      // Compiled code may take a bool that is neither for both or none.
      if (entry.dtype->type == at::kBool && std::any_of(piece, piece + count, [](auto byte) { return byte > 1; })) {
        throw FileDamage("tensor " + shown(entry.name) + " of dtype BOOL holds a byte that is neither 0 nor 1");
      }
    }
    if (expected && !expected->tensors.empty() && crc32c_of_last(before, crc, size) != expected->tensors[i]) {
      throw FileDamage("the checksum of tensor " + shown(entry.name) + " differs from the one noted when it was written");
    }
  }
  if (expected && crc != expected->crc32c) {
    const std::string what = expected->tensors.empty() ? "its checksum" : "the checksum of its header";
    throw FileDamage(what + " differs from the one noted when it was written");
  }
}

/// Hands the head of the file to `write(data, size)`, then each tensor.
template <class Write>
void encode(const SafetensorsFile& file, Write write) {
  const std::string header = make_header(file);
  const std::uint64_t length = header.size();
  std::string head(reinterpret_cast<const char*>(&length), length_size);
  head += header;
  write(head.data(), head.size());
  for (const auto& [name, tensor] : file.tensors) {
    const bool plain = tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_neg();
    const at::Tensor values = plain ? tensor : tensor.detach().cpu().resolve_neg().contiguous();
    write(values.const_data_ptr(), values.nbytes());
  }
}

}  // namespace

std::string_view safetensors_dtype(at::ScalarType type) {
  const auto found = std::find_if(dtypes.begin(), dtypes.end(), [&](const Dtype& dtype) { return dtype.type == type; });
  assert(found != dtypes.end());
  return found->name;
}

FileDigest write_safetensors(const std::filesystem::path& path, const SafetensorsFile& file) {
  std::optional<OutputFile> output;
  FileDigest digest;
  encode(file, [&](const void* data, std::size_t size) {
    if (output) {
      const std::uint32_t before = output->crc32c();
      output->write(data, size);
      digest.tensors.push_back(crc32c_of_last(before, output->crc32c(), size));
    } else {
      // A file that cannot be stored is refused before it is made.
      output.emplace(path);
      output->write(data, size);
    }
  });
  output->finish();
  digest.size = output->size();
  digest.crc32c = output->crc32c();
  return digest;
}

std::string safetensors_bytes(const SafetensorsFile& file) {
  std::string bytes;
  encode(file, [&](const void* data, std::size_t size) { bytes.append(static_cast<const char*>(data), size); });
  return bytes;
}

FileDigest digest_of(const std::string& bytes) {
  const auto layout = read_layout(bytes.size(), [&](void* data, std::size_t size, std::uint64_t offset) {
    std::memcpy(data, bytes.data() + offset, size);
  });
  FileDigest digest{bytes.size(), crc32c(bytes.data(), bytes.size())};
  for (const auto& entry : layout.entries) {
    const auto size = entry.offsets[1] - entry.offsets[0];
    digest.tensors.push_back(crc32c(bytes.data() + layout.data_begin + entry.offsets[0], size));
  }
  return digest;
}

void verify_safetensors(const InputFile& file, const FileDigest& expected) {
  const Layout layout = read_layout(file, &expected);
  read_tensors(file, layout, &expected, [](const Entry&) -> unsigned char* { return nullptr; });
}

SafetensorsFile parse_safetensors(const InputFile& file, const FileDigest* expected) {
  Layout layout = read_layout(file, expected);
  SafetensorsFile result{{}, std::move(layout.metadata)};
  read_tensors(file, layout, expected, [&](const Entry& entry) {
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype->type));
    result.tensors.emplace_back(entry.name, tensor);
    return static_cast<unsigned char*>(tensor.mutable_data_ptr());
  });
  return result;
}

SafetensorsFile read_safetensors(const std::filesystem::path& path, const FileDigest* expected) {
  const InputFile file(path);
  try {
    return parse_safetensors(file, expected);
  } catch (const FileDamage& damage) {
    throw message::damaged_safetensors(path, damage.what());
  }
}

}  // namespace lockstep
