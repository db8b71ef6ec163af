#!/usr/bin/env bash
# Installs what is missing, builds the benchmarks, measures and prints one table: docs/performance.md. Takes a quarter of an
# hour on an otherwise idle machine. Writes performance.json into the build folder and exits 1 if a gate fails.
#
#   bash tests/performance/run.sh [--only M2,M7] [--rounds N]
#   bash tests/performance/run.sh --smoke       two minutes, nothing installed: does it run, and does M1 hold?
#
# Settings: cmake/setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source cmake/setup.sh

[[ " $* " = *" --smoke "* ]] && smoke=1 || smoke=
[ -n "$smoke" ] || find_system_packages valgrind
find_build_programs
find_torch
configure "$build_root/tests" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O2
cmake --build "$build_root/tests" --target performance_workloads || die "the build failed"
measure=(tests/performance/measure.py --program "$build_root/tests/tests/performance/performance_workloads")
[ -z "$smoke" ] || exec python3 "${measure[@]}" --smoke

# An environment of its own: the peers bring many packages. One that cannot be installed is said in the table.
venv=$build_root/peers
find_torch_for_python
for package in numpy accelerate==1.15.0 lightning==2.6.6 pytorch-accelerated==0.1.61; do
  name=${package%%=*}
  test_python_has "${name//-/_}" && continue
  say "installing $package into $venv"
  install_python_packages "$package" || say "could not install $package"
done
exec python3 "${measure[@]}" --python "$venv/bin/python" --output "$build_root/performance.json" "$@"
