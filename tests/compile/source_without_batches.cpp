// expect: lockstep: batches are read from a DataLoader or a range with begin() and end()
#include "lockstep/data/batch_source.hpp"

int main() {
  lockstep::TensorDataset dataset{at::Tensor()};
  lockstep::BatchStream stream(dataset, 0, 0);
}
