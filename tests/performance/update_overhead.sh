#!/usr/bin/env bash
# Instructions of one update: the Trainer over a loop written by hand with the same operations. Counted by callgrind as the
# difference of two run lengths, so that start-up drops out. Gate: at most 1.01.
#
#   cmake --build build/tests --target update_overhead
#   bash tests/performance/update_overhead.sh build/tests/tests/update_overhead
set -euo pipefail
program=${1:?the path of the update_overhead program}
command -v valgrind >/dev/null || { echo "valgrind is missing: apt-get install valgrind" >&2; exit 1; }
short=100 long=300
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The same number of updates must end in the same loss, or the two did not do the same work.
if [ "$("$program" trainer $long 2>/dev/null)" != "$("$program" loop $long 2>/dev/null)" ]; then
  echo "the two loops end with different losses: the comparison is void" >&2
  exit 1
fi

instructions() {  # MODE UPDATES
  valgrind --tool=callgrind --callgrind-out-file="$folder/out" "$program" "$1" "$2" 2>&1 >/dev/null |
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}
for mode in trainer loop; do
  a=$(instructions $mode $short)
  b=$(instructions $mode $long)
  declare "$mode=$(((b - a) / (long - short)))"
  echo "$mode: ${!mode} instructions an update"
done
awk -v a="$trainer" -v b="$loop" 'BEGIN { printf "ratio: %.4f (gate 1.01)\n", a / b; exit a / b > 1.01 }'
