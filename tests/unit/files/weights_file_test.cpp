#include "lockstep/files/weights_file.hpp"

#include <torch/torch.h>

#include <filesystem>
#include <string>

#include "lockstep/base/error.hpp"
#include "lockstep/tensors/safetensors.hpp"
#include "support/catch.hpp"
#include "support/file_size_limit.hpp"
#include "support/file_text.hpp"
#include "support/python.hpp"
#include "support/temporary_directory.hpp"

namespace fs = std::filesystem;
using namespace lockstep;
using namespace lockstep::test;

namespace {

template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::size_t count_in(const fs::path& directory) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

}  // namespace

CATCH_TEST_CASE("Weights come back as they were saved, directories are created, metadata is kept") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "a" / "b" / "model.safetensors";
  save_weights(path, {{"w", torch::tensor({1.f, 2.f})}}, {{"step", "7"}});
  const auto tensors = read_weights(path);
  CATCH_REQUIRE(tensors.size() == 1);
  CATCH_CHECK(tensors[0].first == "w");
  CATCH_CHECK(at::equal(tensors[0].second, torch::tensor({1.f, 2.f})));
  CATCH_CHECK(read_safetensors(path).metadata == std::map<std::string, std::string>{{"step", "7"}});
  CATCH_CHECK(count_in(path.parent_path()) == 1);
}

CATCH_TEST_CASE("Saving weights over a file replaces it, and a failure leaves it as it was (RLIMIT_FSIZE)") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "model.safetensors";
  save_weights(path, {{"w", torch::tensor({1.f})}});
  save_weights(path, {{"w", torch::tensor({2.f})}});
  {
    const FileSizeLimit limit(500);
    CATCH_CHECK(error_of([&] {
                  save_weights(path, {{"w", torch::zeros({1000})}});
                }).starts_with("[cannot-write-file]"));
  }
  CATCH_CHECK(read_weights(path).at(0).second.item<float>() == 2);
  CATCH_CHECK(count_in(directory.path()) == 1);
}

CATCH_TEST_CASE("A folder in the place of a weights file is an error and nothing temporary stays") {
  const TemporaryDirectory directory;
  fs::create_directories(directory.path() / "model.safetensors" / "full");
  CATCH_CHECK(error_of([&] {
                save_weights(directory.path() / "model.safetensors", {});
              }).starts_with("[cannot-write-file]"));
  CATCH_CHECK(count_in(directory.path()) == 1);
}

CATCH_TEST_CASE("Another format than safetensors is refused with the way to get one") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "model.bin";
  const std::string expected = "[unknown-weights-format] " + path + " does not end in .safetensors";
  CATCH_CHECK(error_of([&] { save_weights(path, {}); }).starts_with(expected));
  CATCH_CHECK(error_of([&] { (void)read_weights(path); }).starts_with(expected));
  CATCH_CHECK(fs::is_empty(directory.path()));
}

CATCH_TEST_CASE("Python's torch.load() reads a .pt file as weights alone (LOCKSTEP_TEST_PYTHON)") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "model.pt";
  const auto column = torch::arange(6).reshape({2, 3}).select(1, 1);
  save_weights(path, {{"w", torch::tensor({1.5f, -2.f}).requires_grad_()},
                      {"half", torch::ones({2, 2}, torch::kBFloat16)},
                      {"column", column},
                      {"empty", torch::empty({0, 3})},
                      {"flag", torch::tensor(true)}});
  CATCH_CHECK(count_in(directory.path()) == 1);
  CATCH_CHECK(error_of([&] { save_weights(path, {}, {{"step", "7"}}); }).starts_with("[no-place-for-metadata]"));
  run_python("pt_check.py", "'" + path.string() + "'");
}

CATCH_TEST_CASE("A .pt file that cannot be written whole is not there (RLIMIT_FSIZE)") {
  const TemporaryDirectory directory;
  for (const std::uint64_t bytes : {0, 10, 1000, 5000}) {
    const FileSizeLimit limit(bytes);
    CATCH_CHECK(error_of([&] {
                  save_weights(directory.path() / "model.pt", {{"w", torch::zeros({1000})}});
                }).starts_with("[cannot-write-file]"));
    CATCH_CHECK(fs::is_empty(directory.path()));
  }
}

CATCH_TEST_CASE("A pickle is not executed, whatever it is called") {
  const TemporaryDirectory directory;
  write_text(directory.path() / "model.safetensors", "cos\nsystem\n(S'false'\ntR.");
  CATCH_CHECK(error_of([&] {
                (void)read_weights(directory.path() / "model.safetensors");
              }).starts_with("[damaged-safetensors]"));
}

// ---- into a module ----

namespace {

/// Names: encoder.weight [2, 2], encoder.bias [2], head.weight [1, 2].
struct Net : torch::nn::Module {
  Net() {
    encoder = register_module("encoder", torch::nn::Linear(2, 2));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(2, 1).bias(false)));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.zero_();
  }
  [[nodiscard]] double sum() const {
    double total = 0;
    for (const auto& parameter : parameters()) total += parameter.sum().item<double>();
    return total;
  }
  torch::nn::Linear encoder{nullptr};
  torch::nn::Linear head{nullptr};
};

fs::path write(const TemporaryDirectory& directory, const NamedTensors& tensors) {
  const auto path = directory.path() / "w.safetensors";
  save_weights(path, tensors);
  return path;
}

const NamedTensors encoder_of_ones{{"encoder.weight", torch::ones({2, 2})}, {"encoder.bias", torch::ones({2})}};

