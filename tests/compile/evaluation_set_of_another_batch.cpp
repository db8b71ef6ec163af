// expect: lockstep: this evaluation set yields another batch type than the Step takes
#include "lockstep/data/batch_source.hpp"

int main() {
  std::vector<at::Tensor> batches;
  std::map<std::string, lockstep::BatchSource<lockstep::Example>> sets{{"validation", batches}};
}
