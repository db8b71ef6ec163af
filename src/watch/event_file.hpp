// The bytes of TensorBoard's event files: records of Event messages in protobuf's wire format.
//
// A record is the payload's length (8 bytes, little-endian), the masked CRC-32C of these 8 bytes, the
// payload, the masked CRC-32C of the payload. Sources: TensorFlow's record_writer.h, event.proto and
// summary.proto.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/watch/sink.hpp"

namespace lockstep {

/// The record that an event file begins with.
std::string version_record(double time);

/// The event's values and histograms under the event's time and step.
std::string event_record(const LogEvent& event);

/// A text that is shown as it is, spaces and line ends included.
std::string text_record(double time, std::int64_t step, const std::string& tag, const std::string& text);

/// What was read of a record.
struct EventRecord {
  std::int64_t step = 0;
  std::vector<std::string> tags = {};  ///< none: not a summary
  std::string_view bytes = {};         ///< the record as it stands in the file
};

/// The record at the beginning of `bytes`; nothing where they are torn or damaged.
std::optional<EventRecord> read_record(std::string_view bytes);

}  // namespace lockstep
