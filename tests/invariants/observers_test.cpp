#include "invariants/cases.hpp"
#include "support/file_text.hpp"
#include "support/terminal.hpp"

namespace lockstep::test {
namespace {

CATCH_TEMPLATE_TEST_CASE("logging and saving change no bit", "", Follow, Ledger, Mlp, Cnn, OddFlat,
                         OddSeparate) {
  check_in_every_precision<TestType>([](const auto& c) { return testing::check_observers(c); });
}

/// A sink that draws from the generator of the training.
struct DrawingSink : Sink {
  void write(const LogEvent&) override { (void)torch::rand({1}); }
};
struct DrawingObserver : Mlp {
  CaseSettings settings() const {
    auto settings = Mlp::settings();
    settings.sink = std::make_shared<DrawingSink>();
    return settings;
  }
};

CATCH_TEST_CASE("a sink that draws random numbers is found out by observers") {
  const auto finding = testing::check_observers(DrawingObserver());
  CATCH_CHECK_THAT(finding.difference, Catch::Matchers::StartsWith("logged: model/"));
}

CATCH_TEST_CASE("a progress bar on a terminal changes no bit") {
  const auto train = [](RunLogger* logger) {
    const Mlp c;
    const auto settings = c.settings();
    Accelerator accelerator(settings.accelerator);
    auto model = c.model();
    auto optimizer = c.optimizer(*model);
    DataLoader loader(c.train_set(), settings.loader);
    Trainer trainer(accelerator, model, *optimizer, loader, c.step(), {.logger = logger});
    auto config = settings.config;
    config.monitor = {};
    trainer.train(config);
    return sha256(trainer.weights());
  };
  const TemporaryDirectory directory;
  const auto result = directory.path() / "result";
  const Terminal terminal(80, [&] {
    RunLogger logger(directory.path() / "log");
    write_text(result, train(&logger));
  });
  CATCH_REQUIRE(terminal.exit_code() == 0);
  CATCH_CHECK_THAT(terminal.output(), Catch::Matchers::Contains("8"));
  CATCH_CHECK(read_text(result) == train(nullptr));
}

}  // namespace
}  // namespace lockstep::test
