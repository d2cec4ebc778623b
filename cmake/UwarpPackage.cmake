# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# uwarp_package(LIBRARY [MODULE...])
#
# How programs that are built with LIBRARY find it: pkg-config's LIBRARY.pc, made from LIBRARY.pc.in,
# and CMake's package LIBRARY with the target LIBRARY::LIBRARY. MODULE is what pkg-config calls a library
# whose headers those of LIBRARY include.

include(CMakePackageConfigHelpers)

# Folders of .pc files. They begin with ${prefix}, so that a tree that was moved can be used too.
set(UWARP_PC_LIBDIR "\${prefix}")
cmake_path(APPEND UWARP_PC_LIBDIR "${CMAKE_INSTALL_LIBDIR}")
set(UWARP_PC_INCLUDEDIR "\${prefix}")
cmake_path(APPEND UWARP_PC_INCLUDEDIR "${CMAKE_INSTALL_INCLUDEDIR}")

# While the major version is 0, a new minor version may break an interface.
set(UWARP_COMPATIBILITY SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(UWARP_COMPATIBILITY SameMinorVersion)
endif()

function(uwarp_package library)
  set(modules ${ARGN})
  set(made "${CMAKE_CURRENT_BINARY_DIR}/${library}")
  set(folder "${CMAKE_INSTALL_LIBDIR}/cmake/${library}")

  configure_file(${library}.pc.in "${made}.pc" @ONLY)
  install(FILES "${made}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)

  target_include_directories(${library} INTERFACE
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  foreach(module IN LISTS modules)
    target_link_libraries(${library} INTERFACE "$<INSTALL_INTERFACE:PkgConfig::${library}_${module}>")
  endforeach()
  # Applications link with the name without a number. The library is another package's than the name.
  install(TARGETS ${library} EXPORT ${library} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    NAMELINK_COMPONENT development)
  install(EXPORT ${library} NAMESPACE "${library}::" DESTINATION "${folder}"
    FILE ${library}Targets.cmake COMPONENT development)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/package.cmake.in" "${made}Config.cmake" @ONLY)
  write_basic_package_version_file("${made}ConfigVersion.cmake"
    COMPATIBILITY ${UWARP_COMPATIBILITY})
  install(FILES "${made}Config.cmake" "${made}ConfigVersion.cmake" DESTINATION "${folder}"
    COMPONENT development)
endfunction()
