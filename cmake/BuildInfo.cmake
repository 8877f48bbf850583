# Writes OUTPUT, a header that says which commit of SOURCE is built and with which FLAGS; leaves it alone
# when nothing changed, so that nothing is compiled again.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit unknown)
endif()
string(STRIP "${FLAGS}" FLAGS)
string(REPLACE "\\" "\\\\" FLAGS "${FLAGS}")
string(REPLACE "\"" "\\\"" FLAGS "${FLAGS}")
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once
namespace perdure::build_info {
inline constexpr const char* kCommit = \"${commit}\";
inline constexpr const char* kFlags = \"${FLAGS}\";
}  // namespace perdure::build_info
")
