#include "files/staging.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <new>
#include <vector>

namespace lockstep {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t large_page = std::size_t{2} << 20;

std::size_t rounded_up(std::size_t size, std::size_t unit) { return (size + unit - 1) / unit * unit; }

/// A stretch of one storage that is copied in one piece, with the tensors in it.
struct Range {
  at::Device device = at::kCPU;
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::size_t used = 0;  ///< bytes of the tensors in it
  std::vector<at::Tensor*> tensors = {};
  std::size_t place = 0;  ///< in the staging memory

  [[nodiscard]] std::size_t size() const { return end - begin; }
};

std::uintptr_t address(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.unsafeGetTensorImpl()->data());
}

void extend(Range& range, at::Tensor& tensor) {
  const auto begin = address(tensor);
  const auto end = begin + tensor.nbytes();
  range.device = tensor.device();
  range.begin = range.tensors.empty() ? begin : std::min(range.begin, begin);
  range.end = range.tensors.empty() ? end : std::max(range.end, end);
  range.used += tensor.nbytes();
  range.tensors.push_back(&tensor);
}

/// One range for each storage, or where the tensors are only a small part of theirs, one for each tensor.
std::vector<Range> ranges_of(const std::vector<at::Tensor*>& tensors) {
  std::vector<Range> by_storage;
  std::map<const void*, std::size_t> known;
  for (auto* tensor : tensors) {
    const auto [place, added] = known.try_emplace(tensor->storage().unsafeGetStorageImpl(), by_storage.size());
    if (added) by_storage.emplace_back();
    extend(by_storage[place->second], *tensor);
  }
  std::vector<Range> ranges;
  for (auto& range : by_storage) {
    if (range.size() <= range.used + range.used / 4) {
      ranges.push_back(std::move(range));
      continue;
    }
    for (auto* tensor : range.tensors) extend(ranges.emplace_back(), *tensor);
  }
  return ranges;
}

/// Gives every range its place, at the offset from a cache line that it has in its storage: vector instructions like
/// source and destination alike. Returns the size of all.
std::size_t place_all(std::vector<Range>& ranges) {
  std::size_t size = 0;
  for (auto& range : ranges) {
    range.place = rounded_up(size, alignment) + range.begin % alignment;
    size = range.place + range.size();
  }
  return size;
}

at::Tensor bytes_of(const Range& range) {
  const auto& first = *range.tensors.front();
  const auto offset = static_cast<std::int64_t>(
      range.begin - reinterpret_cast<std::uintptr_t>(first.storage().data()));
  at::Tensor bytes = at::empty({0}, first.options().dtype(at::kByte));
  return bytes.set_(first.storage(), offset, {static_cast<std::int64_t>(range.size())}, {1});
}

void copy(const std::vector<Range>& ranges, std::byte* memory) {
  for (const auto& range : ranges) {
    std::byte* const destination = memory + range.place;
    if (range.device.is_cpu()) {
      std::memcpy(destination, reinterpret_cast<const void*>(range.begin), range.size());
    } else {
      at::from_blob(destination, {static_cast<std::int64_t>(range.size())}, at::kByte).copy_(bytes_of(range));
    }
    for (auto* tensor : range.tensors) {
      *tensor = at::from_blob(destination + (address(*tensor) - range.begin), tensor->sizes(), tensor->strides(),
                              tensor->options().device(at::kCPU));
    }
  }
}

}  // namespace

Staging::~Staging() {
  if (memory_ != nullptr) ::munmap(memory_, capacity_);
}

void Staging::reserve(std::size_t size) {
  if (size <= capacity_) return;
  if (memory_ != nullptr) ::munmap(memory_, capacity_);
  memory_ = nullptr;
  capacity_ = rounded_up(size, large_page);
  void* const memory = ::mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    capacity_ = 0;
    throw std::bad_alloc();
  }
  // Only asks: without large pages it is slower and as right.
  (void)::madvise(memory, capacity_, MADV_HUGEPAGE);
  memory_ = static_cast<std::byte*>(memory);
}

void Staging::reserve_pinned(std::size_t size) {
  if (pinned_.defined() && size <= pinned_.nbytes()) return;
  pinned_.reset();
  pinned_ = at::empty({static_cast<std::int64_t>(rounded_up(size, large_page))},
                      at::TensorOptions(at::kByte).pinned_memory(true));
}

Checkpoint Staging::stage(Checkpoint checkpoint) {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor*> host;
  std::vector<at::Tensor*> cuda;
  for (auto* tensors : {&checkpoint.model, &checkpoint.ema, &checkpoint.optimizer, &checkpoint.objective,
                        &checkpoint.registered, &checkpoint.rank}) {
    for (auto& [name, tensor] : *tensors) {
      if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.numel() == 0) continue;
      // Here and not while it is written: only this thread may use Torch's pool of threads.
      tensor = tensor.detach().resolve_neg().contiguous();
      (tensor.is_cuda() ? cuda : host).push_back(&tensor);
    }
  }
  auto host_ranges = ranges_of(host);
  auto cuda_ranges = ranges_of(cuda);
  reserve(place_all(host_ranges));
  copy(host_ranges, memory_);
  if (!cuda.empty()) {
    reserve_pinned(place_all(cuda_ranges));
    copy(cuda_ranges, static_cast<std::byte*>(pinned_.mutable_data_ptr()));
  }
  return checkpoint;
}

}  // namespace lockstep
