#!/usr/bin/env bash
# Builds the library and its tests with the address and the undefined-behaviour sanitizer and runs them:
# unit tests and invariants, or what is named. About an hour on two idle cores. LibTorch is not
# instrumented.
#
#   bash tests/faults/sanitizers.sh [text_tests|tensor_tests|invariant_tests|fault_tests]...
#
# Settings: cmake/setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source cmake/setup.sh

[ $# -gt 0 ] && programs=("$@") || programs=(text_tests tensor_tests invariant_tests)
find_build_programs
find_torch
find_test_python

# vptr: LibTorch keeps to itself the type information that this check asks for.
sanitize="-fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined"
configure "$build_root/sanitizers" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" \
  -DCMAKE_CXX_FLAGS="$sanitize -fno-omit-frame-pointer" -DLOCKSTEP_TEST_PYTHON="$venv/bin/python"
cmake --build "$build_root/sanitizers" --target "${programs[@]}" || die "the build failed"

export LOCKSTEP_TEST_PYTHON=$venv/bin/python OMP_NUM_THREADS=1
# A size that a hostile file asks for is refused by an exception, as without the sanitizer.
export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
status=0
for program in "${programs[@]}"; do
  say "running $program"
  "$(find "$build_root/sanitizers/tests" -name "$program" -type f)" || status=1
done
exit "$status"
