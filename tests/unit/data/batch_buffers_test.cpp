#include "lockstep/data/batch_buffers.hpp"

#include <optional>
#include <thread>

#include "support/catch.hpp"

using lockstep::detail::BatchBuffers;
using lockstep::detail::BufferScope;
using lockstep::detail::empty_batch;

namespace {

BatchBuffers pageable() { return BatchBuffers(/*pin_memory=*/false); }

}  // namespace

CATCH_TEST_CASE("Memory is used again when nobody holds the tensor in it") {
  auto buffers = pageable();
  std::optional first = buffers.empty({4, 8}, at::kFloat).fill_(7);
  const void* const memory = first->const_data_ptr();
  CATCH_CHECK(buffers.empty({4, 8}, at::kFloat).const_data_ptr() != memory);
  first.reset();
  CATCH_CHECK(buffers.empty({32}, at::kFloat).const_data_ptr() == memory);
  CATCH_CHECK(buffers.empty({32}, at::kFloat).equal(torch::full({32}, 7.0)));
  CATCH_CHECK(buffers.empty({2, 8}, at::kLong).const_data_ptr() == memory);
}

CATCH_TEST_CASE("A view, or what autograd saved, keeps the memory of a tensor that is gone") {
  auto buffers = pageable();
  const auto weight = torch::full({4}, 3.0).requires_grad_();
  at::Tensor view, product;
  {
    const auto viewed = buffers.empty({4}, at::kFloat).fill_(1);
    const auto saved = buffers.empty({4}, at::kFloat).fill_(2);
    view = viewed.narrow(0, 1, 2);
    product = weight * saved;
  }
  for (int i = 0; i < 3; ++i) buffers.empty({4}, at::kFloat).fill_(-1);
  CATCH_CHECK(view.equal(torch::ones(2)));
  product.sum().backward();
  CATCH_CHECK(weight.grad().equal(torch::full({4}, 2.0)));
}

CATCH_TEST_CASE("What was done to a tensor does not show in the next one in its memory") {
  auto buffers = pageable();
  const void* memory = nullptr;
  {
    auto tensor = buffers.empty({4, 8}, at::kFloat);
    memory = tensor.const_data_ptr();
    tensor.fill_(1).t_().requires_grad_();
  }
  const auto next = buffers.empty({4, 8}, at::kFloat);
  const auto fresh = torch::empty({4, 8});
  CATCH_CHECK(next.const_data_ptr() == memory);
  CATCH_CHECK(next.is_contiguous());
  CATCH_CHECK(!next.requires_grad());
  CATCH_CHECK(next.key_set() == fresh.key_set());
  CATCH_CHECK(next._version() == fresh._version());
  CATCH_CHECK(next.storage().nbytes() == fresh.storage().nbytes());
}

CATCH_TEST_CASE("Memory comes back from other threads, and tensors outlive their buffers") {
  std::optional<BatchBuffers> buffers(std::in_place, false);
  const void* memory = nullptr;
  std::thread([&, tensor = buffers->empty({100}, at::kFloat)]() mutable {
    memory = tensor.const_data_ptr();
    tensor.reset();
  }).join();
  const auto kept = buffers->empty({100}, at::kFloat).fill_(5);
  CATCH_CHECK(kept.const_data_ptr() == memory);
  buffers.reset();
  CATCH_CHECK(kept.equal(torch::full({100}, 5.0)));
}

CATCH_TEST_CASE("A small tensor leaves the memory of a large one alone") {
  auto buffers = pageable();
  const void* const large = buffers.empty({1000}, at::kFloat).const_data_ptr();
  CATCH_CHECK(buffers.empty({400}, at::kFloat).const_data_ptr() != large);
  CATCH_CHECK(buffers.empty({600}, at::kFloat).const_data_ptr() == large);
}

CATCH_TEST_CASE("A tensor may grow, and be empty") {
  auto buffers = pageable();
  auto tensor = buffers.empty({2}, at::kFloat).fill_(7);
  tensor.resize_({1000});
  CATCH_CHECK(tensor.narrow(0, 0, 2).equal(torch::full({2}, 7.0)));
  CATCH_CHECK(buffers.empty({0, 3}, at::kFloat).sizes() == at::IntArrayRef({0, 3}));
}

CATCH_TEST_CASE("Of nested scopes the innermost one's buffers are used, and none outside") {
  auto outer = pageable();
  auto inner = pageable();
  const void* const in_outer = outer.empty({8}, at::kFloat).const_data_ptr();
  const void* const in_inner = inner.empty({8}, at::kFloat).const_data_ptr();
  const BufferScope outer_scope(outer);
  {
    const BufferScope inner_scope(inner);
    CATCH_CHECK(empty_batch({8}, at::kFloat).const_data_ptr() == in_inner);
  }
  CATCH_CHECK(empty_batch({8}, at::kFloat).const_data_ptr() == in_outer);
}
