#!/usr/bin/env bash
# Builds the library, its program and the examples against a CUDA build of Torch, and trains with them on the CPU: the
# same program must run where there is no GPU. CMakeLists.txt gives the environment; LOCKSTEP_CUDA_PYTHON names a
# Python with that Torch. Exits with 77 where there is none.
set -euo pipefail
fail() { echo "CUDA build test: $*" >&2; exit 1; }
not_run() { echo "not run: $*"; exit 77; }

python=${LOCKSTEP_CUDA_PYTHON:-}
[ -n "$python" ] || not_run "no CUDA build of Torch to link against; name a Python that has one in LOCKSTEP_CUDA_PYTHON"
version=$("$python" -c 'import torch; print(torch.__version__, torch.version.cuda or "")') || fail "$python has no Torch"
[[ $version == *" "?* ]] || not_run "the Torch of $python, $version, is no CUDA build"
echo "== Torch $version"
torch_folder=$("$CMAKE" -D Python3_EXECUTABLE="$python" -P "$SOURCE/cmake/LockstepTorch.cmake")

"$CMAKE" -G "$GENERATOR" -S "$SOURCE" -B "$WORK" -DTorch_DIR="$torch_folder" -DCMAKE_CXX_COMPILER="$CXX" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$LAUNCHER" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="$RELEASE_FLAGS" \
  -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_EXAMPLES=ON | tee "$WORK.log" | grep 'ranks talk' ||
  { cat "$WORK.log"; fail "it does not configure"; }
if "$python" -c 'import torch.distributed as d, sys; sys.exit(not d.is_nccl_available())'; then
  grep -q 'ranks talk by Gloo on the CPU; NCCL on CUDA' "$WORK.log" || fail "CMake does not find NCCL"
fi
"$CMAKE" --build "$WORK" >"$WORK.log" 2>&1 || { tail -n 100 "$WORK.log"; fail "it does not build"; }

program=$WORK/examples/fashion_mnist/fashion_mnist
if grep -q USE_C10D_NCCL "$torch_folder/../Caffe2/Caffe2Targets.cmake"; then
  # grep -q would leave nm without a reader, and the pipe would fail.
  nm -DC --undefined-only "$program" | grep 'c10d::ProcessGroupNCCL::ProcessGroupNCCL' >/dev/null ||
    fail "$program does not use NCCL"
fi
ldd "$program" | grep 'libtorch_cuda.so => /' >/dev/null || fail "$program does not load the CUDA part of Torch"
(cd "$WORK" && examples/minimal/minimal) || fail "the minimal program does not run"
CUDA_VISIBLE_DEVICES= "$python" "$SOURCE/tests/launchers/fashion_mnist_test.py" lockstep "$program" \
  "$WORK/src/cli/lockstep" "$python" "$WORK/reference.json"
