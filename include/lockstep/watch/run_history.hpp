// What a run logged, read back from its metrics.jsonl.
#pragma once

#include <filesystem>
#include <vector>

#include "lockstep/watch/sink.hpp"

namespace lockstep {

/// The events of the run's latest history, in order, as if it had never been interrupted.
///
/// A process that is killed after a checkpoint has logged updates that the next one makes again. So a
/// `resume` event supersedes what came before it with more updates or samples than its own, and a `start`
/// event all that came before it. Lines that are no events, torn ones say, are passed over. Histograms are
/// not in the file. Errors: FileError `cannot-read-file`.
[[nodiscard]] std::vector<LogEvent> read_run_history(const std::filesystem::path& metrics);

/// Writes the history as a table for spreadsheets and data frames: one row for each step that has values,
/// with columns `step`, `epoch`, `samples`, `time`, and one for each value in the order in which they first
/// appear. An existing file is replaced. What was not logged at a step is empty there; not-finite numbers are
/// `nan`, `inf` and `-inf`. Errors: FileError `cannot-read-file`, `cannot-write-file`.
void export_csv(const std::filesystem::path& metrics, const std::filesystem::path& csv);

}  // namespace lockstep
