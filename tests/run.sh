#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test. Arguments go to ctest, for example `-R
# unit/optim`. Settings: cmake/setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source cmake/setup.sh

# Launchers and what makes two hosts of one, and the compiler of the fuzz targets; a test that misses some of them
# says so and is not run.
find_system_packages catch2 dataset-fashion-mnist git valgrind openmpi-bin slurm-wlm munge iproute2 strace rsync \
  clang libclang-rt-dev
find_build_programs
find_torch
find_test_python

# Optimized like a release, with assertions.
configure "$build_root/tests" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O2 \
  -DLOCKSTEP_TEST_PYTHON="$venv/bin/python"
say "building with $jobs jobs"
cmake --build "$build_root/tests" || die "the build failed"

say "running the tests"
log=$build_root/tests/ctest.log
status=0
ctest --test-dir "$build_root/tests" --output-on-failure --no-tests=error -j "$jobs" "$@" | tee "$log" ||
  status=$?
# Without a failure, newer versions of CTest leave out how many failed.
awk '/% tests passed/ { total = $NF; failed = /tests? failed out of/ ? $(NF - 5) : 0 }
     /^\t.* \(Skipped\)$/ { absent++ }
     END { printf "%d passed, %d failed", total - failed - absent, failed
           if (absent) printf ", %d not run", absent
           print "" }' "$log"
grep '^not run: ' "$build_root/tests/Testing/Temporary/LastTest.log" || true
exit "$status"
