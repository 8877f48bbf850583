// What a program did to one region of persistent memory: every store with its bytes, every flush,
// fence and non-temporal store, the bounds of operations, by thread and place in the program.
//
//   Recorder recorder;                       // recorder.h: makes one from a run
//   Trace trace = recorder.finish();
//   trace.save("run.trace");  Trace again = Trace::load("run.trace");
//
// Events have a fixed size, so any of them is reached at once; stored bytes lie in one array.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/seam/event.h"

namespace perdure::lab::crash {

struct TraceEvent {
  uint64_t offset;  // in the region
  uint64_t pc;      // place in the program; 0: unknown
  uint64_t data;    // stores: where their bytes begin in Trace::data; kBegin: the operation's type
  uint64_t bytes;
  uint32_t operation;  // of its thread, from 1, if inside one; else 0
  uint16_t thread;
  EventKind kind;
  FlushKind flush;
};
static_assert(sizeof(TraceEvent) == 40);

inline constexpr uint64_t kImagePageBytes = 4096;

struct Trace {
  std::string region_name;
  uint64_t region_bytes = 0;
  // What the region held when the recording began: pages that are not all zero, by number.
  std::map<uint64_t, std::vector<unsigned char>> base;
  std::vector<TraceEvent> events;
  std::vector<unsigned char> data;
  std::vector<std::string> operation_types;  // by number; [0] is "outside"
  // The program's address of what its debug information calls 0, and its path: for symbols.
  uint64_t load_address = 0;
  std::string program;

  // The bytes that a store wrote.
  const unsigned char* stored(const TraceEvent& event) const { return data.data() + event.data; }

  // Writes a file, or reads one. Throw Error(kIo, kNotFound, kForeign, kVersion, kCorrupt).
  void save(const std::string& path) const;
  static Trace load(const std::string& path);
  // The same from the bytes of such a file; `name` is what errors call it. Whatever the bytes are,
  // the outcome is a trace that can be replayed, or an Error.
  static Trace parse(std::span<const unsigned char> file, const std::string& name);
};

// What the last eight bytes of a file hold: of all bytes before them.
uint64_t trace_checksum(std::span<const unsigned char> bytes);

inline bool is_store(EventKind kind) {
  return kind == EventKind::kStore || kind == EventKind::kUpdate || kind == EventKind::kStream;
}
inline bool is_fence(EventKind kind) {
  return kind == EventKind::kFence || kind == EventKind::kLocked || kind == EventKind::kUpdate;
}

}  // namespace perdure::lab::crash
