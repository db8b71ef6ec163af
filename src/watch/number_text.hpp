// Numbers as a person reads them.
#pragma once

#include <string>

namespace lockstep {

/// Four digits that count, "0.8120", "12.34"; very large and very small ones with an exponent, "1.920e-05".
std::string number_text(double value);

/// "1:05", "2:00:00": minutes and seconds, hours where there are any.
std::string duration_text(double seconds);

}  // namespace lockstep
