// Trains the workloads in three ways: `trainer`, a user's program on lockstep; `flat`, the floor, which does
// by hand the operations that the Trainer does, on flat buffers; `stock`, torch::optim and clip_grad_norm_ as
// tutorials show them. `forward_backward` does nothing else. `hooked` is `trainer` with twenty empty hooks.
//
// Answers each line of standard input, or its arguments as one line, with a line of JSON:
//
//   info                               capability, threads, version
//   losses WORKLOAD WAY UPDATES        the loss of every microbatch
//   memory WORKLOAD WAY UPDATES        the process's peak, in KiB
//   time WORKLOAD WAY WARM N WINDOW    seconds an update, window by window; N is a multiple of WINDOW
//   time batches WAY WARM N WINDOW     seconds a batch, as `lockstep` or `torch` reads it
//   time saves-large WAY WARM N WINDOW seconds of each save; saves-small: small tensors: saving.cpp
//   beside WORKLOAD UPDATES            seconds of updates beside a save of 126 MB, and alone
//   resume FOLDER                      trains until it is killed, a line for each update
//   time update-W4 WAY WARM N WINDOW   seconds of each update alone: update_part.cpp
//
// `losses` and `time` of a workload may end with RANK RANKS MEETING_POINT: `trainer` is then one rank of a
// run, and `flat` does the work of all of them, as microbatches of one window.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>

#include "lockstep/lockstep.hpp"
#include "support/temporary_directory.hpp"
#include "workloads.hpp"

namespace performance {
namespace {

namespace ls = lockstep;
using ls::test::TemporaryDirectory;

struct Job {
  Workload workload;
  std::int64_t updates;
  ls::LaunchOptions launch = {};
  Stopwatch stopwatch{0, 1};
  bool collect = false;
  std::vector<double> losses = {};

  void begin_microbatch() { stopwatch.tick(); }
  void see(const Tensor& loss) {
    if (collect) losses.push_back(loss.item<double>());
  }
};

struct EmptyHook {
  void after_update(ls::Run&, const ls::UpdateOutcome&) {}
};

template <std::size_t... index>
ls::Hooks empty_hooks(std::index_sequence<index...>) {
  return {((void)index, EmptyHook())...};
}

void train_with_trainer(Job& job, ls::Hooks hooks = {}) {
  const auto& workload = job.workload;
  ls::Accelerator accelerator({.gradient_accumulation_steps = workload.accumulation,
                               .device = torch::kCPU,
                               .launch = job.launch,
                               .rank_timeout = std::chrono::minutes(1)});
  const auto model = make_net(workload);
  auto batches = training_batches(workload);
  auto held_out = validation_batches(workload);

  auto step = [&job](Net& net, const ls::Example& batch) -> ls::StepOutput {
    job.begin_microbatch();
    const auto loss = at::cross_entropy_loss(net.forward(batch.data), batch.target);
    job.see(loss);
    return {.loss = loss, .num_samples = batch.target.size(0)};
  };
  auto judge = [](Net& net, const ls::Example& batch) -> ls::StepOutput {
    const auto logits = net.forward(batch.data);
    const auto samples = batch.target.size(0);
    return {.loss = at::cross_entropy_loss(logits, batch.target),
            .num_samples = samples,
            .metrics = {{"accuracy", ls::MeanMetric(logits.argmax(1).eq(batch.target).sum(), samples)}}};
  };

  const ls::ParameterGroups groups{
      {.name = "all", .parameters = ls::trainable_parameters(*model), .weight_decay = weight_decay}};
  ls::AdamW optimizer(groups, {.lr = lr});
  ls::Evaluator evaluator(accelerator, {{"validation", held_out}}, judge);
  std::optional<TemporaryDirectory> folder;
  std::optional<ls::RunLogger> logger;
  ls::TrainerOptions<Net> options{.hooks = std::move(hooks)};
  ls::TrainConfig config{.max_steps = job.updates, .evaluate_every = {}, .checkpoint_every = {}};
  ls::TrainOptions files;
  if (workload.clip) config.max_grad_norm = max_grad_norm;
  if (workload.average) options.ema_decay = ema_decay;
  if (workload.everything) {
    folder.emplace();
    logger.emplace(folder->path() / "run", ls::RunLoggerOptions{.quiet = true});
    options.evaluator = &evaluator;
    options.logger = &*logger;
    config.log_every = log_every;
    config.evaluate_every = {.every = evaluate_every, .unit = ls::Interval::Unit::step};
    config.checkpoint_every = {.every = checkpoint_every, .unit = ls::Interval::Unit::step};
    config.keep_checkpoints = 1;
    files.checkpoint_dir = folder->path() / "checkpoints";
  }
  ls::Trainer trainer(accelerator, model, optimizer, batches, step, options);
  if (workload.everything) trainer.set_scheduler(schedule);
  (void)trainer.train(config, files);
}

/// Tensors one after the other in a buffer, each on 64 bytes; the buffer is filled up to whole rows of the
/// norm.
struct FlatBuffer {
  static constexpr std::int64_t row = 4096;

