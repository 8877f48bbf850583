// YCSB's core workloads by letter, and its files of properties.
//
// Differences from YCSB's own client, by design: keys and values are of the size and kind that the
// benchmark is told, not "user" and ten fields; a zipfian draw is exact over the records there are
// (YCSB's scrambled one is of ten thousand million items, folded); an update writes the whole
// value; in D the latest records are those inserted some thousand operations ago and earlier, so
// that a read never misses one whose insert is still under way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/bench/workload.h"

namespace perdure::lab {

// A: lookup=.5,update=.5. B: lookup=.95,update=.05. C: lookup. D: lookup=.95,insert=.05, the latest
// records. E: scan=.95,insert=.05, of 1 to 100 records. F: lookup=.5,rmw=.5. All but D
// zipfian=0.99. Any case, with or without "ycsb-". Nothing for other names.
std::optional<Workload> ycsb_workload(std::string_view name);

// What a file of properties says.
struct YcsbFile {
  Workload workload;  // named as the file
  std::optional<uint64_t> records;
  std::optional<uint64_t> operations;
  std::optional<uint64_t> value_bytes;  // fieldcount x fieldlength
  std::optional<unsigned> threads;      // threadcount
  std::optional<double> time_limit_s;   // maxexecutiontime
  bool sequential_keys = false;         // insertorder=ordered
  std::vector<std::string> unknown;     // a sentence for each property that has no meaning here
};

// Reads "name=value" lines; # and ! start comments. Throws Error(kNotFound) for a file that cannot
// be read and Error(kInvalidArgument), naming file, line and property, for values that make no
// sense.
YcsbFile read_ycsb_file(const std::string& path);
YcsbFile parse_ycsb(std::string_view text, const std::string& origin);

}  // namespace perdure::lab
