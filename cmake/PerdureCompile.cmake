# Compiler flags of all targets of this project: language, warnings, sanitizers.
#
# The baseline is plain x86-64, so that one binary runs everywhere; what needs more (clwb, AVX2,
# AVX-512) is chosen at run time by target attributes in the sources.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_path(PERDURE_XXHASH_INCLUDE_DIR xxhash.h REQUIRED)

# perdure_flags: every target of this project links it, PRIVATE; nothing of it is installed.
add_library(perdure_flags INTERFACE)
target_compile_options(perdure_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion
  # Not in tests that are compiled as one unit, whose constants hide one another.
  $<$<NOT:$<BOOL:$<TARGET_PROPERTY:PERDURE_MAY_HIDE>>>:-Wshadow>
  -Wnon-virtual-dtor -Woverloaded-virtual -Wundef -Wvla
  # Designated initialisers leave the other members at their defaults on purpose.
  -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(perdure_flags INTERFACE
    -Wduplicated-cond -Wlogical-op -Wno-interference-size
    # The compiler's own garbage collection is a twelfth of its time, and saves a third of at most 1.3 GB.
    --param=ggc-min-heapsize=1000000)
else()
  target_compile_options(perdure_flags INTERFACE
    -Wthread-safety)
endif()
if(PERDURE_WERROR)
  target_compile_options(perdure_flags INTERFACE -Werror)
endif()

if(PERDURE_SANITIZE STREQUAL "address")
  # Without those checks that would find what the address sanitizer finds anyway, and take a third of the time of
  # compiling: null pointers that are followed, and accesses beyond an object. (`undefined` has them all.)
  set(sanitizer -fsanitize=address,undefined -fno-sanitize=null,object-size
    -fno-sanitize-recover=undefined)
elseif(PERDURE_SANITIZE STREQUAL "thread")
  set(sanitizer -fsanitize=thread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC warns of every stand-alone fence; the run-time library does not model them.
    target_compile_options(perdure_flags INTERFACE -Wno-tsan)
  endif()
elseif(PERDURE_SANITIZE STREQUAL "undefined")
  set(sanitizer -fsanitize=undefined -fno-sanitize-recover=all)
elseif(PERDURE_SANITIZE STREQUAL "fuzzer")
  set(sanitizer -fsanitize=fuzzer-no-link,address)
elseif(NOT PERDURE_SANITIZE STREQUAL "")
  message(FATAL_ERROR
    "PERDURE_SANITIZE is \"${PERDURE_SANITIZE}\"; give address, thread, undefined or fuzzer")
endif()
if(sanitizer)
  target_compile_options(perdure_flags INTERFACE ${sanitizer} -fno-omit-frame-pointer)
  target_link_options(perdure_flags INTERFACE ${sanitizer})
endif()

# perdure_unity(TARGET): with PERDURE_UNITY, the target's sources of one folder are compiled as one
# unit, since the headers of the standard library and of parsers cost more than most sources do.
function(perdure_unity target)
  if(NOT PERDURE_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE file)
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE folder)
    cmake_path(GET folder PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER ${folder} folder)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  target_compile_definitions(${target} PRIVATE PERDURE_UNITED)  # see index/instantiate.h
  # The sources are included then: GCC takes a lambda in the frame of a coroutine for one of a header, which
  # other units may see, too.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()

# perdure_less_optimised(TARGET LEVEL): for what takes longer to compile than it ever runs: commands, which start what
# works and show what comes of it, and tests, whose time is that of the library. (With a sanitizer, too: three
# quarters of the time of compiling a folder of tests are those of optimising it.)
function(perdure_less_optimised target level)
  if(CMAKE_BUILD_TYPE STREQUAL Release OR PERDURE_SANITIZE)
    target_compile_options(${target} PRIVATE ${level})
  endif()
endfunction()

# perdure_precompile(TARGET [FIRST HEADER] [HEADER...] | TARGET FROM OTHER): parses the headers that most sources
# begin with once for the target, HEADER... as well, and that of FIRST before all others; or uses those of another
# target with the same flags. Not where a cache of compilations (CMAKE_CXX_COMPILER_LAUNCHER) does better: it would
# miss at each change of them.
function(perdure_precompile target)
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "FROM;FIRST" "")
    if(arg_FROM)
      target_precompile_headers(${target} REUSE_FROM ${arg_FROM})
    else()
      target_precompile_headers(${target} PRIVATE ${arg_FIRST}
        <algorithm> <atomic> <cstdint> <cstring> <functional> <map> <memory> <mutex> <optional> <span>
        <string> <string_view> <thread> <utility> <vector> <fmt/core.h> ${arg_UNPARSED_ARGUMENTS})
    endif()
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      # GCC 12 takes moved strings for overrun; elsewhere it keeps that to itself, for it is in a header of
      # the system, which it no longer knows of one that is precompiled.
      target_compile_options(${target} PRIVATE
        -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread)
    endif()
  endif()
endfunction()
