#include "lockstep/config/train_config.hpp"

int main() {
  const lockstep::TrainConfig config{.epochs = 10, .max_grad_norm = 1.0, .monitor = lockstep::Monitor("validation/loss")};
  return static_cast<int>(lockstep::problems(config).size());
}
