// expect: lockstep: this data set makes its own batches in get_batch, so a collate functor would be ignored
#include "lockstep/data/data_loader.hpp"

int main() {
  const auto collate = [](std::vector<lockstep::Example> samples) { return samples.size(); };
  lockstep::DataLoader loader(lockstep::TensorDataset(at::Tensor()), {}, collate);
}
