#include "ranks/process_group.hpp"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/rank_messages.hpp"
#include "ranks/network_threads.hpp"
#include "ranks/detached.hpp"
#include "ranks/local_address.hpp"
#include "ranks/meeting.hpp"
#include "ranks/nccl_backend.hpp"
#include "ranks/summing_vote.hpp"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

using Work = c10::intrusive_ptr<c10d::Work>;
using Devices = decltype(c10d::ProcessGroupGloo::Options::devices);

/// Larger tensors are broadcast alone, smaller ones together in buffers of about this size.
constexpr std::int64_t buffer_bytes = 16 << 20;
/// Every tensor begins in a buffer where any type may.
constexpr std::int64_t alignment = 64;
/// Messages of sums under way are told apart by so many tags, in turn.
constexpr int tags_of_sums = 1 << 20;

class Gloo final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void close() {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::start:
      return "start";
    case Phase::window:
      return "window";
    case Phase::optimizer_step:
      return "optimizer step";
    case Phase::requests:
      return "requests of hooks";
    case Phase::evaluation:
      return "evaluation";
    case Phase::checkpoint:
      return "checkpoint";
    case Phase::main_process_first:
      return "main process first";
    case Phase::run_end:
      break;
  }
  return "end of the run";
}

/// What one rank is about to do, for the comparison of the order and for messages.
struct Operation {
  enum class Kind : std::int64_t { vote, exchange, broadcast, sum, barrier };
  Kind kind;
  Phase phase = Phase::start;
  std::int64_t bytes = 0;
  std::int64_t count = 0;
  std::int64_t number = 0;

  bool operator==(const Operation&) const = default;

  [[nodiscard]] std::string text() const {
    switch (kind) {
      case Kind::vote:
        return message::during_vote(name_of(phase));
      case Kind::exchange:
        return message::during_exchange();
      case Kind::broadcast:
        return message::during_broadcast(count, bytes);
      case Kind::sum:
        return message::during_sum(count, bytes);
      case Kind::barrier:
        break;
    }
    return message::during_barrier();
  }
};

at::Tensor bytes_of(const void* data, std::size_t size) {
  return at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(size)}, at::kByte);
}

at::Tensor bytes_of(const at::Tensor& contiguous) { return contiguous.view({-1}).view(at::kByte); }

bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

/// The connections of one group of ranks. A run has two: one for the loop, one for what happens inside a
/// Step.
class ProcessGroup final : public Collectives {
 public:
  ProcessGroup(std::shared_ptr<Meeting> meeting, const GroupOptions& options, std::string name,
               Devices devices = {});
  ~ProcessGroup() override;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] int rank() const override { return meeting_->launch().rank; }
  [[nodiscard]] int world_size() const override { return meeting_->launch().world_size; }
  [[nodiscard]] bool usable() const override { return gloo_ != nullptr; }

  std::chrono::milliseconds set_timeout(std::chrono::milliseconds timeout) override;
  [[nodiscard]] std::vector<Vote> vote(const Vote& mine) override;
  void sum_with_vote(const at::Tensor& tensor) override;
  [[nodiscard]] std::vector<std::string> exchange(const std::string& mine) override;
  void broadcast(const std::vector<at::Tensor>& tensors) override;
  [[nodiscard]] std::unique_ptr<PendingSum> sum(const at::Tensor& tensor) override;
  void barrier() override;
  [[nodiscard]] Collectives& inside_step() override { return inside_ ? *inside_ : *this; }
  void abandon(const std::string& reason) noexcept override;

 private:
  class Sum;
  enum class Manner { in_order, at_once };

  void begin(Operation operation);
  [[nodiscard]] at::Tensor gather(const at::Tensor& mine, const Operation& during);
  void broadcast_bytes(at::Tensor bytes, const Operation& during);
  void finish(const Work& work, bool on_device);
  [[nodiscard]] at::Tensor spare_like(const at::Tensor& tensor);
  [[nodiscard]] int next_tag();
  [[nodiscard]] bool sums(at::ScalarType type, const Operation& during);
  [[nodiscard]] c10d::Backend& backend_of(const at::Tensor& tensor);
  void guarded(const Operation& during, auto&& call);
  [[noreturn]] void lose(const Operation& during, const std::exception& error);
  void close(Manner manner);
  [[nodiscard]] std::string text_of(const Operation& operation) const;

  std::shared_ptr<Meeting> meeting_;
  GroupOptions options_;
  std::string name_;
  int exceptions_ = std::uncaught_exceptions();
  c10::intrusive_ptr<Gloo> gloo_;  ///< null after the group was lost or abandoned
  c10::intrusive_ptr<c10d::Backend> nccl_;
  std::optional<RankError> lost_;  ///< why gloo_ is null
  std::optional<Detached> closing_;
  std::map<at::ScalarType, bool> native_sums_;
  std::optional<SummingVote> summing_vote_;
  at::Tensor summed_with_vote_;  ///< by the next vote; undefined: nothing
  std::vector<at::Tensor> spare_;  ///< where the last sums of two received; new memory costs as much as a copy
  int next_tag_ = 0;
  std::int64_t operations_ = 0;
  std::unique_ptr<ProcessGroup> inside_;
};

