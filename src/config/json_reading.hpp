// What is known and what is wrong in a JSON document while it is read.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

using Pointer = nlohmann::json::json_pointer;

/// What one or more reads of a document found.
class JsonReading {
 public:
  enum class Missing { refused, keeps_value };

  struct Mistake {
    Pointer where;
    std::string problem;  ///< goes on from the pointer: "is missing, add it"
  };

  explicit JsonReading(Missing missing) : missing_(missing) {}

  [[nodiscard]] Missing missing() const { return missing_; }
  [[nodiscard]] const std::vector<Mistake>& mistakes() const { return mistakes_; }

  void know(const Pointer& where) { known_.push_back(where.to_string()); }
  void refuse(const Pointer& where, std::string problem) { mistakes_.push_back({where, std::move(problem)}); }
  [[nodiscard]] bool refused(const Pointer& where) const;
  void refuse_value(const nlohmann::json& value, const Pointer& where, const std::string& expected);

  /// Refuses every key of `document`, which stands at `where`, that is neither known nor on the way to a
  /// known one. What lies below a mistake is not looked at.
  void refuse_unknown(const nlohmann::json& document, const Pointer& where);

  /// By pointer, the text that a value was given as on a command line, so that 2024 can be a name too.
  std::map<std::string, std::string> texts;

 private:
  [[nodiscard]] std::string suggestion(const Pointer& parent, const std::string& key) const;

  Missing missing_;
  std::vector<Mistake> mistakes_;
  std::vector<std::string> known_;  ///< pointers, in the order of reading
};

}  // namespace lockstep
