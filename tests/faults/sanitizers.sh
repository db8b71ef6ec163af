#!/usr/bin/env bash
# Builds the library and its tests with the address and the undefined-behaviour sanitizer and runs them:
# unit tests and invariants, or what is named. Half an hour on two idle cores, most of it compiling. LibTorch is not
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
# Two tests look at the size of the process, which the sanitizer's hoard of freed memory makes grow.
excluded=("~losses and metrics with a graph do not keep it alive" "~of metrics only a sum and a count is kept")
cd "$build_root/sanitizers"  # names of source files may be relative to it, where ccache makes them so
declare -A running
for program in "${programs[@]}"; do
  log=$build_root/sanitizers/$program.log
  say "running $program, see $log"
  "$(find "$build_root/sanitizers/tests" -name "$program" -type f)" "${excluded[@]}" >"$log" 2>&1 &
  running[$program]=$!
done
status=0
for program in "${programs[@]}"; do
  wait "${running[$program]}" || { status=1; say "$program failed"; }
  tail -n 3 "$build_root/sanitizers/$program.log"
done
exit "$status"
