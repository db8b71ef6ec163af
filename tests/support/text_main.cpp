// The main program of the tests that are built without Torch.
#define CATCH_CONFIG_MAIN
#include "support/catch.hpp"
