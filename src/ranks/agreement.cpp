#include "lockstep/ranks/agreement.hpp"

#include <c10/util/Exception.h>

#include <algorithm>

#include "base/rank_messages.hpp"

namespace lockstep {

std::string text_of(const std::exception_ptr& failure) {
  if (!failure) return {};
  try {
    std::rethrow_exception(failure);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

std::vector<Vote> Agreement::meet(Vote mine) {
  mine.failed = failure_ != nullptr;
  auto votes = collectives_->vote(mine);
  if (std::none_of(votes.begin(), votes.end(), [](const Vote& vote) { return vote.failed; })) return votes;

  const auto texts = collectives_->exchange(text_of(failure_));
  settled_ = true;
  throw_kept();
  std::vector<std::pair<int, std::string>> failures;
  for (std::size_t rank = 0; rank < votes.size(); ++rank) {
    if (votes[rank].failed) failures.emplace_back(static_cast<int>(rank), texts[rank]);
  }
  throw message::rank_failed(failures);
}

std::vector<std::string> Agreement::exchange(const std::string& mine) { return collectives_->exchange(mine); }

}  // namespace lockstep
