// Trains a tiny model with all that a checkpoint holds, to be killed.
//
// `crash_program FOLDER LAST_UPDATE HOW` trains in FOLDER, from its latest checkpoint on, to that update,
// and saves in the `background` or the `foreground`; one rank of a run if there are several. Prints `end`
// as below.
//
// Without arguments, for crash_points.py, standard input is a socket. On it come orders, a line each, with
// the same three words; a child process follows each. The child says on the socket, a line each:   ready
// PID       and waits for a byte   update SHA256   before each update, of the weights   end STEP SHA256 of
// raw and averaged weights, when train() returned   error TEXT      when it threw and this process says
// `exit STATUS`, as waitpid() gave it. send() is not among the calls that are made to fail.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "lockstep/lockstep.hpp"

namespace ls = lockstep;

namespace {

constexpr int accumulation = 2;

void say(std::string line) {
  line += '\n';
  if (::send(STDIN_FILENO, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
    ::_exit(1);
}

/// With buffers and random numbers of its own.
struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return second->forward(dropout->forward(torch::relu(norm->forward(first->forward(x)))));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 8));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.3));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 1));
};

ls::TensorDataset points(std::int64_t count) {
  const auto x = torch::linspace(-1, 1, count * 4).sin().view({count, 4});
  return ls::TensorDataset(x, x.square().sum(1, /*keepdim=*/true));
}

/// Six updates an epoch on one rank. Returns the last update, and the hash of raw and averaged weights; on
/// ranks other than the first nothing.
std::string train(const std::string& folder, std::int64_t last_update, const std::string& how,
                  const std::function<void(Net&)>& before_update) {
  ls::Accelerator accelerator({.gradient_accumulation_steps = accumulation, .seed = 7, .device = at::kCPU});
  ls::DataLoader loader(points(6 * accumulation * 5), {.batch_size = 5, .shuffle = true, .seed = 7});
  ls::DataLoader validation_loader(points(7), {.batch_size = 7});
  Net net;
  ls::AdamW optimizer(ls::weight_decay_groups(net, 0.01), {.lr = 0.05});
  const auto loss = [](Net& model, const ls::Example& batch) -> ls::StepOutput {
    return {.loss = torch::mse_loss(model.forward(batch.data), batch.target),
            .num_samples = batch.data.size(0)};
  };
  std::int64_t microbatches = 0;
  const auto step = [&](Net& model, const ls::Example& batch) {
    if (microbatches++ % accumulation == 0) before_update(model);
    return loss(model, batch);
  };
  ls::Evaluator evaluator(accelerator, {{"validation", validation_loader}}, loss);
  ls::Trainer trainer(accelerator, net, optimizer, loader, step, {.evaluator = &evaluator, .ema_decay = 0.5});
  const ls::Interval every_update{1, ls::Interval::Unit::step};
  const auto state = trainer.train({.max_steps = last_update,
                                    .evaluate_every = every_update,
                                    .checkpoint_every = every_update,
                                    .keep_checkpoints = 2,
                                    .background_saves = how == "background",
                                    .monitor = ls::Monitor("validation/loss")},
                                   {.checkpoint_dir = folder, .resume_from = ls::latest});
  if (!accelerator.is_main_process()) return {};
  ls::NamedTensors weights = trainer.weights(ls::Weights::raw);
  for (const auto& [name, tensor] : trainer.weights(ls::Weights::ema))
    weights.emplace_back("ema." + name, tensor);
  return std::to_string(state.step) + " " + ls::sha256(weights);
}

[[noreturn]] void follow(const std::string& order) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::istringstream words(order);
  std::string folder;
  std::int64_t last_update = 0;
  std::string how;
  words >> folder >> last_update >> how;
  say("ready " + std::to_string(::getpid()));
  char go = 0;
  if (::recv(STDIN_FILENO, &go, 1, 0) != 1) ::_exit(1);
  try {
    say("end " + train(folder, last_update, how,
                       [](Net& net) { say("update " + ls::sha256(ls::module_state(net))); }));
    ::_exit(0);
  } catch (const std::exception& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    say("error " + text);
    ::_exit(3);
  }
}

/// Children follow orders until there are no more.
int serve() {
  std::string received;
  char bytes[4096];
  while (true) {
    const auto size = ::recv(STDIN_FILENO, bytes, sizeof bytes, 0);
    if (size <= 0) return 0;
    received.append(bytes, static_cast<std::size_t>(size));
    const auto end = received.find('\n');
    if (end == std::string::npos) continue;
    const auto order = received.substr(0, end);
    received.erase(0, end + 1);
    const pid_t child = ::fork();
    if (child < 0) return 1;
    if (child == 0) follow(order);
    int status = -1;
    ::waitpid(child, &status, 0);
    say("exit " + std::to_string(status));
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc == 1) return serve();
  if (argc != 4) return 2;
  const auto end = train(argv[1], std::stoll(argv[2]), argv[3], [](Net&) {});
  if (!end.empty()) std::cout << "end " << end << std::endl;
}
