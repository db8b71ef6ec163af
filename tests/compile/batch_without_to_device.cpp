// expect: lockstep: this batch type cannot be moved to a device
#include "lockstep/data/batch.hpp"

struct Sentence {
  at::Tensor tokens, weights;
};

int main() { (void)lockstep::place(std::vector<Sentence>(), lockstep::Placement()); }