  explicit FlatBuffer(const std::vector<Tensor>& like) {
    std::int64_t size = 0;
    for (const auto& tensor : like) {
      offsets.push_back(size);
      size += (tensor.numel() + 15) / 16 * 16;
    }
    buffer = torch::zeros({(size + row - 1) / row * row});
  }
  [[nodiscard]] Tensor view(std::size_t i, const Tensor& like) const {
    return torch::empty({0}).set_(buffer.storage(), offsets[i], like.sizes(), like.strides());
  }
  /// Moves the data of the tensors here.
  void take(const std::vector<Tensor>& tensors) const {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto place = view(i, tensors[i]);
      place.copy_(tensors[i]);
      tensors[i].set_data(place);
    }
  }

  std::vector<std::int64_t> offsets;
  Tensor buffer;
};

double norm_of(const Tensor& flat) {
  const auto rows = at::linalg_vector_norm(flat.view({-1, FlatBuffer::row}), 2, at::IntArrayRef{1});
  double sum = 0;
  for (const float norm : std::span(rows.const_data_ptr<float>(), static_cast<std::size_t>(rows.numel()))) {
    sum += static_cast<double>(norm) * norm;
  }
  return std::sqrt(sum);
}

void evaluate_by_hand(Net& net, const std::vector<ls::Example>& batches, std::FILE* log,
                      std::int64_t update) {
  const torch::NoGradGuard no_grad;
  net.eval();
  double loss = 0, correct = 0, samples = 0;
  for (const auto& batch : batches) {
    const auto logits = net.forward(batch.data);
    const auto size = static_cast<double>(batch.target.size(0));
    loss += size * at::cross_entropy_loss(logits, batch.target).item<double>();
    correct += logits.argmax(1).eq(batch.target).sum().item<double>();
    samples += size;
  }
  net.train();
  std::fprintf(log, "%ld,%.9g,%.9g\n", update, loss / samples, correct / samples);
}

/// What the two hand-written loops do about the log, evaluation and checkpoints.
class Everything {
 public:
  Everything(const Workload& workload, Net& evaluated)
      : evaluated_(evaluated), held_out_(validation_batches(workload)) {}
  ~Everything() { std::fclose(log_); }
  Everything(const Everything&) = delete;
  Everything& operator=(const Everything&) = delete;

  template <class Save>
  void after_update(std::int64_t update, double loss, double rate, Save save) {
    if (update % log_every == 0) std::fprintf(log_, "%ld,%.9g,%.9g\n", update, loss, rate);
    if (update % evaluate_every == 0) evaluate_by_hand(evaluated_, held_out_, log_, update);
    if (update % checkpoint_every == 0) save(folder_.path());
  }

