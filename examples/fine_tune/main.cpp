// Fine-tuning: the body of a network that tells four rings apart comes from a file that Python wrote, and
// stays frozen; a new head learns from 24 points what is near the centre.
//
//     fine_tune pretrained.safetensors        (made by make_pretrained.py)
//
// Prints:
//   from random weights: test accuracy 0.778
//   loaded: body.0.weight body.0.bias body.2.weight body.2.bias
//   left over in the file: classifier.bias classifier.weight
//   from the file, body frozen: test accuracy 0.950
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace ls = lockstep;
namespace nn = torch::nn;

struct Net : nn::Module {
  Net() {
    body = register_module("body",
                           nn::Sequential(nn::Linear(2, 32), nn::Tanh(), nn::Linear(32, 16), nn::Tanh()));
    head = register_module("head", nn::Linear(16, 2));
  }
  torch::Tensor forward(const torch::Tensor& points) { return head->forward(body->forward(points)); }
  nn::Sequential body{nullptr};
  nn::Linear head{nullptr};
};

// Is a point nearer to the centre than 0.6? No border of the rings is there.
ls::TensorDataset random_points(std::int64_t count) {
  const auto points = torch::rand({count, 2}) * 2 - 1;
  return ls::TensorDataset(points, points.norm(2, 1).lt(0.6).to(torch::kLong));
}

void print(const char* title, const std::vector<std::string>& names) {
  std::printf("%s:", title);
  for (const auto& name : names) std::printf(" %s", name.c_str());
  std::printf("\n");
}

using Loader = ls::DataLoader<ls::TensorDataset>;

// Trains what is not frozen; gives the accuracy on the test set.
double train(const std::shared_ptr<Net>& net, ls::Accelerator& accelerator, Loader& train_loader,
             Loader& test_loader) {
  auto step = [](Net& net, const ls::Example& batch) -> ls::StepOutput {
    const auto logits = net.forward(batch.data);
    const auto correct = logits.argmax(1).eq(batch.target).sum();
    return {.loss = nn::functional::cross_entropy(logits, batch.target),
            .num_samples = batch.target.size(0),
            .metrics = {{"accuracy", ls::MeanMetric(correct, batch.target.size(0))}}};
  };
  ls::AdamW optimizer(ls::weight_decay_groups(*net, 0.01), {.lr = 0.01});  // no frozen ones
  ls::Evaluator evaluator(accelerator, {{"test", test_loader}}, step);
  ls::Trainer trainer(accelerator, net, optimizer, train_loader, step, {.evaluator = &evaluator});
  trainer.train({.epochs = 50, .evaluate_every = {}, .checkpoint_every = {}});
  return trainer.evaluate().at("test").at("accuracy");
}

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s pretrained.safetensors\n", argv[0]), 2;

  ls::Accelerator accelerator({.seed = 6, .device = torch::kCPU});
  Loader train_loader(random_points(24), {.batch_size = 8, .shuffle = true, .seed = 6});
  Loader test_loader(random_points(2000), {.batch_size = 500});

  const double from_scratch = train(std::make_shared<Net>(), accelerator, train_loader, test_loader);
  std::printf("from random weights: test accuracy %.3f\n", from_scratch);

  auto net = std::make_shared<Net>();
  const ls::LoadedWeights loaded = ls::load_weights(
      *net, argv[1], {.strict = false, .rename = {{"backbone.", "body."}}, .skip = {"head."}});
  print("loaded", loaded.loaded);
  print("left over in the file", loaded.left_over);
  for (auto& parameter : net->body->parameters()) parameter.requires_grad_(false);
  const double fine_tuned = train(net, accelerator, train_loader, test_loader);
  std::printf("from the file, body frozen: test accuracy %.3f\n", fine_tuned);
}
