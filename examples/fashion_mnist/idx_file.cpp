#include "idx_file.hpp"

#include <ATen/ops/empty.h>
#include <zlib.h>
#include <lockstep/base/error.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace {

lockstep::DataError cannot_read_idx(const std::filesystem::path& path, const std::string& problem) {
  return {"cannot-read-idx",
          path.string() + " " + problem +
              ". Install Debian's package dataset-fashion-mnist or download Fashion-MNIST's four "
              "files, and name their folder with --data-dir."};
}

/// A stream of decompressed bytes; zlib passes what is not gzip through as it is.
class GzipFile {
 public:
  explicit GzipFile(const std::filesystem::path& path)
      : path_(path), file_(gzopen(path.c_str(), "rb"), gzclose) {
    if (!file_) throw cannot_read_idx(path_, "cannot be opened: " + std::generic_category().message(errno));
  }

  /// Reads `size` bytes, or fewer at the end of the file.
  std::size_t read(std::uint8_t* bytes, std::size_t size) {
    constexpr std::size_t most_at_once = 1 << 30;
    std::size_t done = 0;
    while (done < size) {
      const int count =
          gzread(file_.get(), bytes + done, static_cast<unsigned>(std::min(size - done, most_at_once)));
      int status = Z_OK;
      const char* const text = gzerror(file_.get(), &status);
      if (status == Z_ERRNO)
        throw cannot_read_idx(path_, "cannot be read: " + std::generic_category().message(errno));
      // A cut-off file still yields its last bytes, with the error beside them.
      if (status != Z_OK) throw cannot_read_idx(path_, std::string("is damaged: ") + text);
      if (count == 0) break;
      done += static_cast<std::size_t>(count);
    }
    return done;
  }

 private:
  std::filesystem::path path_;
  std::unique_ptr<gzFile_s, decltype(&gzclose)> file_;
};

std::string to_text(at::IntArrayRef shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

}  // namespace

at::Tensor read_idx(const std::filesystem::path& path, at::IntArrayRef shape) {
  constexpr std::uint8_t unsigned_bytes = 0x08;
  GzipFile file(path);

  std::array<std::uint8_t, 4> magic = {};
  if (file.read(magic.data(), magic.size()) < magic.size() || magic[0] != 0 || magic[1] != 0) {
    throw cannot_read_idx(path, "is not an IDX file: it does not begin with an IDX magic number");
  }
  if (magic[2] != unsigned_bytes) {
    throw cannot_read_idx(
        path, "holds elements of IDX type " + std::to_string(magic[2]) + ", not unsigned bytes (8)");
  }

  std::vector<std::int64_t> found;
  for (int i = 0; i < magic[3]; ++i) {
    std::array<std::uint8_t, 4> size = {};
    if (file.read(size.data(), size.size()) < size.size())
      throw cannot_read_idx(path, "ends inside its header");
    found.push_back(std::int64_t{size[0]} << 24 | size[1] << 16 | size[2] << 8 | size[3]);
  }
  if (shape != found) {
    throw cannot_read_idx(path, "has the shape " + to_text(found) + ", not " + to_text(shape));
  }

  at::Tensor values = at::empty(shape, at::kByte);
  const auto expected = static_cast<std::size_t>(values.numel());
  const std::size_t count = file.read(values.mutable_data_ptr<std::uint8_t>(), expected);
  if (count < expected) {
    throw cannot_read_idx(
        path, "ends after " + std::to_string(count) + " of " + std::to_string(expected) + " elements");
  }
  // Also makes zlib compare the checksum at the end.
  std::uint8_t trailing = 0;
  if (file.read(&trailing, 1) > 0) throw cannot_read_idx(path, "goes on after its last element");
  return values;
}
