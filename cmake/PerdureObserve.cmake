# Observed builds: code whose loads, stores and atomics call our runtime, libperdure-lab (lab/seam).
#
#   perdure_observe(TARGET [FOREIGN] [PRECOMPILE] [RUNTIME LIBRARY])   compiles it observed, and links the runtime
#
# FOREIGN is for code that is not Perdure's: its flushes, fences, non-temporal stores and locked
# instructions, also in inline assembly, become call-outs by the assembler step (lab/wrap).
# Perdure's own code reports them itself. RUNTIME names another library to link in the runtime's place.
# PRECOMPILE, in Perdure's own build: the headers that most sources begin with are parsed once.
#
# The flags stand here and nowhere else: the wrappers perdure-cc and perdure-c++ are made from them.
# The call-outs are those of GCC's thread sanitizer. Never give the flags to the linker: it would
# link the sanitizer's own runtime.

set(PERDURE_OBSERVE_FLAGS
  -fsanitize=thread -Wno-tsan
  # Copies of whole objects and arrays are called out already, so they are expanded in place, whatever
  # their size ...
  -mmemcpy-strategy=rep_8byte:-1:noalign -mmemset-strategy=rep_8byte:-1:noalign
  -fno-tree-loop-distribute-patterns
  # ... and these are made when a source is compiled, not when the program is linked.
  -fno-lto
  # Events are attributed to lines.
  -g)
# Calls of memcpy and its kin stay calls, which the runtime sees: -fno-builtin for these alone, since
# sources may need others in constant expressions. For __builtin_memcpy the header sees to it.
foreach(function IN ITEMS memcpy memmove mempcpy memset memcmp bcopy bzero bcmp
    strcpy stpcpy strncpy stpncpy strcat strncat strcmp strncmp)
  list(APPEND PERDURE_OBSERVE_FLAGS -fno-builtin-${function})
endforeach()

# Where the assembler step and the header are: in this tree, or where this file is installed.
get_filename_component(perdure_observe_root "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
if(EXISTS "${perdure_observe_root}/include/perdure/lab_builtins.h")
  set(PERDURE_OBSERVE_HEADER "${perdure_observe_root}/include/perdure/lab_builtins.h")
  set(PERDURE_OBSERVE_FOLDER "${PROJECT_BINARY_DIR}/libexec/perdure")
  set(PERDURE_OBSERVE_RUNTIME perdure_lab_runtime)
else()
  include("${CMAKE_CURRENT_LIST_DIR}/PerdureObserveInstalled.cmake")
endif()

# The function is called from folders that do not see the variables of this one.
foreach(part IN ITEMS FLAGS HEADER FOLDER RUNTIME)
  set(PERDURE_OBSERVE_${part} "${PERDURE_OBSERVE_${part}}" CACHE INTERNAL "For perdure_observe()")
endforeach()

function(perdure_observe target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "FOREIGN;PRECOMPILE" "RUNTIME" "")
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    message(FATAL_ERROR "perdure_observe(${target}): only GCC makes the call-outs; "
      "the compiler is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  if(arg_PRECOMPILE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    perdure_precompile(${target} FIRST "${PERDURE_OBSERVE_HEADER}")
  else()
    target_compile_options(${target} PRIVATE "SHELL:-include \"${PERDURE_OBSERVE_HEADER}\"")
  endif()
  target_compile_options(${target} PRIVATE ${PERDURE_OBSERVE_FLAGS})
  if(arg_FOREIGN)
    target_compile_options(${target} PRIVATE "-B${PERDURE_OBSERVE_FOLDER}/")
    if(TARGET perdure_as)
      add_dependencies(${target} perdure_as)
    endif()
  else()
    target_compile_definitions(${target} PRIVATE PERDURE_OBSERVED)
    # Lines and inlined functions are enough, and a third cheaper to compile than variables and types are.
    target_compile_options(${target} PRIVATE -g1)
  endif()
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL "OBJECT_LIBRARY")
    if(NOT arg_RUNTIME)
      set(arg_RUNTIME ${PERDURE_OBSERVE_RUNTIME})
    endif()
    target_link_libraries(${target} PRIVATE ${arg_RUNTIME})
  endif()
endfunction()
