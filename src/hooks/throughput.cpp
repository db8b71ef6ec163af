#include "lockstep/hooks/throughput.hpp"

#include "base/hook_messages.hpp"
#include "lockstep/base/messages.hpp"
#include "watch/number_text.hpp"

namespace lockstep {

Throughput::Throughput(std::int64_t every) : every_(every) {
  if (every < 1)
    throw message::invalid_settings(
        {message::problem_hook_setting("every", std::to_string(every), "1 or more")});
}

void Throughput::run_begin(Run& run) { meter_.start(run.state().step, run.state().samples); }

void Throughput::after_update(Run& run, const UpdateOutcome& outcome) {
  if (outcome.result != UpdateResult::applied || run.state().step % every_ != 0) return;
  std::string line = "step " + std::to_string(run.state().step);
  for (const auto& [name, value] : meter_.take(run.state().step, run.state().samples)) {
    if (name == "steps_per_second") line += "  " + number_text(value) + " updates/s";
    if (name == "samples_per_second") line += "  " + number_text(value) + " samples/s";
    if (name == "memory/resident_bytes") line += "  " + number_text(value / (1 << 20)) + " MiB";
  }
  run.info(line);
}

}  // namespace lockstep
