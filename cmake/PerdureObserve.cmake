# Observed builds: code whose loads, stores and atomics call our runtime (src/lab/seam).
#
#   perdure_observe(TARGET)   compiles the target observed, and links the runtime
#
# The call-outs are those of GCC's thread sanitizer; its own runtime is never linked.

set(PERDURE_OBSERVE_FLAGS
  -fsanitize=thread --param=tsan-instrument-func-entry-exit=0
  # Calls of memcpy and its kin stay calls, which the runtime sees ...
  -fno-builtin -fno-tree-loop-distribute-patterns -U_FORTIFY_SOURCE
  # ... while copies of whole objects, called out already, are expanded in place.
  -mmemcpy-strategy=rep_8byte:-1:noalign -mmemset-strategy=rep_8byte:-1:noalign
  -g)

function(perdure_observe target)
  target_compile_options(${target} PRIVATE ${PERDURE_OBSERVE_FLAGS} -Wno-tsan)
  target_compile_definitions(${target} PRIVATE PERDURE_OBSERVED)
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL "OBJECT_LIBRARY")
    target_link_libraries(${target} PRIVATE perdure_lab_runtime)
  endif()
endfunction()
