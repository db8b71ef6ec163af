// What saving costs: a run that saves 126 MB, in the background or at once; a file of 126 MB or of 1,200 small tensors,
// durable, by the library or by hand; and a run that goes on after it was killed.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <thread>

#include "lockstep/lockstep.hpp"
#include "workloads.hpp"

namespace performance {
namespace {

namespace fs = std::filesystem;
namespace ls = lockstep;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t large_tensors = 30;
constexpr std::int64_t large_size = std::int64_t{1} << 20;  // 126 MB together
constexpr std::int64_t small_tensors = 1200;
constexpr std::int64_t small_size = 64;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// On the disk that LOCKSTEP_PERFORMANCE_DISK names a folder of, else where temporary files are.
class DiskFolder {
 public:
  DiskFolder() {
    const char* const disk = std::getenv("LOCKSTEP_PERFORMANCE_DISK");
    auto pattern = (disk ? fs::path(disk) : fs::temp_directory_path()) / "saving-XXXXXX";
    std::string name = pattern.string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder can be made at " + name);
    path_ = name;
  }
  ~DiskFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  DiskFolder(const DiskFolder&) = delete;
  DiskFolder& operator=(const DiskFolder&) = delete;

  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

ls::NamedTensors tensors(std::int64_t count, std::int64_t size) {
  ls::NamedTensors result;
  for (std::int64_t i = 0; i < count; ++i) result.emplace_back("p" + std::to_string(i), torch::randn({size}));
  return result;
}

/// The state of this step is saved, and the one before it retired: the writer has nothing left to do.
bool is_saved(const fs::path& checkpoints, std::int64_t step) {
  std::error_code none_yet;
  const auto name = fs::read_symlink(checkpoints / "last", none_yet).string();
  if (none_yet || std::stoll(name.substr(5)) < step) return false;
  const auto is_other = [&name](const fs::directory_entry& entry) {
    const auto other = entry.path().filename().string();
    return other != name && (other.starts_with("step-") || other.starts_with(".tmp-"));
  };
  return std::none_of(fs::directory_iterator(checkpoints), fs::directory_iterator(), is_other);
}

// ---- a run that saves 126 MB ----

/// A net with 126 MB that are saved and not trained.
struct Ballast : Net {
  explicit Ballast(std::shared_ptr<Net> trained) : net(register_module("net", std::move(trained))) {
    for (auto& [name, tensor] : tensors(large_tensors, large_size)) register_parameter(name, tensor, false);
  }
  Tensor forward(const Tensor& input) override { return net->forward(input); }
  std::shared_ptr<Net> net;
};

/// Trains `of` with ballast; calls `seen(update)` as each Step begins, `update` counted from 1.
void train_with_ballast(const std::string& of, const fs::path& checkpoints, std::int64_t updates, std::int64_t save_every,
                        bool background, const std::function<void(std::int64_t)>& seen) {
  const auto small = workload(of);
  ls::Accelerator accelerator({.device = torch::kCPU});
  const auto model = std::make_shared<Ballast>(make_net(small));
  auto batches = training_batches(small);
  ls::AdamW optimizer(ls::weight_decay_groups(*model, weight_decay), {.lr = lr});
  std::int64_t update = 0;
  const auto step = [&](Ballast& net, const ls::Example& batch) -> ls::StepOutput {
    seen(++update);
    return {.loss = at::cross_entropy_loss(net.forward(batch.data), batch.target), .num_samples = batch.target.size(0)};
  };
  ls::Trainer trainer(accelerator, model, optimizer, batches, step);
  trainer.train({.max_steps = updates,
                 .checkpoint_every = ls::Interval{save_every, ls::Interval::Unit::step},
                 .keep_checkpoints = 1,
                 .background_saves = background},
                {.checkpoint_dir = checkpoints});
}

/// For how long each save holds a run up.
std::vector<double> time_stalls(bool background, std::int64_t warm, std::int64_t count) {
  const DiskFolder folder;
  std::vector<double> seconds;
  Clock::time_point before;
  // Every other update saves; the ones between have what an update takes by itself.
  double plain = 0;
  train_with_ballast("W1", folder.path(), 2 * (warm + count) + 2, 2, background, [&](std::int64_t update) {
    const double passed = update == 1 ? 0 : seconds_since(before);
    if (update % 2 == 0) plain = passed;
    if (update % 2 == 1 && update > 1) {
      seconds.push_back(passed - plain);
      while (!is_saved(folder.path(), update - 1)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    before = Clock::now();
  });
  seconds.erase(seconds.begin(), seconds.begin() + warm);
  seconds.resize(static_cast<std::size_t>(count));
  return seconds;
}

/// A copy of the same bytes into memory that has been used before.
std::vector<double> time_copies(std::int64_t warm, std::int64_t count) {
  const auto from = tensors(large_tensors, large_size);
  const auto to = torch::zeros({large_tensors, large_size});
  std::vector<double> seconds;
  for (std::int64_t i = -warm; i < count; ++i) {
    const auto start = Clock::now();
    auto place = static_cast<char*>(to.mutable_data_ptr());
    for (const auto& [name, tensor] : from) {
      std::memcpy(place, tensor.const_data_ptr(), tensor.nbytes());
      place += tensor.nbytes();
    }
    if (i >= 0) seconds.push_back(seconds_since(start));
  }
  return seconds;
}

// ---- one file ----

[[noreturn]] void refused(const char* call) { throw std::runtime_error(std::string(call) + " failed"); }

void sync_and_close(int file) {
  if (file < 0 || ::fsync(file) != 0 || ::close(file) != 0) refused("fsync");
}

void write_all(int file, const char* bytes, std::size_t size) {
  while (size > 0) {
    const auto written = ::write(file, bytes, std::min(size, std::size_t{4} << 20));
    if (written < 0) refused("write");
    bytes += written, size -= static_cast<std::size_t>(written);
  }
}

/// The least that is durable: the bytes, fsync, a rename, fsync of the folder.
void write_by_hand(const fs::path& folder, const ls::NamedTensors& state) {
  const auto temporary = folder / "state.tmp";
  const int file = ::open(temporary.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
  std::vector<char> gathered;
  for (const auto& [name, tensor] : state) {
    const auto bytes = static_cast<const char*>(tensor.const_data_ptr());
    if (tensor.nbytes() < 4096) {
      gathered.insert(gathered.end(), bytes, bytes + tensor.nbytes());
    } else {
      write_all(file, bytes, tensor.nbytes());
    }
  }
  write_all(file, gathered.data(), gathered.size());
  sync_and_close(file);
  fs::rename(temporary, folder / "state");
  sync_and_close(::open(folder.c_str(), O_RDONLY | O_DIRECTORY));
}

std::vector<double> time_files(const std::string& way, std::int64_t tensors_of_it, std::int64_t size, std::int64_t warm,
                               std::int64_t count) {
  const DiskFolder folder;
  const auto state = tensors(tensors_of_it, size);
  std::vector<double> seconds;
  for (std::int64_t i = -warm; i < count; ++i) {
    const auto start = Clock::now();
    way == "file" ? ls::save_weights(folder.path() / "state.safetensors", state) : write_by_hand(folder.path(), state);
    if (i >= 0) seconds.push_back(seconds_since(start));
  }
  return seconds;
}

}  // namespace

std::vector<double> time_saves(const std::string& of, const std::string& way, std::int64_t warm, std::int64_t count) {
  if (way == "file" || way == "by_hand") {
    return of == "saves-large" ? time_files(way, large_tensors, large_size, warm, count)
                               : time_files(way, small_tensors, small_size, warm, count);
  }
  if (way == "copy") return time_copies(warm, count);
  if (way == "background" || way == "at_once") return time_stalls(way == "background", warm, count);
  throw std::invalid_argument("no way " + way);
}

UpdatesBesideSave time_updates_beside_save(const std::string& of, std::int64_t updates) {
  constexpr std::int64_t save_every = 30;
  const DiskFolder folder;
  UpdatesBesideSave result;
  Clock::time_point before;
  bool busy_before = false;
  train_with_ballast(of, folder.path(), updates, save_every, true, [&](std::int64_t update) {
    const auto now = Clock::now();
    const auto last_save = (update - 1) / save_every * save_every;
    const bool busy = last_save > 0 && !is_saved(folder.path(), last_save);
    // Not the one in which the state was copied, nor those before all is warm.
    if (update > save_every && (update - 1) % save_every != 0 && busy == busy_before) {
      (busy ? result.beside : result.alone).push_back(std::chrono::duration<double>(now - before).count());
    }
    busy_before = busy;
    before = Clock::now();
  });
  return result;
}

void resume_and_tell(const fs::path& folder) {
  const auto small = workload("W1");
  ls::Accelerator accelerator({.device = torch::kCPU});
  const auto model = make_net(small);
  auto batches = training_batches(small);
  ls::AdamW optimizer(ls::weight_decay_groups(*model, weight_decay), {.lr = lr});
  std::int64_t calls = 0;
  const auto step = [&calls](Net& net, const ls::Example& batch) -> ls::StepOutput {
    // The second call says that the first update is made.
    if (++calls > 1) std::cout << calls - 1 << std::endl;
    return {.loss = at::cross_entropy_loss(net.forward(batch.data), batch.target), .num_samples = batch.target.size(0)};
  };
  ls::Trainer trainer(accelerator, model, optimizer, batches, step);
  trainer.train({.max_steps = 1'000'000, .checkpoint_every = ls::Interval{20, ls::Interval::Unit::step}, .keep_checkpoints = 2},
                {.checkpoint_dir = folder, .resume_from = ls::latest});
}

}  // namespace performance