 private:
  Net& evaluated_;
  std::vector<ls::Example> held_out_;
  TemporaryDirectory folder_;
  std::FILE* log_ = std::fopen((folder_.path() / "log.csv").c_str(), "w");
};

void train_flat(Job& job) {
  const auto& workload = job.workload;
  const auto model = make_net(workload);
  const auto averaged_model = workload.average ? make_net(workload) : nullptr;
  const auto batches = training_batches(workload);
  const auto parameters = model->parameters();
  const FlatBuffer weights(parameters), gradients(parameters);
  weights.take(parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = gradients.view(i, parameters[i]);
  }
  const FlatBuffer average(averaged_model ? parameters : std::vector<Tensor>{});
  if (averaged_model) average.take(averaged_model->parameters());
  std::optional<Everything> everything;
  if (workload.everything) everything.emplace(workload, *averaged_model);

  const std::vector<Tensor> weight{weights.buffer}, gradient{gradients.buffer};
  const std::vector<Tensor> exp_avg{torch::zeros_like(weights.buffer)},
      exp_avg_sq{torch::zeros_like(weights.buffer)};
  const std::vector<Tensor> steps{torch::zeros({})};
  const auto divisor = torch::ones({});
  double loss_sum = 0, window_loss = 0;
  std::int64_t samples = 0, update = 0;
  model->train();
  for (std::size_t i = 0; update < job.updates; ++i) {
    job.begin_microbatch();
    const auto& batch = batches[i % batches.size()];
    const auto loss = at::cross_entropy_loss(model->forward(batch.data), batch.target);
    job.see(loss);
    const double value = loss.item<double>();
    if (!std::isfinite(value)) throw std::runtime_error("the loss is not finite");
    loss.backward();
    loss_sum += value * static_cast<double>(batch.target.size(0));
    samples += batch.target.size(0);
    if ((i + 1) % static_cast<std::size_t>(workload.accumulation) != 0) continue;

    const torch::NoGradGuard no_grad;
    const double norm = norm_of(gradients.buffer) / workload.accumulation;
    if (!std::isfinite(norm)) throw std::runtime_error("the gradient is not finite");
    double divide_by = workload.accumulation;
    if (workload.clip) divide_by /= std::min(1.0, max_grad_norm / (norm + 1e-6));
    *divisor.data_ptr<float>() = static_cast<float>(divide_by);
    const double rate = workload.everything ? lr * schedule.factor(update) : lr;
    *steps[0].data_ptr<float>() += 1;
    at::_fused_adamw_(weight, gradient, exp_avg, exp_avg_sq, {}, steps, rate, 0.9, 0.999, weight_decay, 1e-8,
                      false, false, divide_by == 1 ? std::optional<Tensor>() : divisor);
    gradients.buffer.zero_();
    if (averaged_model) average.buffer.lerp_(weights.buffer, 1 - ema_decay);
    ++update;
    if (!everything) continue;
    window_loss = loss_sum / static_cast<double>(samples);
    everything->after_update(update, window_loss, rate, [&](const std::filesystem::path& folder) {
      torch::save(std::vector<Tensor>{weight[0], exp_avg[0], exp_avg_sq[0], average.buffer, steps[0]},
                  (folder / "last.pt").string());
    });
    if (update % log_every == 0) loss_sum = 0, samples = 0;
  }
}

void train_stock(Job& job) {
  const auto& workload = job.workload;
  const auto model = make_net(workload);
  const auto averaged_model = make_net(workload);
  const auto batches = training_batches(workload);
  const auto parameters = model->parameters();
  const auto averages = averaged_model->parameters();
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(lr).weight_decay(weight_decay));
  std::optional<Everything> everything;
  if (workload.everything) everything.emplace(workload, *averaged_model);
  std::int64_t update = 0;
  model->train();
  for (std::size_t i = 0; update < job.updates; ++i) {
    job.begin_microbatch();
    const auto& batch = batches[i % batches.size()];
    const auto loss = at::cross_entropy_loss(model->forward(batch.data), batch.target);
    job.see(loss);
    (workload.accumulation > 1 ? loss / workload.accumulation : loss).backward();
    if ((i + 1) % static_cast<std::size_t>(workload.accumulation) != 0) continue;

    if (workload.clip) nn::utils::clip_grad_norm_(parameters, max_grad_norm);
    const double rate = workload.everything ? lr * schedule.factor(update) : lr;
    if (workload.everything) optimizer.param_groups()[0].options().set_lr(rate);
    optimizer.step();
    optimizer.zero_grad();
    if (workload.average) {
      const torch::NoGradGuard no_grad;
      for (std::size_t k = 0; k < parameters.size(); ++k) averages[k].lerp_(parameters[k], 1 - ema_decay);
    }
    ++update;
    if (!everything) continue;
    everything->after_update(update, loss.item<double>(), rate, [&](const std::filesystem::path& folder) {
      torch::save(parameters, (folder / "model.pt").string());
      torch::save(averages, (folder / "average.pt").string());
      torch::save(optimizer, (folder / "optimizer.pt").string());
    });
  }
}

/// Forward and backward alone, from flat weights into flat gradients that are there already.
void train_not_at_all(Job& job) {
  const auto model = make_net(job.workload);
  const auto batches = training_batches(job.workload);
  const auto parameters = model->parameters();
  const FlatBuffer weights(parameters), gradients(parameters);
  weights.take(parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = gradients.view(i, parameters[i]);
  }
  for (std::int64_t i = 0; i < job.updates * job.workload.accumulation; ++i) {
    job.begin_microbatch();
    const auto& batch = batches[static_cast<std::size_t>(i) % batches.size()];
    at::cross_entropy_loss(model->forward(batch.data), batch.target).backward();
  }
}

