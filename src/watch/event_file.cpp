#include "watch/event_file.hpp"

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>

#include "base/crc32c.hpp"

namespace lockstep {
namespace {

constexpr std::size_t length_size = 8;
constexpr std::size_t crc_size = 4;
constexpr std::size_t header_size = length_size + crc_size;

/// The numbers of the messages' fields.
namespace field {
constexpr int event_wall_time = 1;
constexpr int event_step = 2;
constexpr int event_file_version = 3;
constexpr int event_summary = 5;
constexpr int summary_value = 1;
constexpr int value_tag = 1;
constexpr int value_simple_value = 2;
constexpr int value_histogram = 5;
constexpr int value_tensor = 8;
constexpr int value_metadata = 9;
constexpr int histogram_min = 1;
constexpr int histogram_max = 2;
constexpr int histogram_num = 3;
constexpr int histogram_sum = 4;
constexpr int histogram_sum_squares = 5;
constexpr int histogram_bucket_limit = 6;
constexpr int histogram_bucket = 7;
constexpr int metadata_plugin_data = 1;
constexpr int plugin_data_name = 1;
constexpr int tensor_dtype = 1;
constexpr int tensor_shape = 2;
constexpr int tensor_string = 8;
constexpr int shape_dim = 2;
constexpr int dim_size = 1;
}  // namespace field

constexpr std::uint64_t dtype_string = 7;

enum class WireType : std::uint64_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

template <std::unsigned_integral Number>
void append_little_endian(std::string& bytes, Number number) {
  for (std::size_t i = 0; i < sizeof number; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xff);
}

template <std::unsigned_integral Number>
Number little_endian(std::string_view bytes) {
  Number number = 0;
  for (std::size_t i = 0; i < sizeof number; ++i)
    number |= static_cast<Number>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return number;
}

/// A protobuf message that is being written.
class Message {
 public:
  Message& number(int field, std::uint64_t value) {
    key(field, WireType::varint);
    varint(value);
    return *this;
  }
  Message& number(int field, double value) {
    key(field, WireType::fixed64);
    append_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& number(int field, float value) {
    key(field, WireType::fixed32);
    append_little_endian(bytes_, std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  Message& text(int field, std::string_view value) {
    key(field, WireType::bytes);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }
  Message& numbers(int field, const std::vector<double>& values) {
    std::string packed;
    for (const double value : values) append_little_endian(packed, std::bit_cast<std::uint64_t>(value));
    return text(field, packed);
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, WireType type) {
    varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(type));
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7f) | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

/// Goes over the fields of a message.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : bytes_(bytes) {}

  /// Moves to the next field; false at the end, or where the message breaks the format.
  bool next() {
    const auto key = varint();
    if (!key) return false;
    field_ = static_cast<int>(*key >> 3);
    switch (static_cast<WireType>(*key & 7)) {
      case WireType::varint: {
        const auto value = varint();
        number_ = value.value_or(0);
        return value.has_value();
      }
      case WireType::fixed64: return take(8);
      case WireType::bytes: {
        const auto size = varint();
        return size && take(*size);
      }
      case WireType::fixed32: return take(4);
    }
    return false;
  }
  [[nodiscard]] int field() const { return field_; }
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] std::string_view text() const { return text_; }

 private:
  std::optional<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    return {};
  }
  bool take(std::uint64_t size) {
    if (size > bytes_.size()) return false;
    text_ = bytes_.substr(0, static_cast<std::size_t>(size));
    bytes_.remove_prefix(static_cast<std::size_t>(size));
    return true;
  }

  std::string_view bytes_;
  int field_ = 0;
  std::uint64_t number_ = 0;
  std::string_view text_;
};

/// A CRC of data that holds CRCs itself says little, so those in records are changed.
std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes.data(), bytes.size()), 15) + 0xa282ead8U;
}

std::string as_record(const Message& event) {
  std::string record;
  append_little_endian(record, static_cast<std::uint64_t>(event.bytes().size()));
  append_little_endian(record, masked_crc32c(record));
  record += event.bytes();
  append_little_endian(record, masked_crc32c(event.bytes()));
  return record;
}

