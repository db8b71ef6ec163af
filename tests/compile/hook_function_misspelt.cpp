// expect: after_updaet
#include "lockstep/loop/hooks.hpp"

int main() {
  const lockstep::HookFunctions hook{.after_updaet = [](lockstep::Run&, const lockstep::UpdateOutcome&) {}};
}
