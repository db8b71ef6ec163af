// expect: lockstep: a data set has size() and one of get(index)
#include "lockstep/data/data_loader.hpp"

struct Stream {
  std::int64_t size() const;
  lockstep::Example next();
};

int main() { lockstep::DataLoader loader(Stream{}, {.batch_size = 2}); }
