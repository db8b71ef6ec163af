#include "lockstep/hooks/epoch_printer.hpp"

#include "watch/number_text.hpp"

namespace lockstep {

void EpochPrinter::run_begin(Run& run) { printed_ = run.state().epoch; }

void EpochPrinter::print(Run& run) {
  if (run.history().empty() || run.history().back().epoch <= printed_) return;
  const EpochRecord& record = run.history().back();
  printed_ = record.epoch;
  std::string line = "epoch " + std::to_string(record.epoch) + "  step " + std::to_string(record.step);
  for (const auto& [name, value] : record.values) line += "  " + name + " " + number_text(value);
  run.info(line);
}

}  // namespace lockstep
