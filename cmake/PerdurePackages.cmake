# Debian packages, by `make packages`: cpack makes one of each component of PerdureInstall.cmake.
#
#   libperdure0.1     the shared library; its name has the soname's version
#   libperdure-dev    headers, static library, what CMake and pkg-config need
#   perdure-tools     the command, its completion and manual page, the unit of `perdure serve`
#   perdure-read-leveldb, perdure-read-lmdb, perdure-read-rocksdb
#                     what `perdure convert --from` starts: apart from the command, so that this depends on none of
#                     the stores; where their packages were there
#   perdure-lab       the instruments: amp, crash, trace, the compiler wrappers, PiBench's libraries
#   python3-perdure   the Python module, where Python's headers and cffi were there
#   libperdure-leveldb0.1, libperdure-leveldb-dev, and the same for rocksdb: where their packages were there

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME perdure)
set(CPACK_PACKAGE_VENDOR Perdure)
set(PERDURE_PACKAGE_CONTACT "The authors of Perdure <perdure@perdure.invalid>" CACHE STRING
  "Who answers for the packages: NAME <ADDRESS>")
set(CPACK_PACKAGE_CONTACT ${PERDURE_PACKAGE_CONTACT})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
# Strips what is installed, also what is no target, and adds licence and changelog.
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/FinishPackages.cmake)
set(CPACK_PERDURE_SOURCE_DIR ${PROJECT_SOURCE_DIR})

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS
  ${PROJECT_BINARY_DIR}/src ${PROJECT_BINARY_DIR}/src/lsm ${PROJECT_BINARY_DIR}/lib)
# Others that link the library depend on this upstream version or a newer one of the same soname.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")

set(soversion ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(this_version "(= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")

# perdure_package(COMPONENT NAME SECTION DEPENDS DESCRIPTION [RECOMMENDS])
macro(perdure_package component name section depends description)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${depends}")
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${description}")
  if(${ARGC} GREATER 5)
    set(CPACK_DEBIAN_${upper}_PACKAGE_RECOMMENDS "${ARGV5}")
  endif()
endmacro()

set(CPACK_COMPONENTS_ALL)
perdure_package(library libperdure${soversion} libs ""
  "storage engine for persistent memory, shared library
Data structures and a key-value store that are durable when a call returns and
open again in milliseconds, in memory that is mapped: persistent memory, tmpfs,
or an ordinary file.")
perdure_package(development libperdure-dev libdevel
  "libperdure${soversion} ${this_version}, libstdc++-12-dev | libstdc++-dev"
  "storage engine for persistent memory, development files
Headers for C++20 and C, the static library, and descriptions for CMake and
pkg-config.")
if(TARGET perdure_command)
  perdure_package(tools perdure-tools database ""
    "storage engine for persistent memory, command
The command perdure: it loads, reads, checks and measures pools, and serves a
store to the clients of Redis and memcached."
    perdure-lab)
  install(FILES tools/package/perdure.service DESTINATION lib/systemd/system
    COMPONENT tools EXCLUDE_FROM_ALL)
  install(FILES tools/package/sysusers.conf DESTINATION lib/sysusers.d RENAME perdure.conf
    COMPONENT tools EXCLUDE_FROM_ALL)
  install(FILES tools/package/perdure.conf DESTINATION share/doc/perdure-tools/examples
    COMPONENT tools EXCLUDE_FROM_ALL)
  set(CPACK_DEBIAN_TOOLS_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/tools/package/postinst)
endif()
set(suggested)
foreach(store IN LISTS PERDURE_STORES)
  if(TARGET perdure_read_${store})
    perdure_package(read_${store} perdure-read-${store} database "perdure-tools ${this_version}"
      "storage engine for persistent memory, reader of ${store} databases
The program that perdure convert starts to read databases of ${store}.")
    list(APPEND suggested perdure-read-${store})
  endif()
endforeach()
list(JOIN suggested ", " CPACK_DEBIAN_TOOLS_PACKAGE_SUGGESTS)
if(TARGET perdure_lab_command)
  perdure_package(lab perdure-lab devel
    "perdure-tools ${this_version}, libperdure-dev ${this_version}"
    "storage engine for persistent memory, instruments
What the memory's model counts, what the crash explorer finds, of the engine's
structures and of other programs; compiler wrappers; libraries for PiBench."
    g++)
endif()
if(TARGET _native)
  perdure_package(python python3-perdure python "python3 (>= 3.10), python3-cffi-backend (>= 1.15)"
    "storage engine for persistent memory, Python module
Mappings that are durable when the call returns.")
endif()
foreach(component IN LISTS components)
  perdure_package(${component} libperdure-${component}${soversion} libs
    "libperdure${soversion} ${this_version}"
    "storage engine for persistent memory, pools for ${component}
The shared library that keeps the files of ${component} in a pool.")
  perdure_package(${component}_development libperdure-${component}-dev libdevel
    "libperdure-${component}${soversion} ${this_version}, libperdure-dev ${this_version}, lib${component}-dev"
    "storage engine for persistent memory, development files for ${component}
What CMake and pkg-config need to link it.")
endforeach()

# What the packages hold, without the tests: cpack itself builds nothing (CMAKE_SKIP_INSTALL_ALL_DEPENDENCY).
add_custom_target(perdure_packaged)
get_property(peer_modules GLOBAL PROPERTY PERDURE_PEER_MODULES)
get_property(readers GLOBAL PROPERTY PERDURE_READERS)
foreach(target IN LISTS peer_modules readers ITEMS perdure_shared perdure_static perdure_command perdure_completion
    perdure_lab_runtime perdure_lab_command perdure_as perdure_pibench_plugins _native)
  if(TARGET ${target})
    add_dependencies(perdure_packaged ${target})
  endif()
endforeach()
foreach(component IN LISTS components)
  add_dependencies(perdure_packaged perdure_${component})
endforeach()

include(CPack)
