#include "lockstep/tensors/autocast.hpp"

#include <ATen/autocast_mode.h>

namespace lockstep {

AutocastScope::AutocastScope(at::DeviceType device, at::ScalarType type)
    : device_(device),
      enabled_before_(at::autocast::is_autocast_enabled(device)),
      type_before_(at::autocast::get_autocast_dtype(device)) {
  at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(device, type);
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  at::autocast::decrement_nesting();
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, type_before_);
  at::autocast::clear_cache();
}

}  // namespace lockstep
