# How ranks can talk: sets LOCKSTEP_NCCL_INCLUDES to the folders with the headers of CUDA and NCCL, or to
# nothing where Torch has no NCCL or a header is missing. Gloo needs nothing but Torch.
#
# A toolkit has the compiler's headers, but none of the libraries' unless they were installed too; the
# packages of a CUDA wheel have these, but not the compiler's. So both are asked, the toolkit first.

set(LOCKSTEP_NCCL_INCLUDES "")
set(lockstep_nccl "no NCCL in this Torch")
if(TARGET torch_cuda)
  get_target_property(lockstep_definitions torch_cuda INTERFACE_COMPILE_DEFINITIONS)
  if("USE_C10D_NCCL" IN_LIST lockstep_definitions)
    include(CheckCXXSourceCompiles)
    get_target_property(lockstep_torch_library torch_cuda LOCATION)
    cmake_path(GET lockstep_torch_library PARENT_PATH lockstep_packages)
    cmake_path(SET lockstep_packages NORMALIZE "${lockstep_packages}/../../nvidia")
    file(GLOB lockstep_package_includes "${lockstep_packages}/*/include")
    set(lockstep_includes "")
    foreach(folder "${CUDA_TOOLKIT_ROOT_DIR}/include" "${CUDAToolkit_INCLUDE_DIRS}"
            ${lockstep_package_includes})
      if(IS_DIRECTORY "${folder}")
        list(APPEND lockstep_includes "${folder}")
      endif()
    endforeach()
    list(REMOVE_DUPLICATES lockstep_includes)

    set(CMAKE_REQUIRED_INCLUDES ${lockstep_includes})
    set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
    check_cxx_source_compiles("
      #include <cublas_v2.h>
      #include <cuda_runtime.h>
      #include <cusolverDn.h>
      #include <cusparse.h>
      #include <nccl.h>" LOCKSTEP_HAS_NCCL_HEADERS)
    unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
    unset(CMAKE_REQUIRED_INCLUDES)
    if(LOCKSTEP_HAS_NCCL_HEADERS)
      set(LOCKSTEP_NCCL_INCLUDES ${lockstep_includes})
      set(lockstep_nccl "NCCL on CUDA")
    else()
      set(lockstep_nccl "no NCCL, for want of its headers or those of CUDA: sums on CUDA go through the CPU")
    endif()
  endif()
endif()
message(STATUS "lockstep: ranks talk by Gloo on the CPU; ${lockstep_nccl}")
