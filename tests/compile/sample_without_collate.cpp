// expect: lockstep: this sample type cannot be collated
#include "lockstep/data/data_loader.hpp"

struct Sentence {
  at::Tensor tokens, weights;
};
struct Sentences {
  std::int64_t size() const;
  Sentence get(std::int64_t index) const;
};

int main() {
  lockstep::DataLoader loader(Sentences{});
  for (auto& batch : loader) (void)batch;
}
