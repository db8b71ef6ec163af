// An update rule's state beside an arena's blocks, and the pass over them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.hpp"

namespace lockstep::detail {

/// Runs an Optimizer's rule over the blocks of an arena, piece by piece, so that a piece is stepped, averaged
/// and its gradient cleared while it is in cache. Refers to both.
class FlatUpdate {
 public:
  FlatUpdate(Optimizer& rule, ParameterArena& arena);

  [[nodiscard]] ParameterArena& arena() const { return arena_; }
  /// State tensors as the rule names them now; those that are there keep their values.
  void prepare();
  void run(const UpdatePass& pass);
  void take_back();
  void follow_parameters();

  [[nodiscard]] NamedTensors state() const;
  void load(const NamedTensors& state);
  /// The state that another one has for the same parameters.
  void adopt(const FlatUpdate& other);

 private:
  /// A block, or a part of it.
  struct Piece {
    at::Tensor parameters;
    at::Tensor master;  // what the rule steps: the parameters themselves, unless they are of half type
    at::Tensor gradients;
    std::vector<at::Tensor> state;
    at::Tensor average;  // undefined: there is none beside it
  };
  struct Block {
    std::vector<std::string> names;  // of the state
    Piece whole;
    std::vector<Piece> pieces;
    std::vector<std::int64_t> steps;  // of each member
    std::vector<std::int64_t> steps_before;  // the last update by a DeviceDecision
    at::Tensor step;
    std::optional<at::Tensor> divisor;
  };

  void cut(Block& own) const;
  [[nodiscard]] static Piece narrow(const Piece& piece, std::int64_t first, std::int64_t length);
  void use_average(const WeightAverage& average);
  [[nodiscard]] bool steps_as_one(std::size_t block) const;
  void step_runs(std::size_t block, const UpdatePass& pass, bool keep_gradients);
  void step(Block& own, std::size_t group, std::int64_t count, const Piece& piece, const UpdatePass& pass,
            bool keep_gradients);
  /// `device_weight`: defined, it is taken in the place of average_weight.
  static void finish(const Piece& piece, double average_weight, const at::Tensor& device_weight,
                     bool clear_gradients);
  /// `<field>` of one member, as views.
  [[nodiscard]] NamedTensors fields(const ParameterArena::Member& member) const;

  Optimizer& rule_;
  ParameterArena& arena_;
  std::vector<Block> blocks_;
  std::int64_t generation_;                           // of the arena, at the last look
  const at::StorageImpl* average_storage_ = nullptr;  // what the pieces have views of
};

}  // namespace lockstep::detail
