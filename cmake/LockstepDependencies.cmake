# The dependencies besides Torch: a target of the parent project, else an installed package, else the pinned
# sources.

option(LOCKSTEP_FETCH_DEPENDENCIES "Download and build what is not installed (never Torch)"
       ${PROJECT_IS_TOP_LEVEL})

# A macro, since imported targets and package variables belong to the caller's directory.
macro(lockstep_dependency package target repository tag)
  if(NOT TARGET ${target})
    find_package(${package} QUIET)
  endif()
  if(NOT TARGET ${target})
    if(NOT LOCKSTEP_FETCH_DEPENDENCIES)
      message(FATAL_ERROR
              "lockstep needs ${package} and did not find it. Install it (Debian, Ubuntu: libfmt-dev "
              "libspdlog-dev nlohmann-json3-dev catch2 libcli11-dev), name its folder with CMAKE_PREFIX_PATH, or "
              "let CMake download it with -DLOCKSTEP_FETCH_DEPENDENCIES=ON.")
    endif()
    message(STATUS "lockstep: ${package} is not installed, building ${tag} of ${repository}")
    include(FetchContent)
    FetchContent_Declare(${package} GIT_REPOSITORY ${repository} GIT_TAG ${tag} GIT_SHALLOW ON)
    FetchContent_MakeAvailable(${package})
    lockstep_silence_headers(${target})
  endif()
endmacro()

# Makes the headers of a fetched target system headers, as those of an installed one are.
function(lockstep_silence_headers target)
  get_target_property(real ${target} ALIASED_TARGET)
  get_target_property(directories ${real} INTERFACE_INCLUDE_DIRECTORIES)
  set_property(TARGET ${real} APPEND PROPERTY INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${directories})
endfunction()
