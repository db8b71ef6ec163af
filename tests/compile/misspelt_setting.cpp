// expect: no member named 'max_step'
#include "lockstep/config/train_config.hpp"

int main() {
  lockstep::TrainConfig config;
  config.max_step = 100;
}
