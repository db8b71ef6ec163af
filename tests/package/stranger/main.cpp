// Uses one function of the part without Torch and, through its header, one type of Torch's.
#include <ATen/ops/ones.h>

#include <iostream>
#include <lockstep/base/version.hpp>
#include <lockstep/config/train_config.hpp>

int main() {
  const bool config_is_checked = !lockstep::problems(lockstep::TrainConfig{.epochs = -1}).empty();
  const bool torch_runs = at::ones({2, 2}).sum().item<double>() == 4.0;
  std::cout << "lockstep " << LOCKSTEP_VERSION << '\n';
  return config_is_checked && torch_runs ? 0 : 1;
}
