// expect: lockstep: a hook's epoch_end must be public, and the only method of this name
#include "lockstep/loop/hooks.hpp"

class Hidden : public lockstep::Hook {
 public:
  void after_update(lockstep::Run&, const lockstep::UpdateOutcome&) override {}

 private:
  void epoch_end(lockstep::Run&) override {}
};

int main() {
  Hidden hook;
  const lockstep::Hooks hooks{hook};
}