void train(Job& job, const std::string& way) {
  if (way == "trainer") return train_with_trainer(job);
  if (way == "hooked") return train_with_trainer(job, empty_hooks(std::make_index_sequence<20>()));
  if (way == "flat") return train_flat(job);
  if (way == "stock") return train_stock(job);
  if (way == "forward_backward") return train_not_at_all(job);
  throw std::invalid_argument("no way " + way);
}

struct Rows : torch::data::datasets::Dataset<Rows> {
  Tensor data, target;
  Rows(Tensor data, Tensor target) : data(std::move(data)), target(std::move(target)) {}
  torch::data::Example<> get(std::size_t i) override {
    return {data[static_cast<std::int64_t>(i)], target[static_cast<std::int64_t>(i)]};
  }
  [[nodiscard]] std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(data.size(0));
  }
};

template <class Loader>
void read_all(Loader& loader, Stopwatch& stopwatch, std::int64_t batches) {
  while (true) {
    for (auto& batch : loader) {
      (void)batch;
      stopwatch.tick();
      if (--batches == 0) return;
    }
  }
}

void read_batches(const std::string& of, Stopwatch& stopwatch, std::int64_t batches) {
  torch::manual_seed(0);
  const auto data = torch::randn({60'000, 784}), target = torch::randint(10, {60'000}, torch::kLong);
  if (of == "lockstep") {
    ls::DataLoader loader(ls::TensorDataset(data, target), {.batch_size = 32, .shuffle = true});
    return read_all(loader, stopwatch, batches);
  }
  const auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      Rows(data, target).map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions().batch_size(32));
  read_all(*loader, stopwatch, batches);
}

std::int64_t peak_memory_in_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
  }
  throw std::runtime_error("/proc/self/status does not say VmHWM");
}

/// What a request says of a run, after its counts.
Job read_job(std::istream& words, const std::string& name, const std::string& way, std::int64_t updates) {
  Job job{.workload = workload(name), .updates = updates};
  int rank = 0, ranks = 1;
  std::string meeting_point;
  if (!(words >> rank >> ranks >> meeting_point)) return job;
  if (way == "trainer") {
    job.launch = {.rank = rank, .world_size = ranks, .local_rank = rank, .meeting_point = meeting_point};
  } else if (way == "flat") {
    job.workload.accumulation *= ranks;
  } else {
    throw std::invalid_argument(way + " knows no ranks");
  }
  return job;
}

nlohmann::json answer(const std::string& request) {
  std::istringstream words(request);
  std::string what, name, way;
  std::int64_t warm = 0, count = 0, window = 1;
  words >> what;
  if (what == "info") {
    return {{"capability", at::get_cpu_capability()},
            {"threads", at::get_num_threads()},
            {"torch", TORCH_VERSION}};
  }
  if (what == "resume") {
    words >> name;
    resume_and_tell(name);
  }
  if (what == "beside") {
    words >> name >> count;
    const auto seconds = time_updates_beside_save(name, count);
    return {{"beside", seconds.beside}, {"alone", seconds.alone}};
  }
  words >> name >> way;
  if (what != "time") {
    words >> count;
    Job job = read_job(words, name, way, count);
    job.collect = what == "losses";
    train(job, way);
    if (what == "memory") return {{"peak", peak_memory_in_kib()}};
    return {{"losses", job.losses}};
  }
  words >> warm >> count >> window;
  if (name.starts_with("update-")) return {{"seconds", time_update_part(name.substr(7), way, warm, count)}};
  if (name.starts_with("saves-")) return {{"seconds", time_saves(name, way, warm, count)}};
  const auto work = warm + count + 1;  // what comes after the last window closes it
  if (name == "batches") {
    Stopwatch stopwatch(warm, window);
    read_batches(way, stopwatch, work);
    return {{"seconds", stopwatch.seconds(window)}};
  }
  Job job = read_job(words, name, way, work);
  job.stopwatch = Stopwatch(warm * job.workload.accumulation, window * job.workload.accumulation);
  train(job, way);
  return {{"seconds", job.stopwatch.seconds(window)}};
}

}  // namespace
}  // namespace performance

int main(int argc, char** argv) {
  at::set_num_threads(1);
  std::string request;
  for (int i = 1; i < argc; ++i) request += std::string(argv[i]) + " ";
  while (argc > 1 || std::getline(std::cin, request)) {
    nlohmann::json reply;
    try {
      reply = performance::answer(request);
    } catch (const std::exception& error) {
      reply = {{"error", error.what()}};
    }
    std::cout << reply.dump() << std::endl;
    if (argc > 1) return reply.contains("error");
  }
}
