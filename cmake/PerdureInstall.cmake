# What `cmake --install` puts down: headers, both libraries, the command, the instruments, the CMake
# package, the pkg-config file, the completion of bash, the manual page, and the licence. (The compiler wrappers,
# the peers, PiBench's libraries and the Python module install themselves.)
#
# Each rule names its component: these are the packages of PerdurePackages.cmake.

include(CMakePackageConfigHelpers)

install(DIRECTORY include/perdure DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development FILES_MATCHING PATTERN "*.h")
install(TARGETS perdure_shared perdure_static EXPORT perdureTargets
  LIBRARY COMPONENT library NAMELINK_COMPONENT development
  ARCHIVE COMPONENT development)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT licence)
# The template of a check, for programs of others under `perdure crash`.
install(FILES examples/crash-check/main.cc
  DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples/crash-check COMPONENT lab)
if(TARGET perdure_command)
  install(TARGETS perdure_command COMPONENT tools)
  # The command writes its own completion, and what its manual page says.
  set(completion ${PROJECT_BINARY_DIR}/perdure.bash)
  add_custom_command(OUTPUT ${completion}
    COMMAND perdure_command completion bash > ${completion}
    DEPENDS perdure_command $<TARGET_NAME_IF_EXISTS:perdure_lab_command> VERBATIM)
  set(manual ${PROJECT_BINARY_DIR}/perdure.1)
  add_custom_command(OUTPUT ${manual}
    COMMAND ${PROJECT_SOURCE_DIR}/tools/man-page $<TARGET_FILE:perdure_command> > ${manual}
    DEPENDS perdure_command $<TARGET_NAME_IF_EXISTS:perdure_lab_command>
      ${PROJECT_SOURCE_DIR}/tools/man-page VERBATIM)
  add_custom_target(perdure_completion ALL DEPENDS ${completion} ${manual})
  install(FILES ${completion}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME perdure COMPONENT tools)
  install(FILES ${manual} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
endif()

# The instruments: the runtime of observed programs, and the part of the command that has one.
if(TARGET perdure_lab_runtime)
  install(TARGETS perdure_lab_runtime LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT lab)
endif()
if(TARGET perdure_lab_command)
  set(lab_folder ${CMAKE_INSTALL_LIBEXECDIR}/perdure)
  file(RELATIVE_PATH lab_to_libraries
    ${CMAKE_INSTALL_PREFIX}/${lab_folder} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(perdure_lab_command PROPERTIES
    INSTALL_RPATH "$ORIGIN/${lab_to_libraries}")
  install(TARGETS perdure_lab_command DESTINATION ${lab_folder} COMPONENT lab)
endif()

# The components: perdure::leveldb, perdure::rocksdb, and their pkg-config files.
get_property(components GLOBAL PROPERTY PERDURE_COMPONENTS)
foreach(component IN LISTS components)
  install(TARGETS perdure_${component} EXPORT perdure-${component}Targets
    LIBRARY COMPONENT ${component} NAMELINK_COMPONENT ${component}_development)
  install(EXPORT perdure-${component}Targets NAMESPACE perdure::
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/perdure COMPONENT ${component}_development)
endforeach()

# find_package(perdure) gives perdure::perdure (shared) and perdure::perdure_static.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/perdure)
install(EXPORT perdureTargets NAMESPACE perdure:: DESTINATION ${package_dir}
  COMPONENT development)
configure_package_config_file(cmake/perdureConfig.cmake.in
  ${PROJECT_BINARY_DIR}/perdureConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/perdureConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/perdureConfig.cmake ${PROJECT_BINARY_DIR}/perdureConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT development)

# The pkg-config file finds its prefix from its own place, so that an installed tree may be moved.
file(RELATIVE_PATH PERDURE_PC_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" PERDURE_PC_PREFIX "${PERDURE_PC_PREFIX}")
configure_file(cmake/perdure.pc.in ${PROJECT_BINARY_DIR}/perdure.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/perdure.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT development)
foreach(PERDURE_COMPONENT IN LISTS components)
  configure_file(cmake/perdure-component.pc.in
    ${PROJECT_BINARY_DIR}/perdure-${PERDURE_COMPONENT}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/perdure-${PERDURE_COMPONENT}.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT ${PERDURE_COMPONENT}_development)
endforeach()
