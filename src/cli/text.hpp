// Numbers, names and tables as the commands print them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::cli {

/// "3.2 MiB"
std::string size_text(std::uint64_t bytes);

/// Six digits that count.
std::string number_text(double value);

/// "[2, 3]"
std::string shape_text(const std::vector<std::int64_t>& shape);

/// A number, or the text of one that is not finite, as metrics.jsonl has it.
nlohmann::json number_json(double value);

/// What a file calls something, without what could steer a terminal.
std::string printable(const std::string& name);

/// "1 tensor", "2 tensors"
std::string count_text(std::uint64_t count, const std::string& noun);

/// The leaves of a document by their path, "groups.0.lr" say, in its order. Empty arrays and objects are leaves.
std::vector<std::pair<std::string, std::string>> leaves(const nlohmann::json& document);

/// Columns as wide as what is in them; the last one is not filled up.
class Table {
 public:
  enum class Align { left, right };

  explicit Table(std::vector<Align> columns) : columns_(std::move(columns)) {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// Each line begins with `indent`.
  void print(std::ostream& output, const std::string& indent) const;

 private:
  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace lockstep::cli
