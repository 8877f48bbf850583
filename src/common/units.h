// Sizes, counts and times as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace perdure {

// Reads a size in bytes: "4096", "64K", "1.5G", "64MiB". k, M, G and T are powers of 1024.
// Throws Error(kInvalidArgument) on anything else.
uint64_t parse_bytes(std::string_view text);

// Reads a count: "1000", "10M", "1.5k". k, M, G and T are powers of 1000. Throws
// Error(kInvalidArgument) on anything else.
uint64_t parse_count(std::string_view text);

// Reads a time: "90", "90s", "250ms", "10m" or "1h", above 0, in seconds. Throws
// Error(kInvalidArgument) on anything else.
double parse_duration_s(std::string_view text);

// "512 B", "64.0 MiB".
std::string format_bytes(uint64_t bytes);

// "1,234,567".
std::string format_count(uint64_t count);

// "1 thread", "2,000 threads".
std::string format_counted(uint64_t count, std::string_view noun);

// Three significant digits and a unit: "87.0 ns", "1.23 us", "45.6 ms", "2.50 s".
std::string format_nanoseconds(double nanoseconds);

// "1.23 M/s", "456 k/s", "78 /s".
std::string format_rate(double per_second);

// "0:07", "12:34", "1:02:03".
std::string format_clock(double seconds);

}  // namespace perdure
