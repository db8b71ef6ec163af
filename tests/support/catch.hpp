// The one way to Catch2: Torch first, then Catch with prefixed macros, since Torch defines CHECK of its own.
#pragma once

#define CATCH_CONFIG_PREFIX_ALL
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
