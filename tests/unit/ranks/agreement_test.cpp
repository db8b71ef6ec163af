#include "lockstep/ranks/agreement.hpp"

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using Catch::Matchers::Contains;

namespace {

/// Rank 0 of two; what rank 1 does is scripted.
class Scripted final : public Collectives {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int world_size() const override { return 2; }
  [[nodiscard]] bool usable() const override { return usable_; }
  std::chrono::milliseconds set_timeout(std::chrono::milliseconds timeout) override { return timeout; }
  [[nodiscard]] std::vector<Vote> vote(const Vote& mine) override {
    Vote theirs = mine;
    theirs.failed = other_failed;
    return {mine, theirs};
  }
  void sum_with_vote(const at::Tensor&) override {}
  [[nodiscard]] std::vector<std::string> exchange(const std::string& mine) override {
    return {mine, other_failed ? "the other's trouble" : ""};
  }
  void broadcast(const std::vector<at::Tensor>&) override {}
  [[nodiscard]] std::unique_ptr<PendingSum> sum(const at::Tensor&) override { return nullptr; }
  void barrier() override {}
  [[nodiscard]] Collectives& inside_step() override { return *this; }
  void abandon(const std::string&) noexcept override { usable_ = false; }

  bool other_failed = false;

 private:
  bool usable_ = true;
};

void trouble() { throw std::runtime_error("my trouble"); }

}  // namespace

CATCH_TEST_CASE("alone, what fails is thrown where it happens") {
  Agreement agreement(std::make_shared<SingleProcess>());
  CATCH_CHECK_THROWS_WITH(agreement.locally(trouble), "my trouble");
  CATCH_CHECK((agreement.meet({.samples = 3}) == std::vector<Vote>{{.samples = 3}}));
  CATCH_CHECK(agreement.exchange("text") == std::vector<std::string>{"text"});
}

CATCH_TEST_CASE("what fails on this rank is kept for the next meeting, and nothing is done until then") {
  Agreement agreement(std::make_shared<Scripted>());
  agreement.locally(trouble);
  bool ran = false;
  agreement.locally([&ran] { ran = true; });
  CATCH_CHECK_FALSE(ran);
  CATCH_CHECK_FALSE(agreement.settled());
  CATCH_CHECK_THROWS_WITH(agreement.meet({}), "my trouble");
  CATCH_CHECK(agreement.settled());
  agreement.begin();
  CATCH_CHECK_FALSE(agreement.settled());
  agreement.locally([&ran] { ran = true; });
  CATCH_CHECK(ran);
  CATCH_CHECK(agreement.meet({}).size() == 2);
}

CATCH_TEST_CASE("what fails on another rank is thrown here with its rank and its text") {
  const auto collectives = std::make_shared<Scripted>();
  Agreement agreement(collectives);
  collectives->other_failed = true;
  try {
    (void)agreement.meet({});
    CATCH_FAIL("nothing was thrown");
  } catch (const RankError& error) {
    CATCH_CHECK(error.id() == "rank-failed");
    CATCH_CHECK_THAT(error.what(), Contains("rank 1: the other's trouble"));
  }
  CATCH_CHECK(agreement.settled());
}

CATCH_TEST_CASE("an error that all ranks throw, or that leaves no one to tell, needs no meeting") {
  const auto collectives = std::make_shared<Scripted>();
  Agreement agreement(collectives);
  CATCH_CHECK_THROWS(agreement.together([] { trouble(); }));
  CATCH_CHECK(agreement.settled());
  agreement.begin();
  collectives->abandon("");
  CATCH_CHECK(agreement.settled());
}
