#include "loop/torch_build.hpp"

#include "support/catch.hpp"

using namespace lockstep;
using Lines = std::vector<std::string>;

CATCH_TEST_CASE("compiler, libraries, kind of build and commit are told, and nothing of the machine or of paths") {
  CATCH_CHECK(torch_build("PyTorch built with:\n"
                          "  - GCC 13.3\n"
                          "  - Some BLAS Version 3\n"
                          "  - CPU capability usage: AVX2\n"
                          "  - Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release, COMMIT_SHA=0123abc, "
                          "CXX_COMPILER=/opt/c++, CXX_FLAGS= -O2 -fPIC, USE_MKL=ON, \n") ==
              Lines{"GCC 13.3", "Some BLAS Version 3", "BLAS_INFO=mkl", "BUILD_TYPE=Release", "COMMIT_SHA=0123abc"});
}

CATCH_TEST_CASE("the LibTorch at hand tells its build") {
  CATCH_CHECK(torch_build().size() >= 3);
  CATCH_CHECK(torch_build() == torch_build());
}