class ProcessGroup::Sum final : public PendingSum {
 public:
  Sum(ProcessGroup& group, Operation during, at::Tensor result, at::Tensor sent)
      : group_(group), during_(during), result_(std::move(result)), sent_(std::move(sent)) {
    group_.guarded(during_, [&] {
      std::vector<at::Tensor> list{sent_};
      if (group_.world_size() > 2 || !sent_.is_cpu()) {
        works_ = {group_.backend_of(sent_).allreduce(list)};
        return;
      }
      // Each of two ranks sends the other all it has and adds what comes. An all-reduce sends as many bytes, in two steps
      // of which one waits for the other.
      const int other = 1 - group_.rank();
      const int tag = group_.next_tag();
      theirs_ = group_.spare_like(sent_);
      works_ = {group_.gloo_->send(list, other, tag)};
      list.front() = theirs_;
      works_.push_back(group_.gloo_->recv(list, other, tag));
    });
  }

  void wait() override {
    if (works_.empty()) return;
    group_.guarded(during_, [&] {
      for (const auto& work : works_) group_.finish(work, sent_.is_cuda());
    });
    works_.clear();
    if (theirs_.defined()) {
      sent_.add_(theirs_);
      group_.spare_.push_back(std::move(theirs_));
    }
    if (!sent_.is_same(result_)) result_.copy_(sent_);
  }

 private:
  ProcessGroup& group_;
  Operation during_;
  at::Tensor result_;
  at::Tensor sent_;  ///< `result_` itself unless the back end cannot sum it
  at::Tensor theirs_;  ///< what comes from the only other rank; else undefined
  std::vector<Work> works_;
};

ProcessGroup::ProcessGroup(std::shared_ptr<Meeting> meeting, const GroupOptions& options, std::string name,
                           Devices devices)
    : meeting_(std::move(meeting)), options_(options), name_(std::move(name)) {
  const NetworkThreads network_threads;
  const bool is_main = devices.empty();
  const auto& launch = meeting_->launch();
  try {
    auto settings =
        c10d::ProcessGroupGloo::Options::create(std::max(meeting_->time_left(), milliseconds(100)));
    if (is_main) {
      // Without a word of the user's, Gloo takes what the machine's own name resolves to.
      devices = std::getenv("GLOO_SOCKET_IFNAME")
                    ? c10d::ProcessGroupGloo::Options::create_default()->devices
                    : Devices{c10d::ProcessGroupGloo::createDeviceForHostname(address_for_others(launch))};
    }
    settings->devices = devices;
    gloo_ = c10::make_intrusive<Gloo>(meeting_->store_of(name_), launch.rank, launch.world_size, settings);
    gloo_->setTimeout(options_.timeout);
    if (options_.device.is_cuda()) {
      nccl_ =
          nccl_backend(meeting_->store_of(name_ + "/nccl"), launch.rank, launch.world_size, options_.timeout);
    }
  } catch (const std::exception& error) {
    meeting_->fail_to_join(meeting_->roll_call(name_).missing, cause_of(error));
  }
  if (!is_main) return;
  inside_ = std::make_unique<ProcessGroup>(meeting_, options_, name_ + "/step", devices);
  // A rank that failed from here on while another one still connects would spoil its start.
  const char connected = 1;
  (void)gather(bytes_of(&connected, 1), {.kind = Operation::Kind::barrier});
}

