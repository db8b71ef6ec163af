// expect: lockstep: a hook with state() and load_state() needs std::string name() const, under which it is saved
#include "lockstep/loop/hooks.hpp"

struct Nameless {
  void run_begin(lockstep::Run&) {}
  lockstep::NamedTensors state() const { return {}; }
  void load_state(const lockstep::NamedTensors&) {}
};

int main() {
  Nameless hook;
  const lockstep::Hooks hooks{hook};
}
