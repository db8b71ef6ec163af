// expect: lockstep: what predicts is called as predict(module&, const Batch&)
#include "support/program_parts.hpp"

int main() {
  (void)lockstep::predict(accelerator, *model, loader,
                          [](NetImpl& net, const at::Tensor& batch) -> at::Tensor { return net.forward(batch); });
}
