#include "lockstep/data/batch_buffers.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace lockstep::detail {

namespace {

thread_local BatchBuffers* current_buffers = nullptr;

// Enough for the tensors of a few batches. Those that threads have loaded ahead are held, not spare.
constexpr std::size_t kMaxSpares = 16;

}  // namespace

struct BatchBuffers::Block {
  c10::DataPtr memory;
  std::size_t bytes;
  std::weak_ptr<Spares> home;
};

struct BatchBuffers::Spares {
  std::mutex mutex;
  std::vector<std::unique_ptr<Block>> blocks;  // the longest unused first

  std::unique_ptr<Block> take(std::size_t bytes) {
    const std::lock_guard lock(mutex);
    const auto fits = [bytes](const auto& block) {
      return block->bytes >= bytes && block->bytes / 2 <= bytes;  // targets leave the memory of images alone
    };
    // The one given back last is the likeliest to be in cache.
    const auto found = std::find_if(blocks.rbegin(), blocks.rend(), fits);
    if (found == blocks.rend()) return nullptr;
    auto block = std::move(*found);
    blocks.erase(std::next(found).base());
    return block;
  }
};

BatchBuffers::BatchBuffers(bool pin_memory) : pin_memory_(pin_memory), spares_(std::make_shared<Spares>()) {
  spares_->blocks.reserve(kMaxSpares);
}

void BatchBuffers::give_back(void* context) noexcept {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  const auto spares = block->home.lock();
  if (!spares) return;
  std::unique_ptr<Block> dropped;  // frees its memory outside of the lock
  const std::lock_guard lock(spares->mutex);
  auto& blocks = spares->blocks;
  if (blocks.size() == kMaxSpares) {
    dropped = std::move(blocks.front());
    blocks.erase(blocks.begin());
  }
  blocks.push_back(std::move(block));
}

at::Tensor BatchBuffers::empty(at::IntArrayRef sizes, at::ScalarType type) {
  const std::size_t bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  if (bytes == 0 || pin_memory_) return at::empty(sizes, at::dtype(type).pinned_memory(pin_memory_));
  auto block = spares_->take(bytes);
  if (!block) {
    block = std::make_unique<Block>(Block{c10::GetCPUAllocator()->allocate(bytes), bytes, spares_});
  }
  void* const memory = block->memory.get();
  return at::for_blob(memory, sizes)
      .context(block.release(), &give_back)
      .allocator(c10::GetCPUAllocator())
      .resizeable_storage()
      .target_device(at::kCPU)
      .options(type)
      .make_tensor();
}

BufferScope::BufferScope(BatchBuffers& buffers) : outer_(std::exchange(current_buffers, &buffers)) {}

BufferScope::~BufferScope() { current_buffers = outer_; }

at::Tensor empty_batch(at::IntArrayRef sizes, at::ScalarType type) {
  return current_buffers != nullptr ? current_buffers->empty(sizes, type) : at::empty(sizes, type);
}

}  // namespace lockstep::detail
