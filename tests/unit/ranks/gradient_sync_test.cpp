#include "ranks/gradient_sync.hpp"

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;

namespace {

/// One of two ranks whose gradients are equal: a sum doubles what is sent. Remembers what was sent.
class Twins final : public Collectives {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int world_size() const override { return 2; }
  [[nodiscard]] bool usable() const override { return true; }
  std::chrono::milliseconds set_timeout(std::chrono::milliseconds timeout) override { return timeout; }
  [[nodiscard]] std::vector<Vote> vote(const Vote& mine) override {
    if (with_vote.defined()) std::exchange(with_vote, {}).mul_(2);
    return {mine, mine};
  }
  void sum_with_vote(const at::Tensor& tensor) override { with_vote = tensor; }
  [[nodiscard]] std::vector<std::string> exchange(const std::string& mine) override { return {mine, mine}; }
  void broadcast(const std::vector<at::Tensor>&) override {}
  [[nodiscard]] std::unique_ptr<PendingSum> sum(const at::Tensor& tensor) override {
    struct Doubled : PendingSum {
      explicit Doubled(at::Tensor given) : tensor(std::move(given)) {}
      void wait() override { tensor.mul_(2); }
      at::Tensor tensor;
    };
    sent.push_back(tensor.numel());
    return std::make_unique<Doubled>(tensor);
  }
  void barrier() override {}
  [[nodiscard]] Collectives& inside_step() override { return *this; }
  void abandon(const std::string&) noexcept override {}

  std::vector<std::int64_t> sent;
  at::Tensor with_vote;
};

/// Parameters of 1, 2, 3 and 4 elements; gradients arrive from the last to the first.
struct Chain {
  explicit Chain(ParameterLayout layout, std::int64_t slice_bytes = 1, bool overlap = true) {
    for (std::int64_t i = 1; i <= 4; ++i) {
      parameters.emplace_back("p" + std::to_string(i), torch::full({i}, 2.0, torch::requires_grad()));
    }
    arena.emplace(std::vector<NamedTensors>{parameters}, layout);
    sync.emplace(*arena, parameters, ranks, slice_bytes, overlap);
    arena->open_window();
  }

  /// p1 + p1 p2 + ...: every parameter is used before those after it.
  void backward(std::size_t used = 4) {
    at::Tensor value = torch::ones({});
    for (std::size_t i = 0; i < used; ++i) value = value * parameters[i].second.sum();
    value.backward();
    arena->after_backward();
  }

  double gradient(std::size_t i) { return parameters[i].second.grad()[0].item<double>(); }

  Twins ranks;
  NamedTensors parameters;
  std::optional<ParameterArena> arena;
  std::optional<GradientSync> sync;
};

using Sizes = std::vector<std::int64_t>;
const std::vector<bool> all(4, true);

}  // namespace

CATCH_TEST_CASE("nothing is sent before the last backward pass, and then each slice as soon as it is whole") {
  Chain chain(ParameterLayout::flat);
  chain.backward();
  CATCH_CHECK(chain.ranks.sent.empty());
  const double once = chain.gradient(0);
  chain.sync->arm();
  Sizes seen;
  chain.parameters[0].second.register_hook([&](const at::Tensor& gradient) {
    seen = chain.ranks.sent;  // the gradient of p1 is not accumulated yet
    return gradient;
  });
  chain.backward();
  chain.sync->disarm();
  CATCH_CHECK(seen == Sizes{4, 3, 2});
  CATCH_CHECK(chain.ranks.sent == Sizes{4, 3, 2, 1});
  chain.sync->send_rest();
  CATCH_CHECK(chain.ranks.sent.size() == 4);
  chain.arena->close_window();
  chain.sync->wait(all);
  CATCH_CHECK(chain.gradient(0) == 2 * 2 * once);
}

CATCH_TEST_CASE("without overlap the same slices are sent in the same order after the pass") {
  Chain chain(ParameterLayout::flat, 1, /*overlap=*/false);
  chain.sync->arm();
  chain.backward();
  chain.sync->disarm();
  CATCH_CHECK(chain.ranks.sent.empty());
  chain.sync->send_rest();
  CATCH_CHECK(chain.ranks.sent == Sizes{4, 3, 2, 1});
  CATCH_CHECK(chain.sync->layout() == Sizes{4, 3, 2, 1});
}

CATCH_TEST_CASE("a parameter that got no gradient keeps its place in the order, and is sent after the pass") {
  Chain chain(ParameterLayout::flat);
  chain.sync->arm();
  chain.backward(/*used=*/3);
  chain.sync->disarm();
  CATCH_CHECK(chain.ranks.sent.empty());  // p4 is the first in the order
  chain.sync->send_rest();
  CATCH_CHECK(chain.ranks.sent == Sizes{4, 3, 2, 1});
  chain.arena->close_window();
  CATCH_CHECK_FALSE(chain.arena->all_touched());
  chain.sync->wait({true, true, true, false});
  CATCH_CHECK_FALSE(chain.arena->members()[3].touched);
}

