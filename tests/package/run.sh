#!/usr/bin/env bash
# Builds and runs the stranger's project against lockstep: installed, from the build folder, as a subdirectory
# (shared, and static), and where the project finds Torch itself. CMakeLists.txt gives the environment.
set -euo pipefail
stranger="$(cd "$(dirname "$0")" && pwd)/stranger"
rm -rf "$WORK"
mkdir -p "$WORK"
fail() { echo "package test: $*" >&2; exit 1; }

compiler_flags() { tr ' ' '\n' | grep -E '^-(W|O|f|g|m|std)' | tr '\n' ' '; }
expected_flags="$(compiler_flags <<<"$RELEASE_FLAGS")-std=gnu++20 -Wall -Wextra -Werror "

# build_stranger NAME [cmake arguments]
build_stranger() {
  local name=$1 folder="$WORK/$1 build" flags
  shift
  echo "== $name"
  "$CMAKE" -G "$GENERATOR" -S "$WORK/source" -B "$folder" -DCMAKE_CXX_COMPILER="$CXX" \
    -DCMAKE_CXX_COMPILER_LAUNCHER="$LAUNCHER" -DCMAKE_PREFIX_PATH="$PREFIX_PATH" -DTorch_DIR="$TORCH_FOLDER" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="$RELEASE_FLAGS" \
    -DFETCHCONTENT_FULLY_DISCONNECTED=ON "$@" >"$WORK/log" 2>&1 ||
    { cat "$WORK/log"; fail "$name does not configure"; }
  "$CMAKE" --build "$folder" >"$WORK/log" 2>&1 || { cat "$WORK/log"; fail "$name does not build"; }
  "$folder/stranger" || fail "$name does not run"
  flags=$(grep -o '"command": .*main\.cpp' "$folder/compile_commands.json" | compiler_flags)
  [ "$flags" = "$expected_flags" ] || fail "$name compiles with '$flags', expected '$expected_flags'"
}

cp -r "$stranger" "$WORK/source"
"$CMAKE" --install "$BUILD" --prefix "$WORK/prefix" >/dev/null
for path in "$SOURCE" "$BUILD" "${TORCH_FOLDER%/share/cmake/Torch}"; do
  if grep -rIlF "$path" "$WORK/prefix"; then fail "an installed file names $path"; fi
done
mv "$WORK/prefix" "$WORK/moved prefix"

build_stranger "installed" -Dlockstep_ROOT="$WORK/moved prefix"
build_stranger "installed with own Torch" -Dlockstep_ROOT="$WORK/moved prefix" -DOWN_TORCH=ON
build_stranger "build folder" -Dlockstep_DIR="$BUILD"
build_stranger "shared subdirectory" -DWAY=subdirectory -DLOCKSTEP_SOURCE="$SOURCE" -DBUILD_SHARED_LIBS=ON
build_stranger "subdirectory with own Torch" -DWAY=subdirectory -DLOCKSTEP_SOURCE="$SOURCE" -DOWN_TORCH=ON
