#!/usr/bin/env bash
# Installs what is missing, builds the Fashion-MNIST example and trains it. Arguments go to the program; its
# exit code is this script's (75: stopped on request, run it again to go on). Settings: cmake/setup.sh.
set -euo pipefail
caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source cmake/setup.sh

find_system_packages dataset-fashion-mnist
case " $* " in
  *" --data-dir"*) ;;
  *) [ -d /usr/share/datasets/fashion-mnist ] ||
    die "Fashion-MNIST is absent: apt-get install dataset-fashion-mnist, or name the folder of its files: --data-dir" ;;
esac
find_build_programs
find_torch
configure "$build_root/release" -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_BUILD_TESTS=OFF
say "building with $jobs jobs"
cmake --build "$build_root/release" --target fashion_mnist || die "the build failed"

run_dir=
for ((index = 1; index <= $#; ++index)); do
  case ${!index} in
    --run-dir) next=$((index + 1)); run_dir=${!next:-} ;;
    --run-dir=*) run_dir=${!index#--run-dir=} ;;
  esac
done
if [ -z "$run_dir" ]; then
  run_dir=$PWD/runs/fashion-mnist
  set -- --run-dir "$run_dir" "$@"
fi

say "training; results go to $run_dir"
cd "$caller"
status=0
"$build_root/release/examples/fashion_mnist/fashion_mnist" "$@" || status=$?
case $status in
  0) say "done; the results are in $run_dir" ;;
  75) say "stopped; the same command goes on from $run_dir" ;;
  *) say "the program ended with code $status" ;;
esac
exit "$status"
