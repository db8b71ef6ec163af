// expect: lockstep: an optimizer_step is called as optimizer_step(torch::optim::Optimizer&, const lockstep::LossClosure&)
#include "support/program_parts.hpp"

int main() {
  const auto step = [](torch::optim::LBFGS& optimizer, const lockstep::LossClosure& closure) { optimizer.step(closure); };
  const lockstep::OptimizerStep optimizer_step(step);
}