ProcessGroup::~ProcessGroup() {
  if (usable() && std::uncaught_exceptions() > exceptions_) abandon(message::left_by_an_error());
  for (auto* group : {inside_.get(), this}) {
    if (group && group->usable()) group->close(Manner::in_order);
  }
  // The end of the process should not meet a thread that ends connections, at about 10 ms for each.
  if (closing_) (void)closing_->within(std::chrono::seconds(1));
}

void ProcessGroup::begin(Operation operation) {
  if (!usable()) throw *lost_;
  if (!options_.check_order) return;
  operation.number = ++operations_;
  const auto all = gather(bytes_of(&operation, sizeof operation), operation);
  std::vector<std::string> calls;
  bool alike = true;
  for (int other = 0; other < world_size(); ++other) {
    Operation theirs{};
    std::memcpy(&theirs, all[other].const_data_ptr(), sizeof theirs);
    alike = alike && theirs == operation;
    calls.push_back(message::call_of_rank(other, theirs.number, text_of(theirs)));
  }
  if (!alike) throw message::ranks_out_of_order(calls);
}

milliseconds ProcessGroup::set_timeout(milliseconds timeout) {
  if (gloo_) gloo_->setTimeout(timeout);
  return std::exchange(options_.timeout, timeout);
}

std::vector<Vote> ProcessGroup::vote(const Vote& mine) {
  const Operation during{.kind = Operation::Kind::vote, .phase = mine.phase};
  begin(during);
  if (summed_with_vote_.defined()) {
    const auto tensor = std::exchange(summed_with_vote_, {});
    std::vector<Vote> votes;
    guarded(during, [&] { votes = summing_vote_->vote(*gloo_, mine, tensor); });
    return votes;
  }
  const auto all = gather(bytes_of(&mine, sizeof mine), during);
  std::vector<Vote> votes(static_cast<std::size_t>(world_size()));
  std::memcpy(votes.data(), all.const_data_ptr(), votes.size() * sizeof(Vote));
  return votes;
}

void ProcessGroup::sum_with_vote(const at::Tensor& tensor) {
  guarded({.kind = Operation::Kind::vote, .phase = Phase::window}, [&] {
    if (!summing_vote_ || !summing_vote_->fits(tensor)) summing_vote_.emplace(rank(), world_size(), tensor);
    summing_vote_->expect(*gloo_);
  });
  summed_with_vote_ = tensor;
}

std::vector<std::string> ProcessGroup::exchange(const std::string& mine) {
  const Operation during{.kind = Operation::Kind::exchange};
  begin(during);
  const auto length = static_cast<std::int64_t>(mine.size());
  const auto lengths = gather(bytes_of(&length, sizeof length), during).view(at::kLong);
  const auto longest = lengths.max().item<std::int64_t>();
  std::vector<std::string> all(static_cast<std::size_t>(world_size()));
  if (longest == 0) return all;
  auto padded = mine;
  padded.resize(static_cast<std::size_t>(longest));
  const auto bytes = gather(bytes_of(padded.data(), padded.size()), during);
  for (int other = 0; other < world_size(); ++other) {
    all[static_cast<std::size_t>(other)].assign(static_cast<const char*>(bytes[other].const_data_ptr()),
                                                lengths[other].item().to<std::size_t>());
  }
  return all;
}

