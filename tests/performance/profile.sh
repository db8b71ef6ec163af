#!/usr/bin/env bash
# Where the instructions of one update under the Trainer go.
#
#   bash tests/performance/profile.sh build/tests/tests/performance/performance_workloads [W1 W4 ...]
set -euo pipefail
program=${1:?the path of the performance_workloads program}
shift
command -v valgrind >/dev/null || { echo "valgrind is missing: apt-get install valgrind" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
updates=20

for workload in "${@:-W1}"; do
  rm -f "$folder"/*
  valgrind --tool=callgrind --callgrind-out-file="$folder/out" --dump-before='performance::Stopwatch::mark()' \
    "$program" time "$workload" trainer 10 $updates $updates >/dev/null 2>&1
  # What lies between the first two marks. A share is that of a function with all that it calls.
  callgrind_annotate --inclusive=yes --threshold=100 --show-percs=no "$folder/out.2" | awk -v workload="$workload" '
    { gsub(/,/, "", $1) }
    /PROGRAM TOTALS/ { total = $1 }
    /performance::(Mlp|ConvNet|Transformer|DeepNet)::forward\(/ && !forward { forward = $1 }
    /at::cross_entropy_loss|at::_ops::cross_entropy_loss::call\(/ && !loss { loss = $1 }
    /torch::autograd::Engine::execute\(/ && !backward { backward = $1 }
    /lockstep::optimizer_update\(/ && !update { update = $1 }
    /lockstep::ParameterArena::(open_window|after_backward)\(/ { arena += $1 }
    function share(part) { return sprintf("%6.2f %%", 100 * part / total) }
    END {
      print workload ", " int(total / '$updates') " instructions an update"
      print "  forward and loss  " share(forward + loss)
      print "  backward          " share(backward)
      print "  update            " share(update)
      print "  arena             " share(arena)
      print "  the rest          " share(total - forward - loss - backward - update - arena)
    }'
done
