# Shared by tests/run.sh and examples/run.sh, which source it from the root of the repository: finds or
# installs what the build needs, configures and builds.
#
# LOCKSTEP_BUILD_DIR  where everything is built (default: build)
# LOCKSTEP_TORCH      what pip installs when there is no Torch, with pip's options (default: torch==2.13.0)
# CMAKE_PREFIX_PATH, Torch_DIR, CXX are CMake's own.

mkdir -p "${LOCKSTEP_BUILD_DIR:-build}"
build_root=$(cd "${LOCKSTEP_BUILD_DIR:-build}" && pwd)
export PATH=$build_root/bin:$PATH
# Torch's threads would spin while they wait for each other, which on a busy machine costs many times the work.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
venv=$build_root/venv
torch_requirement=${LOCKSTEP_TORCH:-torch==2.13.0}

say() { printf '== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
can_use_apt() { command -v apt-get >/dev/null && as_root true 2>/dev/null; }

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Installs what is missing of the named packages, as far as the system knows and allows it.
install_packages() {
  local package missing=()
  for package; do is_installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  if ! can_use_apt; then
    say "not installed, and no right to use apt: ${missing[*]}"
    return
  fi
  say "installing ${missing[*]}"
  as_root apt-get update -qq || say "apt-get update failed, going on with the package lists at hand"
  for package in "${missing[@]}"; do
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$package" \
      >/dev/null || say "could not install $package"
  done
}

# The packages of the system that this script looks for: libraries, and programs that are nowhere on the PATH.
find_system_packages() {
  local packages=(libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev zlib1g-dev "$@")
  command -v "${CXX:-c++}" >/dev/null || packages+=(g++)
  command -v cmake >/dev/null || packages+=(cmake)
  command -v ninja >/dev/null || packages+=(ninja-build)
  command -v ccache >/dev/null || packages+=(ccache)
  python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
  install_packages "${packages[@]}"
  command -v "${CXX:-c++}" >/dev/null || die "no C++ compiler: install g++ 12 or newer, or name yours in CXX"
}

# The build's own Python environment; the user's is never written to.
make_venv() {
  [ -x "$venv/bin/pip" ] || python3 -m venv "$venv" ||
    die "python3 cannot make a virtual environment: install python3-venv (apt-get install python3-venv)"
}

install_python_packages() {
  make_venv
  "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"
}

# Puts programs of the build's Python environment on the PATH, but not that Python itself.
expose_programs() {
  local program
  mkdir -p "$build_root/bin"
  for program; do ln -sf "$venv/bin/$program" "$build_root/bin/$program"; done
}

cmake_is_new_enough() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version //p')
  [ -n "$version" ] && [ "$(printf '%s\n' 3.22 "$version" | sort -V | head -n 1)" = 3.22 ]
}

find_build_programs() {
  if ! cmake_is_new_enough; then
    say "installing CMake into $venv"
    install_python_packages cmake || die "pip could not install CMake: install CMake 3.22 or newer"
    expose_programs cmake ctest
  fi
  if ! command -v ninja >/dev/null; then
    say "installing Ninja into $venv"
    install_python_packages ninja || die "pip could not install Ninja: install ninja-build"
    expose_programs ninja
  fi
}

torch_folder_of() { cmake -D Python3_EXECUTABLE="$1" -P cmake/LockstepTorch.cmake; }

# Sets torch_folder, the folder of TorchConfig.cmake.
find_torch() {
  torch_folder=$(torch_folder_of "$(command -v python3)")
  [ -n "$torch_folder" ] || [ ! -x "$venv/bin/python" ] || torch_folder=$(torch_folder_of "$venv/bin/python")
  if [ -z "$torch_folder" ]; then
    install_torch
    torch_folder=$(torch_folder_of "$venv/bin/python")
  fi
  say "using Torch in ${torch_folder%/share/cmake/Torch}"
}

install_torch() {
  say "installing $torch_requirement into $venv (some minutes)"
  # Unquoted, since it may hold options of pip.
  # shellcheck disable=SC2086
  install_python_packages $torch_requirement ||
    die "pip could not install Torch. Set LOCKSTEP_TORCH to what suits your machine, for example" \
      "LOCKSTEP_TORCH='torch==2.13.0 --index-url URL' with the URL of PyTorch's CPU builds, or unpack" \
      "LibTorch and name its folder in CMAKE_PREFIX_PATH."
}

test_python_has() {
  "$venv/bin/python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec(sys.argv[1]))' "$1"
}

# Gives the Python in $venv the Torch that we build against.
find_torch_for_python() {
  local site torch_packages=${torch_folder%/torch/share/cmake/Torch}
  make_venv
  if ! test_python_has torch && [ -e "$torch_packages/torch/__init__.py" ]; then
    site=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
    echo "$torch_packages" >"$site/torch_of_build.pth"
  fi
  "$venv/bin/python" -c 'import torch' 2>/dev/null || install_torch
}

# Gives the build's own Python what the tests compare with: numpy, safetensors, tensorboard, and Torch.
find_test_python() {
  local package
  find_torch_for_python
  for package in numpy safetensors tensorboard==2.21.0; do
    test_python_has "${package%%=*}" && continue
    say "installing $package into $venv"
    install_python_packages "$package" || die "pip could not install $package, which the tests compare with"
  done
}

# A job of the compiler takes up to 1.5 GB where it reads the whole of Torch's headers.
count_jobs() {
  local memory cores
  memory=$(awk '/^MemAvailable/ { print int($2 / 1572864) }' /proc/meminfo)
  cores=$(nproc)
  jobs=$((memory < cores ? memory : cores))
  [ "$jobs" -ge 1 ] || jobs=1
  export CMAKE_BUILD_PARALLEL_LEVEL=$jobs
}

# configure FOLDER [cmake arguments]
configure() {
  local folder=$1
  shift
  count_jobs
  say "configuring $folder"
  mkdir -p "$folder"
  cmake -G Ninja -S . -B "$folder" -DTorch_DIR="$torch_folder" \
    -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)" "$@" >"$folder/configure.log" 2>&1 ||
    { cat "$folder/configure.log" >&2; die "CMake could not configure $folder; its output is above"; }
}