void ProcessGroup::broadcast(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  Operation during{.kind = Operation::Kind::broadcast, .count = static_cast<std::int64_t>(tensors.size())};
  for (const auto& tensor : tensors) during.bytes += static_cast<std::int64_t>(tensor.nbytes());
  begin(during);

  std::map<bool, std::vector<at::Tensor>> waiting;  // by whether they are on the CPU
  std::map<bool, std::int64_t> waiting_bytes;
  const auto padded = [](const at::Tensor& tensor) {
    return (static_cast<std::int64_t>(tensor.nbytes()) + alignment - 1) / alignment * alignment;
  };
  const auto send = [&](bool on_cpu) {
    auto& group = waiting[on_cpu];
    if (group.empty()) return;
    const auto buffer =
        at::empty({waiting_bytes[on_cpu]}, group.front().options().dtype(at::kByte).requires_grad(false));
    std::vector<at::Tensor> places;
    std::int64_t begin = 0;
    for (const auto& tensor : group) {
      const auto bytes = buffer.narrow(0, begin, static_cast<std::int64_t>(tensor.nbytes()));
      places.push_back(bytes.view(tensor.scalar_type()).view(tensor.sizes()));
      begin += padded(tensor);
    }
    if (rank() == 0) at::_foreach_copy_(places, group);
    broadcast_bytes(buffer, during);
    if (rank() != 0) at::_foreach_copy_(group, places);
    group.clear();
    waiting_bytes[on_cpu] = 0;
  };

  for (const auto& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    if (static_cast<std::int64_t>(tensor.nbytes()) >= buffer_bytes) {
      const auto contiguous = tensor.contiguous();
      broadcast_bytes(bytes_of(contiguous), during);
      if (rank() != 0 && !contiguous.is_same(tensor)) tensor.copy_(contiguous);
      continue;
    }
    const bool on_cpu = tensor.is_cpu();
    waiting[on_cpu].push_back(tensor.detach());
    waiting_bytes[on_cpu] += padded(tensor);
    if (waiting_bytes[on_cpu] >= buffer_bytes) send(on_cpu);
  }
  send(true);
  send(false);
}

std::unique_ptr<PendingSum> ProcessGroup::sum(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const Operation during{.kind = Operation::Kind::sum,
                         .bytes = static_cast<std::int64_t>(tensor.nbytes()),
                         .count = tensor.numel()};
  begin(during);
  auto sent = tensor.detach();
  if (!sent.is_cpu() && !nccl_) sent = sent.cpu();
  if (sent.is_cpu() && !sums(sent.scalar_type(), during)) sent = sent.to(at::kFloat);
  const bool in_place = sent.is_alias_of(tensor);
  return std::make_unique<Sum>(*this, during, in_place ? sent : tensor.detach(), sent);
}

at::Tensor ProcessGroup::spare_like(const at::Tensor& tensor) {
  const auto found = std::find_if(spare_.begin(), spare_.end(), [&](const at::Tensor& spare) {
    return spare.numel() == tensor.numel() && spare.scalar_type() == tensor.scalar_type();
  });
  if (found == spare_.end()) return at::empty_like(tensor);
  at::Tensor spare = std::move(*found);
  spare_.erase(found);
  return spare;
}

int ProcessGroup::next_tag() {
  next_tag_ = next_tag_ % tags_of_sums + 1;
  return SummingVote::tag + next_tag_;
}

void ProcessGroup::barrier() {
  const Operation during{.kind = Operation::Kind::barrier};
  begin(during);
  const char here = 0;
  (void)gather(bytes_of(&here, 1), during);
}

void ProcessGroup::abandon(const std::string& reason) noexcept {
  if (!usable()) return;
  if (inside_) inside_->abandon(reason);
  lost_ = message::rank_lost(message::during_all(), {rank()}, reason);
  meeting_->give_reason(name_, reason);
  close(Manner::at_once);
}

