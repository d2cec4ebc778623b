# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# uwarp_layers(FILE)
#
# One object library per room of FILE (providers/uwarp/layers.txt), made of every .cc file in its
# folder and in those below it that are no rooms of their own, linked with the rooms that it uses
# there and with the targets in LIBS_<room>. A room without sources gives no target, but may still
# hold headers. `preload` and `tls` are linked by themselves.

function(uwarp_layers list_file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${list_file}")
  file(STRINGS "${list_file}" lines REGEX "^[a-z]")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^([a-z_/]+):(.*)$" parts "${line}")
    set(room "${CMAKE_MATCH_1}")
    string(STRIP "${CMAKE_MATCH_2}" uses)
    string(REPLACE " " ";" uses "${uses}")
    if(NOT room MATCHES "^(preload|tls)$")
      uwarp_room(${room} "${uses}")
    endif()
  endforeach()
endfunction()

function(uwarp_room room uses)
  set(libs ${LIBS_${room}})
  set_property(GLOBAL APPEND PROPERTY UWARP_LAYER_LIBS ${libs})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${room}/*.cc")
  if(NOT sources)
    return()
  endif()
  string(REPLACE "/" "_" name "${room}")
  add_library(uwarp_${name} OBJECT ${sources})
  target_include_directories(uwarp_${name} PUBLIC "${PROJECT_SOURCE_DIR}/providers/uwarp")
  target_compile_options(uwarp_${name} PRIVATE ${UWARP_LTO_OPTIONS})
  foreach(used IN LISTS uses)
    string(REPLACE "/" "_" used "${used}")
    if(TARGET uwarp_${used})
      target_link_libraries(uwarp_${name} PUBLIC uwarp_${used})
    endif()
  endforeach()
  target_link_libraries(uwarp_${name} PUBLIC ${libs})
  set_property(GLOBAL APPEND PROPERTY UWARP_LAYER_OBJECTS "$<TARGET_OBJECTS:uwarp_${name}>")
endfunction()
