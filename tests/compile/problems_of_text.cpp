// expect: no matching function for call to 'problems
#include "lockstep/config/train_config.hpp"

int main() { return static_cast<int>(lockstep::problems("epoch").size()); }