/// Rows in rank order of bytes on the CPU.
at::Tensor ProcessGroup::gather(const at::Tensor& mine, const Operation& during) {
  auto all = at::empty({world_size(), mine.size(0)}, at::kByte);
  auto flat = all.view({-1});
  auto input = mine;
  guarded(during, [&] { gloo_->_allgather_base(flat, input)->wait(); });
  return all;
}

void ProcessGroup::broadcast_bytes(at::Tensor bytes, const Operation& during) {
  if (!bytes.is_cpu() && !nccl_) {
    auto on_host = bytes.cpu();
    broadcast_bytes(on_host, during);
    bytes.copy_(on_host);
    return;
  }
  std::vector<at::Tensor> list{bytes};
  guarded(during, [&] { finish(backend_of(bytes).broadcast(list), !bytes.is_cpu()); });
}

/// NCCL's own wait() returns before the work is done, so that an error would be seen by nobody.
void ProcessGroup::finish(const Work& work, bool on_device) {
  if (on_device) {
    const auto until = std::chrono::steady_clock::now() + options_.timeout;
    while (!work->isCompleted()) {
      if (std::chrono::steady_clock::now() > until)
        throw std::runtime_error(message::no_answer_in(options_.timeout));
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    if (!work->isSuccess()) std::rethrow_exception(work->exception());
  }
  work->wait();
}

/// Found out once per type. A back end that does not know a type says so before it sends anything. Two ranks need none,
/// and round once as float32 would.
bool ProcessGroup::sums(at::ScalarType type, const Operation& during) {
  if (!is_half(type) || world_size() == 2) return true;
  if (const auto known = native_sums_.find(type); known != native_sums_.end()) return known->second;
  char mine = options_.native_half_sums;
  if (mine) {
    std::vector<at::Tensor> one{at::ones({1}, type)};
    try {
      gloo_->allreduce(one)->wait();
      mine = one.front().item<float>() == static_cast<float>(world_size());
    } catch (const std::exception&) {
      mine = 0;
    }
  }
  const auto all = gather(bytes_of(&mine, 1), during);
  return native_sums_[type] = all.min().item<int>() == 1;
}

c10d::Backend& ProcessGroup::backend_of(const at::Tensor& tensor) {
  return tensor.is_cpu() ? static_cast<c10d::Backend&>(*gloo_) : *nccl_;
}

void ProcessGroup::guarded(const Operation& during, auto&& call) {
  const NoPipeSignal no_pipe_signal;
  try {
    if (!usable()) throw *lost_;
    call();
  } catch (const RankError&) {
    throw;
  } catch (const std::exception& error) {
    lose(during, error);
  }
}

void ProcessGroup::lose(const Operation& during, const std::exception& error) {
  // Whoever still waits for this rank notices, and answers the roll call too.
  close(Manner::at_once);
  const auto [missing, reason] = meeting_->roll_call(name_);
  lost_ = message::rank_lost(text_of(during), missing, reason.empty() ? cause_of(error) : reason);
  if (inside_ && inside_->usable()) {
    inside_->lost_ = lost_;
    inside_->close(Manner::at_once);
  }
  throw *lost_;
}

std::string ProcessGroup::text_of(const Operation& operation) const {
  return inside_ ? operation.text() : message::inside_a_step(operation.text());
}

/// On a thread of its own: what is under way ends only when its peers notice or its time is over.
void ProcessGroup::close(Manner manner) {
  closing_.emplace([gloo = std::exchange(gloo_, {}), nccl = std::exchange(nccl_, {}), manner] {
    if (manner == Manner::in_order) return;
    gloo->close();
    if (nccl) nccl->abort();
  });
}

}  // namespace

std::shared_ptr<Collectives> join_ranks(const Launch& launch, const GroupOptions& options) {
  return std::make_shared<ProcessGroup>(std::make_shared<Meeting>(launch, options.timeout), options, "ranks");
}

}  // namespace lockstep
