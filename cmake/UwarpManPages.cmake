# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# uwarp_man_pages(COMPONENT page...)
#
# Installs manual pages. A page that describes several calls names them all in its NAME section; for
# each name but that of the file a page is made which leads to it.

function(uwarp_man_pages component)
  foreach(page IN LISTS ARGN)
    cmake_path(GET page FILENAME file)
    string(REGEX REPLACE "^.*\\." "" section "${file}")
    install(FILES "${page}" DESTINATION "${CMAKE_INSTALL_MANDIR}/man${section}"
      COMPONENT ${component})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${page}")

    file(READ "${page}" text)
    string(REGEX MATCH "\n\\.SH NAME\n([^\\]*) \\\\- " matched "${text}")
    string(REGEX MATCHALL "[^, \n]+" names "${CMAKE_MATCH_1}")
    foreach(name IN LISTS names)
      if(NOT name STREQUAL "" AND NOT "${name}.${section}" STREQUAL "${file}")
        set(link "${CMAKE_CURRENT_BINARY_DIR}/man/${name}.${section}")
        file(CONFIGURE OUTPUT "${link}" CONTENT ".so man${section}/${file}\n")
        install(FILES "${link}" DESTINATION "${CMAKE_INSTALL_MANDIR}/man${section}"
          COMPONENT ${component})
      endif()
    endforeach()
  endforeach()
endfunction()