NamedTensors with_head(NamedTensors tensors) {
  tensors.emplace_back("head.weight", torch::ones({1, 2}));
  return tensors;
}

NamedTensors prefixed(const std::string& prefix) {
  NamedTensors tensors = with_head(encoder_of_ones);
  for (auto& tensor : tensors) tensor.first = prefix + tensor.first;
  return tensors;
}

}  // namespace

CATCH_TEST_CASE("all weights of a module come from a file, in the module's own type") {
  const TemporaryDirectory directory;
  Net net;
  net.to(torch::kDouble);
  const auto loaded = load_weights(net, write(directory, with_head(encoder_of_ones)));
  CATCH_CHECK(loaded.loaded.size() == 3);
  CATCH_CHECK(loaded.missing.empty());
  CATCH_CHECK(loaded.left_over.empty());
  CATCH_CHECK(net.sum() == 8);
  CATCH_CHECK(net.head->weight.scalar_type() == torch::kDouble);
  CATCH_CHECK(net.head->weight.requires_grad());
}

CATCH_TEST_CASE("weights that do not fit change nothing, and every difference is named") {
  const TemporaryDirectory directory;
  const auto path = write(directory, {{"encoder.weight", torch::ones({2, 3})},
                                      {"encoder.bias", torch::ones({2}, torch::kLong)},
                                      {"extra", torch::ones({1})}});
  Net net;
  const auto text = error_of([&] { load_weights(net, path); });
  using Catch::Matchers::Contains;
  CATCH_CHECK_THAT(text, Contains("[weights-do-not-fit]") && Contains("encoder.weight") && Contains("encoder.bias") &&
                             Contains("head.weight of the module is not in the file") &&
                             Contains("extra of the file is not in the module"));
  CATCH_CHECK(net.sum() == 0);
}

CATCH_TEST_CASE("a beginning that all names have too much or too little is suggested") {
  const TemporaryDirectory directory;
  Net net;
  const auto too_much = write(directory, prefixed("module."));
  CATCH_CHECK_THAT(error_of([&] { load_weights(net, too_much); }),
                   Catch::Matchers::Contains("All names fit with .rename = {{\"module.\", \"\"}}"));
  load_weights(net, too_much, {.rename = {{"module.", ""}}});
  CATCH_CHECK(net.sum() == 8);

  struct Wrapped : torch::nn::Module {
    std::shared_ptr<Net> inner = register_module("inner", std::make_shared<Net>());
  } wrapped;
  const auto too_little = write(directory, prefixed(""));
  CATCH_CHECK_THAT(error_of([&] { load_weights(wrapped, too_little); }),
                   Catch::Matchers::Contains("All names fit with .rename = {{\"\", \"inner.\"}}"));
  load_weights(wrapped, too_little, {.rename = {{"", "inner."}}});
  CATCH_CHECK(wrapped.inner->sum() == 8);
}

CATCH_TEST_CASE("the longest rule renames, and names that meet are refused") {
  const TemporaryDirectory directory;
  Net net;
  const auto path = write(directory, {{"old.weight", torch::ones({2, 2})},
                                      {"old.b", torch::ones({2})},
                                      {"head.weight", torch::ones({1, 2})}});
  load_weights(net, path, {.rename = {{"old.", "encoder."}, {"old.b", "encoder.bias"}}});
  CATCH_CHECK(net.sum() == 8);
  CATCH_CHECK_THAT(error_of([&] {
                     load_weights(net, path, {.rename = {{"old.weight", "x"}, {"old.b", "x"}, {"none.", ""}}});
                   }),
                   Catch::Matchers::Contains("old.b and old.weight of the file would both be x") ||
                       Catch::Matchers::Contains("old.weight and old.b of the file would both be x"));
}

CATCH_TEST_CASE("what is skipped keeps its values, in the file or not") {
  const TemporaryDirectory directory;
  Net net;
  load_weights(net, write(directory, with_head(encoder_of_ones)), {.skip = {"head."}});
  CATCH_CHECK(net.sum() == 6);
  Net other;
  load_weights(other, write(directory, encoder_of_ones), {.skip = {"head."}});
  CATCH_CHECK(other.sum() == 6);
}

CATCH_TEST_CASE("rules and names to skip that fit nothing are refused") {
  const TemporaryDirectory directory;
  Net net;
  const auto path = write(directory, with_head(encoder_of_ones));
  CATCH_CHECK_THAT(error_of([&] { load_weights(net, path, {.rename = {{"none.", ""}}, .skip = {"haed."}}); }),
                   Catch::Matchers::Contains("no name in the file begins with \"none.\"") &&
                       Catch::Matchers::Contains("no name begins with \"haed.\""));
}

CATCH_TEST_CASE("without strict what has no counterpart is left alone and reported, but something must fit") {
  const TemporaryDirectory directory;
  Net net;
  auto tensors = encoder_of_ones;
  tensors.emplace_back("extra", torch::ones({1}));
  const auto loaded = load_weights(net, write(directory, tensors), {.strict = false});
  CATCH_CHECK(loaded.missing == std::vector<std::string>{"head.weight"});
  CATCH_CHECK(loaded.left_over == std::vector<std::string>{"extra"});
  CATCH_CHECK(net.sum() == 6);
  CATCH_CHECK_THAT(error_of([&] { load_weights(net, write(directory, prefixed("module.")), {.strict = false}); }),
                   Catch::Matchers::Contains("not one tensor of the file has a place"));
}
