#include "lockstep/ranks/collectives.hpp"

namespace lockstep {
namespace {

class Done final : public PendingSum {
 public:
  void wait() override {}
};

}  // namespace

std::unique_ptr<PendingSum> SingleProcess::sum(const at::Tensor&) { return std::make_unique<Done>(); }

}  // namespace lockstep
