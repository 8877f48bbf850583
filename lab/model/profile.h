// What the modelled memory is made of: sizes, policies, latencies and bandwidths, by name.
//
//   Profile profile = load_profile("optane-100");           // or the path of a JSON file
//   scale_cache(profile, 4'000'000);                        // keep the papers' data : cache ratio
//   for (auto& [name, text] : describe(profile)) print(name, text);
//
// A file of one's own starts from a built-in profile and overrides what differs:
//
//   { "base": "optane-100", "name": "two dimms", "dimm_count": 2, "cpu_cache_bytes": 4194304 }
//
// Sources of the built-in figures: docs/lab-model.md.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace perdure::lab {

inline constexpr uint64_t kPpm = 1'000'000;  // parts per million

inline constexpr uint32_t kLineBytes = 64;  // of the CPU cache and of the memory bus

struct Profile {
  std::string name;

  // What a store must have reached to survive power loss: "line", the memory controller (ADR: flush
  // and fence); "byte", the CPU caches (eADR, CXL global persistent flush: only order matters).
  std::string domain = "line";

  // The CPU: one level of write-back cache that stands for L2 and the L3 share, and per thread the
  // buffers that gather non-temporal stores.
  uint64_t cpu_cache_bytes = 0;
  uint64_t cpu_cache_ways = 0;
  bool clwb_evicts_line = false;
  uint64_t streaming_buffers = 0;

  // The DIMMs. The media is read and written in units of media_unit_bytes; partial units are
  // gathered in a buffer of write_buffer_units, the last read ones kept in one of
  // read_buffer_units.
  uint64_t dimm_count = 0;
  uint64_t interleave_bytes = 0;
  uint64_t media_unit_bytes = 0;
  uint64_t write_buffer_units = 0;
  uint64_t read_buffer_units = 0;

  // Which unit leaves a full write buffer: one at random that is not among the
  // write_buffer_recent_units written last. See dimm.h.
  uint64_t write_buffer_recent_units = 0;
  // Media writes of the DIMM's own (address indirection, wear levelling), in millionths of the
  // units written other than by a sequential stream.
  uint64_t controller_writes_ppm = 0;
  uint64_t seed = 0;

  // Time, for the estimate in time.h.
  uint64_t cores = 0;    // threads beyond this do not add to throughput
  double access_ns = 0;  // a load or store that hits the cache, overlap with others included
  double locked_ns = 0;  // an atomic read-modify-write, in addition
  double dram_read_latency_ns = 0;
  double media_read_latency_ns = 0;     // a cache miss that reads the media
  double buffered_read_latency_ns = 0;  // one that a DIMM's buffers serve
  double fence_latency_ns = 0;          // a fence that has flushed or streamed lines to wait for
  double flush_ns = 0;                  // each line flushed or streamed, in addition
  // Bandwidths of all DIMMs together, counted in bytes of the media.
  double sequential_read_gb_per_s = 0;
  double random_read_gb_per_s = 0;
  double sequential_write_gb_per_s = 0;
  double random_write_gb_per_s = 0;

  // Set by scale_cache: the machine's own cache, and the records it was scaled for. 0: not scaled.
  uint64_t unscaled_cpu_cache_bytes = 0;
  uint64_t scaled_for_records = 0;
};

// "optane-100", "optane-200", "eadr", "nvdimm", "cxl".
const std::vector<std::string>& builtin_profile_names();

// A built-in profile; "dram" is another name for "nvdimm". Throws Error(kInvalidArgument), naming
// the profiles there are.
Profile builtin_profile(std::string_view name);

// A built-in profile, or the JSON file at this path (anything with a '/' or ending in ".json").
// Throws Error(kNotFound) for a missing file, and Error(kInvalidArgument) for text that is not
// JSON, for an unknown key and for a value out of its range, naming file, key and range.
Profile load_profile(const std::string& path_or_name);

// The same from JSON that was already read; `origin` names it in messages.
Profile parse_profile(const nlohmann::json& object, const std::string& origin);

// Throws Error(kInvalidArgument) if any parameter is out of its range or two do not go together.
// MemoryModel's constructor calls it.
void validate(const Profile& profile);

// Every parameter, in order.
nlohmann::json to_json(const Profile& profile);
std::vector<std::pair<std::string, std::string>> describe(const Profile& profile);

// The papers run 64 M records on this cache; a run of fewer keeps the ratio of data to cache: the
// cache becomes cache * records / 64 M, never more than the machine's own and never less than
// kSmallestCacheBytes. Always starts from the machine's own size. Returns whether the ratio is kept
// exactly, that is, no limit was met.
inline constexpr uint64_t kScaleRecords = 64'000'000;
inline constexpr uint64_t kSmallestCacheBytes = 65536;
bool scale_cache(Profile& profile, uint64_t records);

// One sentence: "modelled cache 4.2 MiB: 66.5 MiB x 4 M / 64 M records".
std::string scaling_statement(const Profile& profile);

}  // namespace perdure::lab
