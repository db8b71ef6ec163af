#include "base/run_messages.hpp"

namespace lockstep::message {

std::string problem_schedule_factory() {
  return "set_scheduler() was given an empty function; give it one that returns a schedule, or a schedule.";
}

std::string warning_nothing_kept() {
  return "nothing of this run is kept: it has neither a checkpoint_dir nor a logger. Give "
         "TrainOptions::checkpoint_dir and "
         "TrainerOptions::logger; if this is as it should be, TrainConfig::checkpoint_every = {} says so.";
}

std::string warning_no_checkpoints() {
  return "no checkpoints are written, so that this run cannot be resumed. Give TrainOptions::checkpoint_dir; "
         "if this is as it "
         "should be, TrainConfig::checkpoint_every = {} says so.";
}

}  // namespace lockstep::message