std::string summary_record(double time, std::int64_t step, const Message& summary) {
  Message event;
  event.number(field::event_wall_time, time);
  if (step != 0) event.number(field::event_step, static_cast<std::uint64_t>(step));
  return as_record(event.message(field::event_summary, summary));
}

Message to_message(const Histogram& histogram) {
  // Empty buckets at the ends say nothing, but the first bucket's lower end is the limit before it.
  const auto& counts = histogram.counts;
  std::size_t first = 0;
  std::size_t last = std::min(counts.size(), histogram.bucket_limits.size());
  while (last > 0 && counts[last - 1] == 0) --last;
  while (first + 1 < last && counts[first + 1] == 0 && counts[first] == 0) ++first;
  const auto part = [&](const std::vector<double>& all) {
    return std::vector<double>(all.begin() + static_cast<std::ptrdiff_t>(first),
                               all.begin() + static_cast<std::ptrdiff_t>(last));
  };
  Message message;
  message.number(field::histogram_min, histogram.min)
      .number(field::histogram_max, histogram.max)
      .number(field::histogram_num, histogram.num)
      .number(field::histogram_sum, histogram.sum)
      .number(field::histogram_sum_squares, histogram.sum_squares);
  return message.numbers(field::histogram_bucket_limit, part(histogram.bucket_limits))
      .numbers(field::histogram_bucket, part(counts));
}

}  // namespace

std::string version_record(double time) {
  Message event;
  event.number(field::event_wall_time, time).text(field::event_file_version, "brain.Event:2");
  return as_record(event);
}

std::string event_record(const LogEvent& event) {
  Message summary;
  for (const auto& [tag, value] : event.values) {
    Message entry;
    entry.text(field::value_tag, tag).number(field::value_simple_value, static_cast<float>(value));
    summary.message(field::summary_value, entry);
  }
  for (const Histogram& histogram : event.histograms) {
    Message entry;
    entry.text(field::value_tag, histogram.name).message(field::value_histogram, to_message(histogram));
    summary.message(field::summary_value, entry);
  }
  return summary_record(event.time, event.step, summary);
}

std::string text_record(double time, std::int64_t step, const std::string& tag, const std::string& text) {
  // The viewer takes texts for Markdown, in which an indented block is shown as it is.
  std::string block = "    ";
  for (const char character : text) {
    block += character;
    if (character == '\n') block += "    ";
  }
  Message dim;
  Message shape;
  shape.message(field::shape_dim, dim.number(field::dim_size, std::uint64_t{1}));
  Message tensor;
  tensor.number(field::tensor_dtype, dtype_string)
      .message(field::tensor_shape, shape)
      .text(field::tensor_string, block);
  Message plugin;
  Message metadata;
  metadata.message(field::metadata_plugin_data, plugin.text(field::plugin_data_name, "text"));
  Message value;
  value.text(field::value_tag, tag)
      .message(field::value_metadata, metadata)
      .message(field::value_tensor, tensor);
  Message summary;
  return summary_record(time, step, summary.message(field::summary_value, value));
}

std::optional<EventRecord> read_record(std::string_view bytes) {
  if (bytes.size() < header_size + crc_size) return {};
  const auto length = little_endian<std::uint64_t>(bytes);
  const auto length_crc = little_endian<std::uint32_t>(bytes.substr(length_size));
  if (masked_crc32c(bytes.substr(0, length_size)) != length_crc) return {};
  if (length > bytes.size() - header_size - crc_size) return {};
  const auto size = static_cast<std::size_t>(length);
  const std::string_view payload = bytes.substr(header_size, size);
  if (masked_crc32c(payload) != little_endian<std::uint32_t>(bytes.substr(header_size + size))) return {};

  EventRecord record{.bytes = bytes.substr(0, header_size + size + crc_size)};
  for (MessageReader event(payload); event.next();) {
    if (event.field() == field::event_step) record.step = static_cast<std::int64_t>(event.number());
    if (event.field() != field::event_summary) continue;
    for (MessageReader summary(event.text()); summary.next();) {
      if (summary.field() != field::summary_value) continue;
      for (MessageReader value(summary.text()); value.next();) {
        if (value.field() == field::value_tag) record.tags.emplace_back(value.text());
      }
    }
  }
  return record;
}

}  // namespace lockstep
