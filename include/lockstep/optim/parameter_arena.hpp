// Where the trained parameters and their gradients lie: views of flat buffers, so that an update is few
// passes over contiguous memory, however many parameters there are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// `flat`: views of flat buffers. `separate`: every parameter in storage of its own, as the module made it.
enum class ParameterLayout { flat, separate };

/// Holds the parameters of an optimizer and their gradients, and knows which of them got a gradient in a
/// window.
///
/// Flat, the parameters of one device and type share one buffer, and so do their gradients. A group of the
/// optimizer is a contiguous range of it. Each parameter is a view with the strides it had, on a multiple of
/// 64 bytes, and its
/// `.grad` is the view of the same place among the gradients; what lies between them is zero. The tensors
/// themselves stay the module's: nobody who holds one notices.
///
/// Ownership: refers to the parameters. When it goes they get storage of their own again, and no gradient.
/// Errors: ConfigError `parameter-not-flat` for parameters that overlap in memory, or are sparse or not real.
class ParameterArena {
 public:
  /// What one operation of an optimizer can cover: parameters of one group, device and type.
  struct Block {
    std::size_t group = 0;
    std::size_t first = 0;    ///< its members: from this one
    std::size_t last = 0;     ///< up to but not including this one
    at::Tensor parameters;    ///< flat: [elements]; separate: the one parameter
    at::Tensor gradients;     ///< of the same shape; separate: undefined without a gradient
    std::size_t buffer = 0;   ///< flat: where it lies in buffers()
    std::int64_t offset = 0;  ///< and from which element on
  };

  struct Member {
    std::string name;
    at::Tensor parameter;
    std::size_t block = 0;
    std::int64_t offset = 0;  ///< flat: its first element in the block
    bool touched = false;     ///< it got a gradient in the window that was closed last
  };

  struct Buffer {
    at::Tensor parameters;  ///< [elements]
    at::Tensor gradients;   ///< [elements]
  };

  /// `groups`: each parameter once, no two of them sharing memory.
  ParameterArena(const std::vector<NamedTensors>& groups, ParameterLayout layout);
  ~ParameterArena();
  ParameterArena(const ParameterArena&) = delete;
  ParameterArena& operator=(const ParameterArena&) = delete;

  [[nodiscard]] ParameterLayout layout() const { return layout_; }
  [[nodiscard]] const std::vector<Block>& blocks() const { return blocks_; }
  /// Those of a block stand together, in the order of its group.
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  /// Empty in the separate layout.
  [[nodiscard]] const std::vector<Buffer>& buffers() const { return buffers_; }

  /// Before a window's first forward pass: gradients are zero, in the separate layout undefined.
  void open_window();
  /// After each backward pass: looks whether parameters and gradients still lie where they did. What was
  /// replaced by a tensor of the same shape and type is copied in and tied again. Errors: StepError
  /// `parameter-moved` (it has another shape, type or device; the one from before is back in place),
  /// `gradient-replaced` (a gradient that an earlier microbatch added to is gone).
  void after_backward();
  /// After the window's last backward pass: finds out which members were touched.
  void close_window();
  /// In the place of a window, for a loop of one's own: every member that has a gradient is touched.
  void take_gradients();
  /// Ties parameters again that were replaced outside of a window. Errors: StepError `parameter-moved`.
  void tie_parameters();

  /// After close_window(): these members count as touched too, since another rank touched them; where they have no
  /// gradient they get one of zeros. `members`: for each of members().
  void touch(const std::vector<bool>& members);

  /// Flat: the member's gradient is the view of its place, not a tensor that autograd put there instead.
  [[nodiscard]] bool gradient_lies(std::size_t member) const;

  /// After close_window().
  [[nodiscard]] bool all_touched() const { return all_touched_; }
  /// After close_window(): what holds the gradients, the flat buffers or each gradient that is there.
  [[nodiscard]] const std::vector<at::Tensor>& gradients() const { return gradients_; }
  /// The gradients of the flat buffers are zero already: the next window need not clear them.
  void gradients_are_zero() { zero_ = true; }

  /// As long as it lives, members that were not touched have no gradient, as an optimizer of Torch expects.
  class [[nodiscard]] HideUntouched {
   public:
    explicit HideUntouched(ParameterArena& arena);
    ~HideUntouched();
    HideUntouched(const HideUntouched&) = delete;
    HideUntouched& operator=(const HideUntouched&) = delete;

   private:
    ParameterArena& arena_;
  };

  /// How often parameters were tied again: what is derived from their values must be derived anew.
  [[nodiscard]] std::int64_t generation() const { return generation_; }

  /// `tensor`, of a block's shape and any type, seen as the member: its shape and strides.
  [[nodiscard]] at::Tensor view(const at::Tensor& of_block, const Member& member) const;

 private:
  struct Place {
    at::StorageImpl* storage = nullptr;  // of the parameters' buffer
    std::int64_t offset = 0;             // in the buffer
    at::Tensor gradient;                 // the view that belongs in .grad
    std::uint32_t opened_at = 0;         // its version when the window opened
    std::uint32_t seen = 0;              // its version after the last backward pass
    std::vector<std::int64_t> sizes, strides;
  };

  void lay_out();
  [[nodiscard]] bool lies(std::size_t member) const;
  void tie(std::size_t member);
  void take_gradient(std::size_t member);

  ParameterLayout layout_;
  std::vector<Member> members_;
  std::vector<Place> places_;  // of each member; empty in the separate layout
  std::vector<Block> blocks_;
  std::vector<Buffer> buffers_;
  std::vector<at::Tensor> gradients_;
  bool all_touched_ = false;
  bool zero_ = true;
  std::int64_t generation_ = 0;
};

}  // namespace lockstep
