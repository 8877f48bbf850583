// Records a run of observed code as a Trace.
//
//   Recorder recorder;
//   lab::install(&recorder);
//   ... run ...                        // the first region that is registered is recorded
//   lab::install(nullptr);
//   Trace trace = recorder.finish();   // throws if a store went unseen
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/crash/trace.h"
#include "lab/seam/event.h"

namespace perdure::lab::crash {

class Recorder : public Sink {
 public:
  // `events_max` bounds the memory: what comes after is not recorded, and finish() throws.
  explicit Recorder(uint64_t events_max = 50'000'000);

  void on(const Event& event) override;
  bool wants_loads() const override { return false; }
  void on_pause() override;
  // The recording begins with the region as it is, and ends with it.
  void on_region(void* base, uint64_t bytes, const char* name) override;
  void on_region_end(void* base) override;

  // The number of the next event.
  uint32_t position() const { return static_cast<uint32_t>(trace_.events.size()); }

  // Ends the recording, which has been replayed and compared with the memory: Error(kCorrupt) names
  // the first byte that changed without a store, which means that something escaped the call-outs.
  // Error(kInvalidArgument) if there was no region.
  Trace finish();

 private:
  struct ThreadState {
    bool pending = false;  // its last event is a store whose bytes are not read yet
    uint32_t pending_event = 0;
    uint32_t operation = 0;  // number of its current or last operation
    bool in_operation = false;
  };

  void read_pending(ThreadState& thread);
  void end();
  std::string first_unseen() const;

  const unsigned char* base_ = nullptr;
  uint64_t events_max_;
  bool overflown_ = false;
  bool ended_ = false;
  std::string unseen_;  // what escaped, in words
  Trace trace_;
  std::vector<ThreadState> threads_;
};

}  // namespace perdure::lab::crash
