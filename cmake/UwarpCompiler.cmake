# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# Language level, warnings, visibility and sanitizers of everything we compile.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

# -DCMAKE_CXX_STANDARD=23 is possible too.
if(NOT CMAKE_CXX_STANDARD)
  set(CMAKE_CXX_STANDARD 20)
endif()
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Half of a build is reading headers: they are read once for eight files of a folder. ./build.sh --apart
# does without.
option(CMAKE_UNITY_BUILD "Compile the files of a folder together" ON)

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
# ibv_reg_mr() of verbs.h mixes two enumerations, wherever it is called; stable_sort() of libstdc++ 12
# uses what it deprecates. clang reports both at the line of the caller. g++ still reports our own.
foreach(warning deprecated-enum-enum-conversion deprecated-declarations)
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-${warning}>)
endforeach()

if(UWARP_SANITIZE)
  # Frame pointers and no tail merging, so that the reports have usable stacks.
  add_compile_options("-fsanitize=${UWARP_SANITIZE}" -fno-omit-frame-pointer)
  add_link_options("-fsanitize=${UWARP_SANITIZE}")
  if(UWARP_SANITIZE MATCHES "undefined")
    # A null pointer ends the program by itself, and AddressSanitizer sees a wrong object: these three
    # would make a build a quarter longer.
    add_compile_options(-fno-sanitize-recover=all -fno-sanitize=null,object-size,vptr)
  endif()
else()
  # Sanitized shared objects leave their runtime's symbols open, so this holds for plain builds only.
  add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,SHARED_LIBRARY>:-Wl,-z,defs>)
endif()

# For what is installed: addresses are bound at start and read-only from then on, stacks are guarded,
# calls of libc are checked. No -fcf-protection: Debian 12's own start files lack the mark, so that
# the linker drops it; distributions that have it pass the option themselves.
set(UWARP_HARDENING_LINK_OPTIONS -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
set(UWARP_HARDENING_OPTIONS "")
if(NOT UWARP_SANITIZE)
  list(APPEND UWARP_HARDENING_OPTIONS -fstack-protector-strong)
  # Needs optimisation; a distribution's own level stays.
  if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug" AND NOT CMAKE_CXX_FLAGS MATCHES "_FORTIFY_SOURCE")
    list(APPEND UWARP_HARDENING_OPTIONS -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
  endif()
endif()

# Inlining across files takes a fifth of the instructions off a small message. The objects also hold
# ordinary code, with which the tests are linked: that is quicker.
set(UWARP_LTO_OPTIONS "")
set(UWARP_NO_LTO_OPTIONS "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT UWARP_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  # The kernel's headers and libc's each define sockaddr_in6.
  set(UWARP_LTO_OPTIONS -flto=auto -ffat-lto-objects -Wno-odr)
  set(UWARP_NO_LTO_OPTIONS -fno-lto)
endif()

if(UWARP_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "UWARP_FUZZ needs clang (configure with -DCMAKE_CXX_COMPILER=clang++)")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
