# Finds LibTorch for this project, and for the projects that use its package: afterwards the target `torch`
# exists, or LOCKSTEP_TORCH_PROBLEM says why it does not.
#
# Order: a target `torch` that is there already, what find_package() finds (Torch_DIR, CMAKE_PREFIX_PATH), the
# Torch of the Python interpreter (Python3_EXECUTABLE, else python3 of the PATH). `cmake -P` on this file only
# prints the folder of the TorchConfig.cmake that would be used.

set(LOCKSTEP_TORCH_MINIMUM 2.11)
unset(LOCKSTEP_TORCH_PROBLEM)

# Sets `folder` to where the newest enough TorchConfig.cmake lies that find_package() would load, or to "".
# No Torch satisfies this version, so find_package() only reports what it considered and defines no target.
function(lockstep_torch_of_prefixes folder)
  find_package(Torch 9999 QUIET CONFIG)
  set(${folder} "" PARENT_SCOPE)
  foreach(config version IN ZIP_LISTS Torch_CONSIDERED_CONFIGS Torch_CONSIDERED_VERSIONS)
    if(version VERSION_GREATER_EQUAL LOCKSTEP_TORCH_MINIMUM)
      cmake_path(GET config PARENT_PATH config_folder)
      set(${folder} "${config_folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Sets `folder` to the place of TorchConfig.cmake in the Python package, or to "". Importing torch would take
# seconds.
function(lockstep_torch_of_python folder)
  set(${folder} "" PARENT_SCOPE)
  set(python "${Python3_EXECUTABLE}")
  if(NOT python)
    find_program(python NAMES python3 python NO_CACHE)
  endif()
  if(NOT python)
    return()
  endif()
  execute_process(
    COMMAND "${python}" -c
            "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
  if(result EQUAL 0 AND EXISTS "${package}/share/cmake/Torch/TorchConfig.cmake")
    set(${folder} "${package}/share/cmake/Torch" PARENT_SCOPE)
  endif()
endfunction()

# Sets CUDA_TOOLKIT_ROOT_DIR to the toolkit of nvcc unless it is set: Torch's own search takes the folder
# above the first `nvcc` of the PATH, which is wrong where that is a wrapper. A child process, to leave no
# CUDA targets behind. Sets `usable` to whether Torch's CMake files accept the result, for they end the whole
# configuration if they do not.
function(lockstep_try_cuda_toolkit torch_folder usable)
  set(tried "${torch_folder};${CUDA_TOOLKIT_ROOT_DIR};${CMAKE_CUDA_COMPILER};${CMAKE_CXX_COMPILER}")
  if(NOT tried STREQUAL LOCKSTEP_TOOLKIT_TRIED)
    message(STATUS "lockstep: trying Torch with the CUDA toolkit")
    set(probe "${CMAKE_CURRENT_BINARY_DIR}/lockstep_cuda_toolkit")
    file(REMOVE_RECURSE "${probe}")
    file(WRITE "${probe}/toolkit/CMakeLists.txt" [[
      find_package(CUDAToolkit REQUIRED)
      cmake_path(GET CUDAToolkit_BIN_DIR PARENT_PATH root)
      set(CUDA_TOOLKIT_ROOT_DIR "${root}" CACHE PATH "")
    ]])
    file(WRITE "${probe}/CMakeLists.txt" [[
      cmake_minimum_required(VERSION 3.22)
      project(probe LANGUAGES CXX)
      add_subdirectory(toolkit)
      find_package(Torch REQUIRED)
      file(WRITE "${PROJECT_BINARY_DIR}/root" "${CUDA_TOOLKIT_ROOT_DIR}")
    ]])
    set(settings "")
    foreach(name CMAKE_MAKE_PROGRAM CMAKE_CXX_COMPILER CMAKE_CUDA_COMPILER CMAKE_CUDA_HOST_COMPILER
            CUDAToolkit_ROOT CUDA_TOOLKIT_ROOT_DIR CMAKE_PREFIX_PATH)
      if(${name})
        string(REPLACE ";" "\\;" value "${${name}}")
        list(APPEND settings "-D${name}=${value}")
      endif()
    endforeach()
    execute_process(
      COMMAND "${CMAKE_COMMAND}" -G "${CMAKE_GENERATOR}" -S "${probe}" -B "${probe}/build"
              "-DTorch_DIR=${torch_folder}" ${settings}
      OUTPUT_FILE "${probe}/log" ERROR_FILE "${probe}/log" RESULT_VARIABLE result)
    set(root "")
    if(result EQUAL 0)
      file(READ "${probe}/build/root" root)
    endif()
    set(LOCKSTEP_TOOLKIT_TRIED "${tried}" CACHE INTERNAL "")
    set(LOCKSTEP_TOOLKIT_ROOT "${root}" CACHE INTERNAL "")
  endif()
  if(LOCKSTEP_TOOLKIT_ROOT)
    set(CUDA_TOOLKIT_ROOT_DIR "${LOCKSTEP_TOOLKIT_ROOT}" PARENT_SCOPE)
    set(${usable} ON PARENT_SCOPE)
  else()
    set(${usable} OFF PARENT_SCOPE)
  endif()
endfunction()

if(NOT TARGET torch)
  lockstep_torch_of_prefixes(lockstep_torch_folder)
  if(NOT lockstep_torch_folder)
    lockstep_torch_of_python(lockstep_torch_folder)
  endif()
  if(CMAKE_SCRIPT_MODE_FILE)
    execute_process(COMMAND ${CMAKE_COMMAND} -E echo "${lockstep_torch_folder}")
    return()
  endif()

  if(EXISTS "${lockstep_torch_folder}/../../../lib/libtorch_cuda.so" AND NOT TARGET torch::cudart)
    lockstep_try_cuda_toolkit("${lockstep_torch_folder}" lockstep_toolkit_usable)
    if(NOT lockstep_toolkit_usable)
      message(STATUS "lockstep: no CUDA toolkit suits this Torch, going on without CUDA headers")
      # Where this target exists, Torch's files look for no toolkit. It stands for the CUDA headers and
      # libcudart, which nothing but direct calls to CUDA needs. Global, so that the parent's own
      # find_package(Torch) works too.
      add_library(torch::cudart INTERFACE IMPORTED GLOBAL)
    endif()
    unset(lockstep_toolkit_usable)
  endif()

  if(lockstep_torch_folder)
    # Torch warns at each search that a static library is absent which its shared builds never ship.
    set(kineto_LIBRARY c10)
    find_package(Torch ${LOCKSTEP_TORCH_MINIMUM} QUIET CONFIG
                 PATHS "${lockstep_torch_folder}" NO_DEFAULT_PATH)
    unset(kineto_LIBRARY)
  endif()
  unset(lockstep_torch_folder)
endif()

if(NOT TARGET torch)
  string(CONCAT LOCKSTEP_TORCH_PROBLEM
    "lockstep needs LibTorch ${LOCKSTEP_TORCH_MINIMUM} or newer and found none. Install it for Python "
    "(python3 -m pip install torch), or name an unpacked one with -DCMAKE_PREFIX_PATH=/path/to/libtorch.")
endif()
