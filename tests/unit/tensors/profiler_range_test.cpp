#include "lockstep/tensors/profiler_range.hpp"

#include "support/fixtures.hpp"
#include "support/ranks.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// The library's ranges that this thread goes through while it lives, those inside another one in parentheses.
class Ranges {
 public:
  Ranges()
      : callback_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::USER_SCOPE}))) {
    text.clear();
  }
  ~Ranges() { at::removeCallback(callback_); }
  Ranges(const Ranges&) = delete;
  Ranges& operator=(const Ranges&) = delete;

  static inline thread_local std::string text;

 private:
  static constexpr std::string_view prefix = "lockstep::";

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& range) {
    const std::string_view name = range.name();
    if (name.starts_with(prefix)) text.append(name.substr(prefix.size())).append("(");
    return nullptr;
  }
  static void end(const at::RecordFunction& range, at::ObserverContext*) {
    if (!std::string_view(range.name()).starts_with(prefix)) return;
    if (text.ends_with('(')) {
      text.back() = ' ';
      return;
    }
    if (text.ends_with(' ')) text.pop_back();
    text += ") ";
  }

  at::CallbackHandle callback_;
};

constexpr auto every_step = Interval{1, Interval::Unit::step};

}  // namespace

CATCH_TEST_CASE("the phases of a run are ranges for profilers, in their order and inside each other") {
  const TemporaryDirectory folder;
  OneWeightRun run(numbered_batches(3), ledger,
                   {.accumulation = 2, .evaluation_set = numbered_batches(2), .test_set = numbered_batches(1)});
  const Ranges ranges;
  run.trainer.train({.epochs = 1}, {.checkpoint_dir = folder.path()});
  CATCH_CHECK(ranges.text ==
              "fetch step backward fetch step backward sync update "
              "fetch step backward sync update "
              "evaluate(fetch step fetch step) save "
              "evaluate(fetch step) ");
}

CATCH_TEST_CASE("every save is a range, and a window without samples has no backward pass") {
  const TemporaryDirectory folder;
  const auto step = [](OneWeight& model, const at::Tensor& batch) -> StepOutput {
    return {.loss = model.w, .num_samples = batch.item<double>() > 0 ? 1 : 0};
  };
  OneWeightRun run(numbered_batches(2), step);
  const Ranges ranges;
  run.trainer.train({.epochs = 1, .checkpoint_every = every_step}, {.checkpoint_dir = folder.path()});
  CATCH_CHECK(ranges.text == "fetch step sync update fetch step backward sync update save ");
}

CATCH_TEST_CASE("what a range of batches reads ahead is fetching as well") {
  struct Counting {
    struct Iterator {
      at::Tensor operator*() const { return torch::full({1}, static_cast<double>(at), torch::kDouble); }
      Iterator& operator++() { return ++at, *this; }
      void operator++(int) { ++at; }
      bool operator==(const Iterator& other) const { return at == other.at; }
      int at;
    };
    [[nodiscard]] Iterator begin() const { return {0}; }
    [[nodiscard]] Iterator end() const { return {2}; }
  };
  OneWeightRun run(Counting(), ledger);
  const Ranges ranges;
  run.trainer.train({.epochs = 1, .checkpoint_every = {}});
  CATCH_CHECK(ranges.text == "fetch step fetch backward sync update fetch step fetch backward sync update ");
}

CATCH_TEST_CASE("on two ranks an update has the same ranges") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    OneWeightRun run(numbered_batches(4), ledger, {.launch = rank.launch()});
    const Ranges ranges;
    run.trainer.train({.epochs = 1, .checkpoint_every = {}});
    return ranges.text;
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks.same_text() == "fetch step backward sync update fetch step backward sync update ");
}
