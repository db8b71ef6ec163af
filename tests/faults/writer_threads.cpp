// The writer's thread and the flags that signal handlers set, for the thread sanitizer: this program and
// the sources of the library that it names in CMakeLists.txt are compiled with it, LibTorch is not.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>

#include "files/background_writer.hpp"
#include "files/checkpoint_writer.hpp"
#include "lockstep/config/save_request.hpp"
#include "lockstep/config/stop_request.hpp"
#include "support/temporary_directory.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

/// The training thread changes the tensors as soon as start() has returned.
void train_while_saving() {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  BackgroundWriter background(writer);
  at::Tensor weight = at::zeros({1000});
  int busy = 0;
  for (int step = 1; step <= 50; ++step) {
    weight.fill_(step);
    background.start({.checkpoint = {.manifest = {{"run_id", "run"},
                                                  {"save_index", step},
                                                  {"state", {{"step", step}, {"batches", step}}}},
                                     .model = {{"w", weight}},
                                     .rank = {{"generator", at::full({4}, step)}}},
                      .names = {"last"},
                      .keep = 2,
                      .run_id = "run"});
    weight.fill_(-1);
    busy += background.busy();
    require(!background.take_failure(), "a save failed");
  }
  background.wait();
  require(!background.take_failure(), "the last save failed");
  const auto last = read_checkpoint(directory.path() / "last");
  require(last.model.at(0).second.eq(50).all().item<bool>(),
          "the last checkpoint holds what was changed after");
  std::printf("busy after %d of 50 saves began\n", busy);

  std::filesystem::remove_all(directory.path());
  background.start(
      {.checkpoint = {.manifest = {{"run_id", "run"}, {"state", {{"step", 51}, {"batches", 51}}}}}});
  background.wait();
  require(background.take_failure() != nullptr, "a save into a folder that is gone succeeded");
}

/// Signals and other threads ask while the training thread looks.
void ask_from_everywhere() {
  StopRequest stop;
  SaveRequest save;
  const auto stop_signals = stop.catch_signals();
  const auto save_signal = save.catch_signal();
  std::atomic<bool> done = false;
  std::thread asking([&] {
    for (int i = 0; i < 200; ++i) {
      save.request();
      ::kill(::getpid(), SIGUSR2);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    stop.request("asked");
    ::kill(::getpid(), SIGTERM);
    done = true;
  });
  int saves = 0;
  while (!done) saves += save.take();
  asking.join();
  require(saves > 0, "no save was asked for");
  require(stop.reason() == "asked", "the first reason did not stay");
  stop.clear();
  require(!stop.reason(), "a stop was not taken back");
}

}  // namespace

int main() {
  at::set_num_threads(1);
  train_while_saving();
  ask_from_everywhere();
  std::puts("done");
}
