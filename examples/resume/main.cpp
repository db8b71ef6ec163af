// A run that is stopped in the middle and continued ends with the weights of one that never stopped, bit for
// bit: order of the data, dropout, optimizer and averaged weights all go on where they were.
//
// Prints:
//   without a stop
//     60 microbatches here; update 32, epoch 4; finished
//     weights 18ef544c62ca6613  averaged e9e2991ed56cd2b8
//   stopped
//     21 microbatches here; update 11, epoch 1; enough for today
//     weights 999ad0052ecf0b74  averaged 579f837eac39cd16
//   the same program again
//     39 microbatches here; update 32, epoch 4; finished
//     weights 18ef544c62ca6613  averaged e9e2991ed56cd2b8
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <cstdio>
#include <filesystem>
#include <memory>

namespace ls = lockstep;
namespace nn = torch::nn;

struct Net : nn::Module {
  Net() {
    layers = register_module(
        "layers", nn::Sequential(nn::Linear(8, 32), nn::ReLU(), nn::Dropout(0.2), nn::Linear(32, 3)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  nn::Sequential layers{nullptr};
};

// What one process of the run does. `stop_at`: the microbatch at which somebody asks it to stop; 0: nobody
// does.
void run(const std::filesystem::path& checkpoint_dir, std::int64_t stop_at) {
  ls::Accelerator accelerator({.gradient_accumulation_steps = 2, .seed = 1, .device = torch::kCPU});
  const auto data = torch::randn({300, 8});
  ls::DataLoader loader(ls::TensorDataset(data, data.slice(1, 0, 3).argmax(1)),
                        {.batch_size = 20, .shuffle = true, .seed = 1, .workers = 2});

  ls::StopRequest stop;  // in a program of yours: const auto signals = stop.catch_signals();
  std::int64_t microbatches = 0;
  auto step = [&](Net& net, const ls::Example& batch) -> ls::StepOutput {
    if (++microbatches == stop_at) stop.request("enough for today");
    return {.loss = nn::functional::cross_entropy(net.forward(batch.data), batch.target),
            .num_samples = batch.target.size(0)};
  };

  auto net = std::make_shared<Net>();
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  ls::Trainer trainer(accelerator, net, optimizer, loader, step, {.ema_decay = 0.9});
  const ls::TrainState state = trainer.train(
      {.epochs = 4}, {.checkpoint_dir = checkpoint_dir, .resume_from = ls::latest, .stop = &stop});

  std::printf("  %ld microbatches here; update %ld, epoch %ld; %s\n", microbatches, state.step, state.epoch,
              state.stop_reason.value_or("finished").c_str());
  std::printf("  weights %.16s  averaged %.16s\n", ls::sha256(trainer.weights()).c_str(),
              ls::sha256(trainer.weights(ls::Weights::ema)).c_str());
}

int main() {
  std::filesystem::remove_all("runs/resume");
  std::printf("without a stop\n");
  run("runs/resume/whole", 0);
  std::printf("stopped\n");
  run("runs/resume/interrupted", 21);
  std::printf("the same program again\n");
  run("runs/resume/interrupted", 0);
}
