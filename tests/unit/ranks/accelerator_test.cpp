#include "lockstep/ranks/accelerator.hpp"

#include "lockstep/base/error.hpp"
#include "lockstep/config/settings.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using Catch::Matchers::Contains;
using test::thrown_id;

CATCH_TEST_CASE("an Accelerator seeds Torch's generator") {
  Accelerator first({.seed = 3, .device = at::kCPU});
  const auto drawn = torch::rand({4});
  Accelerator second({.seed = 3, .device = at::kCPU});
  CATCH_CHECK(torch::equal(torch::rand({4}), drawn));
  torch::manual_seed(3);
  CATCH_CHECK(torch::equal(torch::rand({4}), drawn));
}

CATCH_TEST_CASE("an Accelerator without a device takes CUDA where there is some") {
  const Accelerator accelerator;
  CATCH_CHECK(accelerator.device().is_cuda() == torch::cuda::is_available());
  CATCH_CHECK(accelerator.placement().floating == torch::kFloat);
  CATCH_CHECK(accelerator.is_main_process());
  CATCH_CHECK(accelerator.world_size() == 1);
}

CATCH_TEST_CASE("the precision decides the type that batches and parameters get") {
  const Accelerator accelerator({.precision = Precision::fp64, .device = at::kCPU});
  CATCH_CHECK(accelerator.placement().floating == torch::kDouble);
  CATCH_CHECK(accelerator.placement().device == at::kCPU);
}

CATCH_TEST_CASE("an Accelerator that cannot be is refused") {
  CATCH_CHECK(thrown_id<ConfigError>([] { Accelerator({.gradient_accumulation_steps = 0}); }) ==
              "invalid-settings");
  CATCH_CHECK(thrown_id<ConfigError>([] { Accelerator({.device = at::Device(at::kCUDA, 99)}); }) ==
              "device-not-available");
}

CATCH_TEST_CASE("a section of settings fills an Accelerator's options") {
  Settings settings;
  settings.merge(R"({"accelerator": {"precision": "fp64", "seed": 5, "device": "cuda:1",
                     "loss_scaler": {"initial_scale": 1024}, "backend": {"tf32": true, "cudnn_benchmark": false}}})",
                 "the test");
  AcceleratorOptions options{.gradient_accumulation_steps = 2};
  read(settings, "accelerator", options);
  settings.finish();
  CATCH_CHECK(options.precision == Precision::fp64);
  CATCH_CHECK(options.gradient_accumulation_steps == 2);
  CATCH_CHECK(options.seed == 5);
  CATCH_CHECK(options.device == at::Device(at::kCUDA, 1));
  CATCH_CHECK(options.loss_scaler == LossScalerOptions{.initial_scale = 1024});
  CATCH_CHECK(options.backend.tf32 == true);
  CATCH_CHECK(options.backend.cudnn_benchmark == false);
  CATCH_CHECK_FALSE(options.backend.anomaly_detection.has_value());
  CATCH_CHECK(settings.resolved().find("\"device\": \"cuda:1\"") != std::string::npos);
}

CATCH_TEST_CASE("the settings of ranks are read beside the others, the timeout in seconds") {
  Settings settings;
  settings.merge(R"({"accelerator": {"launch": {"rank": 1, "world_size": 2, "meeting_point": "file:///shared/a"},
                     "rank_timeout": 2.5, "slice_bytes": 1000, "overlap_sync": false, "check_collectives": true}})",
                 "the test");
  AcceleratorOptions options;
  read(settings, "accelerator", options);
  settings.finish();
  CATCH_CHECK(options.launch == LaunchOptions{.rank = 1, .world_size = 2, .meeting_point = "file:///shared/a"});
  CATCH_CHECK(options.rank_timeout == std::chrono::milliseconds(2500));
  CATCH_CHECK(options.slice_bytes == 1000);
  CATCH_CHECK_FALSE(options.overlap_sync);
  CATCH_CHECK(options.check_collectives);
  CATCH_CHECK(settings.resolved().find("\"rank_timeout\": 2.5") != std::string::npos);
}

CATCH_TEST_CASE("a timeout that no clock can measure is a mistake") {
  const auto text = GENERATE("-1", "1e12", "\"inf\"", "\"nan\"");
  Settings settings;
  settings.merge(R"({"accelerator": {"rank_timeout": )" + std::string(text) + "}}", "the test");
  AcceleratorOptions options;
  read(settings, "accelerator", options);
  CATCH_CHECK_THROWS_WITH(settings.finish(), Contains("give seconds from 0 up to a year"));
  CATCH_CHECK(options.rank_timeout == std::chrono::minutes(30));
}

CATCH_TEST_CASE("a device that is none is a mistake among the others") {
  Settings settings;
  settings.merge(R"({"accelerator": {"device": "gpu", "seed": -1}})", "run.json");
  AcceleratorOptions options;
  read(settings, "accelerator", options);
  try {
    settings.finish();
    CATCH_FAIL("the settings were taken");
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    CATCH_CHECK(text.find("\"/accelerator/device\" (from run.json) is \"gpu\", give \"cpu\"") !=
                std::string::npos);
    CATCH_CHECK(text.find("\"/accelerator/seed\" (from run.json) is -1") != std::string::npos);
  }
}

CATCH_TEST_CASE("settings of the loss scaler are refused where no loss is scaled, with every other mistake") {
  CATCH_CHECK_NOTHROW(
      Accelerator({.precision = Precision::fp16_mixed, .device = at::kCPU, .loss_scaler = {{}}}));
  try {
    Accelerator({.precision = Precision::bf16_mixed,
                 .gradient_accumulation_steps = 0,
                 .device = at::kCPU,
                 .loss_scaler = {{.growth_interval = 0}}});
    CATCH_FAIL("nothing was thrown");
  } catch (const ConfigError& error) {
    CATCH_CHECK_THAT(error.what(), Contains("gradient_accumulation_steps is 0") &&
                                       Contains("loss_scaler is set but the precision is bf16-mixed") &&
                                       Contains("loss_scaler.growth_interval is 0"));
  }
}

CATCH_TEST_CASE("Torch's switches are an Accelerator's for as long as it, or a copy of it, lives") {
  const bool before = at::globalContext().benchmarkCuDNN();
  {
    std::optional<Accelerator> first(
        std::in_place, AcceleratorOptions{.device = at::kCPU, .backend = {.cudnn_benchmark = !before}});
    const Accelerator copy = *first;
    first.reset();
    CATCH_CHECK(at::globalContext().benchmarkCuDNN() == !before);
  }
  CATCH_CHECK(at::globalContext().benchmarkCuDNN() == before);
}
