# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# uwarp_layer(NAME [USES layer...] [LIBS target...])
#
# One object library per layer folder, made of every .cc file in it and in folders below it. USES lists the layers above
# that it may include and call; tests/check_layers.py checks the includes against the same order.
# A folder without sources gives no target, but may still hold headers.

function(uwarp_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "USES;LIBS")
  set_property(GLOBAL APPEND PROPERTY UWARP_LAYERS ${name})
  set_property(GLOBAL APPEND PROPERTY UWARP_LAYER_LIBS ${ARG_LIBS})

  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc")
  if(NOT sources)
    return()
  endif()

  add_library(uwarp_${name} OBJECT ${sources})
  target_include_directories(uwarp_${name} PUBLIC "${PROJECT_SOURCE_DIR}/providers/uwarp")
  target_compile_options(uwarp_${name} PRIVATE ${UWARP_LTO_OPTIONS})
  foreach(used IN LISTS ARG_USES)
    if(TARGET uwarp_${used})
      target_link_libraries(uwarp_${name} PUBLIC uwarp_${used})
    endif()
  endforeach()
  target_link_libraries(uwarp_${name} PUBLIC ${ARG_LIBS})
  set_property(GLOBAL APPEND PROPERTY UWARP_LAYER_OBJECTS "$<TARGET_OBJECTS:uwarp_${name}>")
endfunction()
