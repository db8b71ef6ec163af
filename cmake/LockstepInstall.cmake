# The CMake package of lockstep, twice: for an installed copy, and for using this build folder in place.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)

install(TARGETS lockstep EXPORT lockstepTargets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${package_folder})
export(EXPORT lockstepTargets NAMESPACE lockstep:: FILE ${PROJECT_BINARY_DIR}/lockstepTargets.cmake)

function(configure_lockstep_package output)
  configure_package_config_file(cmake/lockstepConfig.cmake.in ${output} INSTALL_DESTINATION ${package_folder}
                                NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
endfunction()
configure_lockstep_package(installed/lockstepConfig.cmake)
foreach(package fmt spdlog)
  if(${package}_BINARY_DIR)
    set(${package}_place "HINTS \"${${package}_BINARY_DIR}\"")
  endif()
endforeach()
configure_lockstep_package(lockstepConfig.cmake)

write_basic_package_version_file(lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/LockstepTorch.cmake LockstepTorch.cmake COPYONLY)
install(FILES ${PROJECT_BINARY_DIR}/installed/lockstepConfig.cmake
        ${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake cmake/LockstepTorch.cmake
        DESTINATION ${package_folder})
