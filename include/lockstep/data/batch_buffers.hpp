// Memory for batches that is used again when nobody holds the batch made in it before.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace lockstep::detail {

/// Makes tensors in memory whose former tensors are gone.
///
/// New memory costs a page fault a page, which takes longer than filling a large batch does. Tensor, views
/// and what autograd saved share one storage, and the memory comes back when the last of them goes, in
/// whatever thread; so nothing that is still held is ever written to. A tensor may outlive this object, and
/// several threads may call it.
class BatchBuffers {
 public:
  /// `pin_memory`: from Torch's cache of page-locked memory instead, which knows what copies to CUDA still read.
  explicit BatchBuffers(bool pin_memory);

  /// A contiguous CPU tensor of any content, on 64 bytes.
  [[nodiscard]] at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type);

 private:
  struct Spares;
  struct Block;

  static void give_back(void* block) noexcept;

  bool pin_memory_;
  std::shared_ptr<Spares> spares_;
};

/// Lets empty_batch() of this thread use `buffers`, which must outlive it.
class BufferScope {
 public:
  explicit BufferScope(BatchBuffers& buffers);
  BufferScope(const BufferScope&) = delete;
  BufferScope& operator=(const BufferScope&) = delete;
  ~BufferScope();

 private:
  BatchBuffers* outer_;
};

/// A contiguous CPU tensor of any content: made by the innermost BufferScope's buffers, or new.
[[nodiscard]] at::Tensor empty_batch(at::IntArrayRef sizes, at::ScalarType type);

}  // namespace lockstep::detail
