// Traces made by hand, for tests of what reads them.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "lab/crash/trace.h"

namespace perdure::lab::crash {

class TraceBuilder {
 public:
  explicit TraceBuilder(uint64_t region_bytes = uint64_t{2} * kImagePageBytes) {
    trace_.region_name = "region";
    trace_.region_bytes = region_bytes;
    trace_.operation_types = {"outside", "operation"};
  }

  // The thread of the events that follow.
  TraceBuilder& thread(uint16_t number) {
    thread_ = number;
    return *this;
  }
  // One store of consecutive words.
  TraceBuilder& store(uint64_t offset, std::initializer_list<uint64_t> words) {
    return write(EventKind::kStore, offset, words.begin(), 8 * words.size());
  }
  TraceBuilder& store_bytes(uint64_t offset, const void* bytes, uint64_t count) {
    return write(EventKind::kStore, offset, bytes, count);
  }
  TraceBuilder& stream(uint64_t offset, std::initializer_list<uint64_t> words) {
    return write(EventKind::kStream, offset, words.begin(), 8 * words.size());
  }
  TraceBuilder& update(uint64_t offset, uint64_t word) {
    return write(EventKind::kUpdate, offset, &word, 8);
  }
  TraceBuilder& flush(uint64_t offset, uint64_t bytes = 1, FlushKind kind = FlushKind::kClwb) {
    return add({.offset = offset, .bytes = bytes, .kind = EventKind::kFlush, .flush = kind});
  }
  TraceBuilder& fence() { return add({.kind = EventKind::kFence}); }
  TraceBuilder& locked() { return add({.kind = EventKind::kLocked}); }
  TraceBuilder& sync(uint64_t offset, uint64_t bytes) {
    return add({.offset = offset, .bytes = bytes, .kind = EventKind::kSync});
  }
  TraceBuilder& begin() { return add({.data = 1, .kind = EventKind::kBegin}); }
  TraceBuilder& end() { return add({.kind = EventKind::kEnd}); }
  // A word that the region held before.
  TraceBuilder& held(uint64_t offset, uint64_t word) {
    auto& page = trace_.base[offset / kImagePageBytes];
    page.resize(kImagePageBytes);
    std::memcpy(page.data() + offset % kImagePageBytes, &word, sizeof word);
    return *this;
  }

  const Trace& trace() const { return trace_; }

 private:
  TraceBuilder& write(EventKind kind, uint64_t offset, const void* bytes, uint64_t count) {
    const uint64_t at = trace_.data.size();
    const auto* from = static_cast<const unsigned char*>(bytes);
    trace_.data.insert(trace_.data.end(), from, from + count);
    return add({.offset = offset, .data = at, .bytes = count, .kind = kind});
  }
  TraceBuilder& add(TraceEvent event) {
    event.thread = thread_;
    event.pc = 0x1000 + trace_.events.size();
    trace_.events.push_back(event);
    return *this;
  }

  Trace trace_;
  uint16_t thread_ = 0;
};

}  // namespace perdure::lab::crash
