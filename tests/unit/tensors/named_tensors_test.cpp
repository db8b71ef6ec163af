#include "lockstep/tensors/named_tensors.hpp"

#include <torch/torch.h>

#include "support/catch.hpp"

using lockstep::sha256;

CATCH_TEST_CASE("The digest of named tensors is that of their lengths, names, types, shapes and values") {
  // In Python: hashlib.sha256(struct.pack("<q1sq5sqqff", 1, b"w", 5, b"Float", 1, 2, 1, -2))
  CATCH_CHECK(sha256({{"w", torch::tensor({1.0f, -2.0f})}}) ==
              "1b2b8b2ba8a3388e6b52655a61254416a0f3e8310cea7e2028b0935da154faf8");
}

CATCH_TEST_CASE("The digest of named tensors tells names, order, types, shapes and single bits apart") {
  const auto x = torch::tensor({1.0f, 2.0f}), y = torch::tensor({3.0f, 4.0f});
  const std::string digest = sha256({{"x", x}, {"y", y}});
  CATCH_CHECK(sha256({{"y", y}, {"x", x}}) != digest);
  CATCH_CHECK(sha256({{"x", x}, {"z", y}}) != digest);
  CATCH_CHECK(sha256({{"x", x}, {"y", y.view({2, 1})}}) != digest);
  CATCH_CHECK(sha256({{"x", x}, {"y", y.view(torch::kInt)}}) != digest);
  CATCH_CHECK(sha256({{"x", x}, {"y", torch::nextafter(y, y + 1)}}) != digest);
  CATCH_CHECK(sha256({{"x", torch::tensor({0.0f})}}) != sha256({{"x", torch::tensor({-0.0f})}}));
}

CATCH_TEST_CASE("The digest of named tensors does not depend on strides or gradients") {
  const auto matrix = torch::arange(6, torch::kFloat).view({2, 3});
  CATCH_CHECK(sha256({{"m", matrix.t()}}) == sha256({{"m", matrix.t().contiguous().requires_grad_()}}));
}
