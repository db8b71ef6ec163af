// expect: lockstep: a collate functor is called as collate(std::vector<Sample>)
#include "lockstep/data/data_loader.hpp"

struct Numbers {
  std::int64_t size() const;
  at::Tensor get(std::int64_t index) const;
};

int main() {
  const auto collate = [](std::vector<lockstep::Example> samples) { return samples.size(); };
  lockstep::DataLoader loader(Numbers{}, {}, collate);
}
