# perdure_discover_tests(TARGET LABEL): the tests of an executable, known to CTest.
#
# A test without a parameter is one of CTest's. Those of a suite that have the same parameter are one together,
# "Catalog/Reopen/cceh_u64_u64": starting a process for each of thousands takes longer than most of them do,
# many times so under a sanitizer. The executable is asked when CTest starts, as gtest_discover_tests() does with
# DISCOVERY_MODE PRE_TEST.
function(perdure_discover_tests target label)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_groups)
  file(GENERATE OUTPUT ${file}.cmake CONTENT
"set(executable [==[$<TARGET_FILE:${target}>]==])
set(target ${target})
set(label ${label})
set(timeout_s ${PERDURE_TEST_TIMEOUT_S})
set(tests [==[${file}_tests.cmake]==])
include([==[${PROJECT_SOURCE_DIR}/cmake/ListGroupedTests.cmake]==])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file}.cmake)
endfunction()
