#include "lockstep/files/weights_file.hpp"

#include <torch/torch.h>

#include <filesystem>
#include <string>

#include "lockstep/base/error.hpp"
#include "lockstep/tensors/safetensors.hpp"
#include "support/catch.hpp"
#include "support/file_size_limit.hpp"
#include "support/file_text.hpp"
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
  const auto tensors = load_weights(path);
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
  CATCH_CHECK(load_weights(path).at(0).second.item<float>() == 2);
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
  const std::string path = directory.path() / "model.pt";
  const std::string expected = "[unknown-weights-format] " + path + " does not end in .safetensors";
  CATCH_CHECK(error_of([&] { save_weights(path, {}); }).starts_with(expected));
  CATCH_CHECK(error_of([&] { (void)load_weights(path); }).starts_with(expected));
  CATCH_CHECK(fs::is_empty(directory.path()));
}

CATCH_TEST_CASE("A pickle is not executed, whatever it is called") {
  const TemporaryDirectory directory;
  write_text(directory.path() / "model.safetensors", "cos\nsystem\n(S'false'\ntR.");
  CATCH_CHECK(error_of([&] {
                (void)load_weights(directory.path() / "model.safetensors");
              }).starts_with("[damaged-safetensors]"));
}
