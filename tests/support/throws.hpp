// Which error does a callable throw?
#pragma once

#include <string>

#include "lockstep/base/error.hpp"

namespace lockstep::test {

/// The id of the Error of exactly this kind that `call` throws; "" if it throws none.
template <class Kind>
std::string thrown_id(auto&& call) {
  try {
    call();
  } catch (const Kind& error) {
    return error.id();
  }
  return "";
}

}  // namespace lockstep::test