CATCH_TEST_CASE("a slice is whole parameters of about the size that is asked for") {
  // Parameters begin on 64 bytes, 16 floats; a slice of 128 bytes is full with two of them.
  CATCH_CHECK(Chain(ParameterLayout::flat, 72).sync->layout() == Sizes{16 + 4, 16 + 2});
  CATCH_CHECK(Chain(ParameterLayout::flat, 1 << 20).sync->layout() == Sizes{3 * 16 + 4});
  CATCH_CHECK(Chain(ParameterLayout::separate, 1 << 20).sync->layout() == Sizes{1 + 2 + 3 + 4});
}

CATCH_TEST_CASE("in the separate layout gradients are gathered, summed and put back") {
  Chain chain(ParameterLayout::separate, 1 << 20);
  chain.backward(/*used=*/3);
  const double once = chain.gradient(2);
  chain.arena->close_window();
  chain.sync->send_rest();
  CATCH_CHECK(chain.ranks.sent == Sizes{10});
  // Another rank used p4, which here counts as zero.
  chain.sync->wait(all);
  CATCH_CHECK(chain.gradient(2) == 2 * once);
  CATCH_CHECK(chain.gradient(3) == 0);
  CATCH_CHECK(chain.arena->all_touched());
}

CATCH_TEST_CASE("adding to a gradient that was sent is refused") {
  Chain chain(ParameterLayout::flat);
  chain.sync->arm();
  chain.backward();
  CATCH_CHECK(test::thrown_id<StepError>([&] { chain.backward(); }) == "gradient-after-sync");
  chain.sync->drop();
}

CATCH_TEST_CASE("hooks of the user's own are left in place, and gradients sent after the pass") {
  struct Own : torch::autograd::PostAccumulateGradHook {
    explicit Own(int& calls) : calls(calls) {}
    void operator()(const torch::autograd::Variable&) override { ++calls; }
    int& calls;
  };
  int calls = 0;
  NamedTensors parameters{{"p", torch::ones({2}, torch::requires_grad())}};
  torch::autograd::impl::set_post_acc_grad_hooks(parameters[0].second, std::make_unique<Own>(calls));
  ParameterArena arena({parameters}, ParameterLayout::flat);
  Twins ranks;
  GradientSync sync(arena, parameters, ranks, 1, true);
  arena.open_window();
  sync.arm();
  parameters[0].second.sum().backward();
  sync.disarm();
  CATCH_CHECK(calls == 1);
  CATCH_CHECK(ranks.sent.empty());
  sync.send_rest();
  CATCH_CHECK(ranks.sent.size() == 1);
  sync.drop();
}

CATCH_TEST_CASE("a small gradient is summed with the vote of a window where that was expected, and sent alone where not") {
  Chain chain(ParameterLayout::flat, 1 << 20);
  chain.sync->expect_vote();
  chain.sync->expect_vote();
  chain.sync->arm();
  chain.backward();
  chain.sync->disarm();
  chain.sync->send_rest();
  CATCH_CHECK(chain.ranks.sent.empty());
  const double once = chain.gradient(0);
  chain.arena->close_window();
  (void)chain.ranks.vote({});
  chain.sync->wait(all);
  CATCH_CHECK(chain.gradient(0) == 2 * once);

  chain.arena->open_window();
  chain.backward();
  chain.arena->close_window();
  chain.sync->send_rest();
  chain.sync->wait(all);
  CATCH_CHECK(chain.ranks.sent == Sizes{3 * 16 + 4});
  CATCH_CHECK(chain.gradient(0) == 2 * once);
}

CATCH_TEST_CASE("what is more than one slice, large, or of half precision is not summed with the vote") {
  const auto with_vote = [](std::int64_t elements, at::ScalarType type, std::int64_t slice_bytes) {
    NamedTensors parameters;
    for (const auto* name : {"p1", "p2"}) {
      parameters.emplace_back(name, torch::zeros({elements}, torch::TensorOptions(type).requires_grad(true)));
    }
    ParameterArena arena({parameters}, ParameterLayout::flat);
    Twins ranks;
    GradientSync sync(arena, parameters, ranks, slice_bytes, true);
    sync.expect_vote();
    return ranks.with_vote.defined();
  };
  CATCH_CHECK(with_vote(16, torch::kFloat, 1 << 20));
  CATCH_CHECK(with_vote(16, torch::kDouble, 1 << 20));
  CATCH_CHECK(with_vote(8 << 10, torch::kFloat, 1 << 20));  // 64 KiB together
  CATCH_CHECK_FALSE(with_vote((8 << 10) + 16, torch::kFloat, 1 << 20));
  CATCH_CHECK_FALSE(with_vote(16, torch::kFloat, 1));
  CATCH_CHECK_FALSE(with_vote(16, torch::kBFloat16, 1 << 20));
}
