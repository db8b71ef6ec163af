// expect: lockstep: a hook's after_update must be a method that can be called as after_update(Run&, const UpdateOutcome&)
#include "lockstep/loop/hooks.hpp"

struct Wrong {
  void after_update(lockstep::Run&, int) {}
};

int main() {
  Wrong hook;
  const lockstep::Hooks hooks{hook};
}
