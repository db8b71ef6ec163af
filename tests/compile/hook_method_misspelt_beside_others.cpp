// expect: override
#include "lockstep/loop/hooks.hpp"

struct Misspelt : lockstep::Hook {
  void after_update(lockstep::Run&, const lockstep::UpdateOutcome&) override {}
  void epoch_ned(lockstep::Run&) override {}
};

int main() {
  Misspelt hook;
  const lockstep::Hooks hooks{hook};
}
