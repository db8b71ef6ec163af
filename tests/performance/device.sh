#!/usr/bin/env bash
# On a machine with a GPU: builds against a CUDA build of Torch, compares training on the device with training on the
# CPU, times updates, and runs the invariants on the device. At most eight minutes; building takes most of them on 16
# cores. Exit code 0: all holds, 1: something does not, or took too long, 3: there is no CUDA device.
#
#   bash tests/performance/device.sh [PYTHON]                  # whose Torch is used; default: python3
#   bash tests/performance/device.sh --device cpu [PYTHON]     # checks itself, without a GPU
#
# Settings: cmake/setup.sh.
set -euo pipefail
device=cuda
[ "${1:-}" != --device ] || { device=$2; shift 2; }
python=$(command -v "${1:-python3}") || { echo "there is no program ${1:-python3}" >&2; exit 1; }
deadline=480

if [ "$device" = cuda ]; then
  "$python" - <<'PYTHON' || { echo "$python has no Torch that sees a CUDA device: nothing was checked" >&2; exit 3; }
import torch
print(torch.cuda.get_device_name(), "CUDA", torch.version.cuda, "Torch", torch.__version__)
PYTHON
fi

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source cmake/setup.sh
find_system_packages catch2
find_build_programs
torch_folder=$(torch_folder_of "$python")
[ -n "$torch_folder" ] || die "$python has no LibTorch to build against"
build=$build_root/device
configure "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O2 -DLOCKSTEP_BUILD_EXAMPLES=OFF \
  -DPython3_EXECUTABLE="$python"

failed=()
# Runs a command for at most so many seconds, and not beyond the deadline.
attempt() {  # NAME SECONDS COMMAND...
  local name=$1 left=$((deadline - SECONDS)) status=0
  say "$name, after $SECONDS s"
  if [ "$left" -gt 0 ]; then
    timeout "$(($2 < left ? $2 : left))" "${@:3}" || status=$?
  else
    status=124
  fi
  if [ "$status" = 124 ]; then name+=": out of time"; fi
  [ "$status" = 0 ] || failed+=("$name")
  return "$status"
}

# What cuBLAS wants for equal bits in every run.
export CUBLAS_WORKSPACE_CONFIG=:4096:8
# All but resume_every_microbatch_test, which forks: a process that uses CUDA cannot.
invariants=$(printf ',[#%s_test]' accumulate evaluate late observers resume schedule skip stop workers)

if attempt "building" 300 cmake --build "$build" --target device_check; then
  attempt "training on $device against training on the CPU" 60 \
    "$build/tests/device_check" --device "$device" check || true
  attempt "times of updates on $device" 60 "$build/tests/device_check" --device "$device" times || true
  if attempt "building the invariants" 300 cmake --build "$build" --target invariant_tests; then
    attempt "invariants on $device" 240 env LOCKSTEP_TEST_DEVICE="$device" \
      "$build/tests/invariant_tests" "${invariants#,}" || true
  fi
fi

say "ended after $SECONDS s"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "all holds on $device"
