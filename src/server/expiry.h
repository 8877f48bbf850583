// Times at which keys expire, as commands give them.
#pragma once

#include <cstdint>
#include <string_view>

#include "server/commands.h"

namespace perdure::server {

// Whether it is EX, PX, EXAT or PXAT.
bool is_expiry_option(std::string_view word);
// Whether two such options are the same one.
bool is_same_option(std::string_view a, std::string_view b);
// The time in ms of such an option, 1 at least. Throws CommandError if it is not above 0, or too
// far away.
uint64_t expiry_of_option(const Call& call, std::string_view word, std::string_view number);
// From a number of seconds (`unit_ms` 1000) or milliseconds, from now on or since 1970; may lie in
// the past. Throws CommandError if it is out of range.
int64_t expiry_ms_of(const Call& call, std::string_view number, int64_t unit_ms, bool absolute);

}  // namespace perdure::server
