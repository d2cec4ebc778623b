# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# Language level, warnings, visibility and sanitizers of everything we compile.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(UWARP_CCACHE ccache)
if(UWARP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER "${UWARP_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${UWARP_CCACHE}")
endif()

add_compile_definitions(_GNU_SOURCE)
add_compile_options(-Wall -Wextra)
if(UWARP_WERROR)
  add_compile_options(-Werror)
endif()

if(UWARP_SANITIZE)
  # Frame pointers and no tail merging, so that the reports have usable stacks.
  add_compile_options("-fsanitize=${UWARP_SANITIZE}" -fno-omit-frame-pointer)
  add_link_options("-fsanitize=${UWARP_SANITIZE}")
  if(UWARP_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=all)
  endif()
else()
  # Sanitized shared objects leave their runtime's symbols open, so this holds for plain builds only.
  add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,SHARED_LIBRARY>:-Wl,-z,defs>)
endif()

if(UWARP_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "UWARP_FUZZ needs clang (configure with -DCMAKE_CXX_COMPILER=clang++)")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
