// expect: lockstep: this hook has no method of a hook point's name: check the spelling in docs/hooks.md
#include "lockstep/loop/hooks.hpp"

struct Misspelt {
  void after_updaet(lockstep::Run&, const lockstep::UpdateOutcome&) {}
};

int main() {
  Misspelt hook;
  const lockstep::Hooks hooks{hook};
}
