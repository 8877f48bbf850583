#include "lab/seam/runtime.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "lab/seam/dispatch.h"
#include "perdure/lab.h"

namespace perdure::lab {

namespace seam {

constinit thread_local ThreadState thread_state;
constinit thread_local CallStack call_stack;
constinit std::atomic<Sink*> installed_sink{nullptr};
constinit std::atomic<bool> several_threads{false};

namespace {

constexpr size_t kRegionsMax = 16;
constexpr size_t kOperationTypesMax = 16;

// Where persistent memory is. Read by every event, changed under the lock of `table`.
struct RegionSlot {
  std::atomic<uint64_t> base{0};
  std::atomic<uint64_t> end{0};  // 0: free
  uint32_t number = 0;
  char name[256] = {};
};

struct Table {
  std::array<RegionSlot, kRegionsMax> regions;
  std::atomic<size_t> regions_used{0};
  uint32_t last_number = 0;
  std::array<char[32], kOperationTypesMax> operations = {};
  size_t operation_count = 1;
  std::atomic_flag lock;
};

constinit Table table;
constinit std::atomic<uint16_t> threads_seen{0};
constinit std::atomic_flag event_lock;
constinit std::atomic<bool> sink_wants_dram{false};
constinit std::atomic<bool> sink_wants_loads{true};

class Locked {
 public:
  explicit Locked(std::atomic_flag& flag) : flag_(flag) {
    while (flag_.test_and_set(std::memory_order_acquire)) {
      while (flag_.test(std::memory_order_relaxed)) __builtin_ia32_pause();
    }
  }
  ~Locked() { flag_.clear(std::memory_order_release); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  std::atomic_flag& flag_;
};

// Whether [address, ...) is in a region; fills in where.
bool locate(Event& event) {
  const size_t used = table.regions_used.load(std::memory_order_acquire);
  for (size_t i = 0; i < used; ++i) {
    const RegionSlot& slot = table.regions[i];
    const uint64_t base = slot.base.load(std::memory_order_relaxed);
    if (event.address < base || event.address >= slot.end.load(std::memory_order_relaxed)) continue;
    event.region = slot.number;
    event.offset = event.address - base;
    return true;
  }
  return false;
}

bool names_memory(EventKind kind) { return kind <= EventKind::kFlush || kind == EventKind::kSync; }

bool wanted(Event& event, const ThreadState& state) {
  if (!names_memory(event.kind)) return true;
  if (event.kind == EventKind::kLoad && !sink_wants_loads.load(std::memory_order_relaxed)) {
    return false;
  }
  if (locate(event)) return true;
  // An atomic on DRAM is a fence all the same.
  if (event.kind == EventKind::kUpdate) {
    if (sink_wants_dram.load(std::memory_order_relaxed) && state.in_operation) return true;
    event.kind = EventKind::kLocked;
    return true;
  }
  return state.in_operation && sink_wants_dram.load(std::memory_order_relaxed);
}

}  // namespace

uint16_t own_thread() {
  ThreadState& state = thread_state;
  if (state.number == 0) {
    state.number = static_cast<uint16_t>(threads_seen.fetch_add(1, std::memory_order_relaxed) + 1);
  }
  return static_cast<uint16_t>(state.number - 1);
}

bool in_region(const void* address) {
  Event event{};
  event.address = reinterpret_cast<uint64_t>(address);
  return locate(event);
}

void deliver(Sink& sink, Event event) {
  ThreadState& state = thread_state;
  if (!wanted(event, state)) return;
  event.thread = own_thread();
  ++state.quiet;
  if (several_threads.load(std::memory_order_relaxed)) {
    const Locked locked(event_lock);
    sink.on(event);
  } else {
    sink.on(event);
  }
  --state.quiet;
}

void make_event(EventKind kind, uint64_t address, size_t bytes, uint64_t pc, FlushKind flush) {
  Sink* sink = installed_sink.load(std::memory_order_relaxed);
  if (sink == nullptr || thread_state.quiet != 0) return;
  deliver(*sink, Event{.kind = kind, .flush = flush, .bytes = bytes, .address = address, .pc = pc});
}

}  // namespace seam

using seam::Locked;
using seam::table;
using seam::thread_state;

Quiet::Quiet() { ++thread_state.quiet; }
Quiet::~Quiet() { --thread_state.quiet; }

Sink* install(Sink* sink) {
  if (sink != nullptr) {
    seam::sink_wants_dram = sink->wants_dram();
    seam::sink_wants_loads = sink->wants_loads();
  }
  return seam::installed_sink.exchange(sink);
}

uint16_t current_thread() { return seam::own_thread(); }

std::vector<Region> regions() {
  const Quiet quiet;
  const Locked locked(table.lock);
  std::vector<Region> found;
  for (size_t i = 0; i < table.regions_used; ++i) {
    const auto& slot = table.regions[i];
    if (slot.end == 0) continue;
    found.push_back({slot.number, slot.base, slot.end - slot.base, slot.name});
  }
  return found;
}

uint64_t operation_type(const char* name) {
  const Quiet quiet;
  const Locked locked(table.lock);
  for (size_t i = 1; i < table.operation_count; ++i) {
    if (std::strncmp(table.operations[i], name, sizeof table.operations[i] - 1) == 0) return i;
  }
  if (table.operation_count == seam::kOperationTypesMax) return 0;
  std::strncpy(table.operations[table.operation_count], name,
               sizeof table.operations[table.operation_count] - 1);
  return table.operation_count++;
}

std::string operation_name(uint64_t type) {
  const Quiet quiet;
  const Locked locked(table.lock);
  return type > 0 && type < table.operation_count ? table.operations[type] : "outside";
}

void begin_operation(uint64_t type, uint64_t payload_bytes) {
  seam::tell(EventKind::kBegin, reinterpret_cast<const void*>(type), payload_bytes,
             __builtin_return_address(0));
  thread_state.in_operation = true;
}

void end_operation() {
  thread_state.in_operation = false;
  seam::tell(EventKind::kEnd, nullptr, 0, __builtin_return_address(0));
}

namespace {

// False if there are too many: then it counts as DRAM, as documented.
bool add_region(void* base, size_t bytes, const char* name) {
  const Locked locked(table.lock);
  size_t i = 0;
  while (i < table.regions_used && table.regions[i].end != 0) ++i;
  if (i == table.regions.size()) return false;
  auto& slot = table.regions[i];
  slot.number = ++table.last_number;
  std::strncpy(slot.name, name, sizeof slot.name - 1);
  slot.base = reinterpret_cast<uint64_t>(base);
  slot.end = slot.base + bytes;
  table.regions_used = std::max<size_t>(table.regions_used, i + 1);
  return true;
}

void remove_region(const void* base) {
  const Locked locked(table.lock);
  for (size_t i = 0; i < table.regions_used; ++i) {
    auto& slot = table.regions[i];
    if (slot.end == 0 || slot.base != reinterpret_cast<uint64_t>(base)) continue;
    slot.base = 0;
    slot.end = 0;
  }
}

}  // namespace

}  // namespace perdure::lab

using perdure::lab::EventKind;
using perdure::lab::FlushKind;
using perdure::lab::seam::tell;

extern "C" {

void perdure_lab_region(void* base, size_t bytes, const char* name) {
  using namespace perdure::lab;
  const Quiet quiet;
  if (!add_region(base, bytes, name == nullptr ? "" : name)) return;
  if (Sink* sink = seam::installed_sink.load()) {
    sink->on_region(base, bytes, name == nullptr ? "" : name);
  }
}

void perdure_lab_region_end(void* base) {
  using namespace perdure::lab;
  const Quiet quiet;
  if (Sink* sink = seam::installed_sink.load()) sink->on_region_end(base);
  remove_region(base);
}

void perdure_lab_operation_begin(const char* type, size_t payload_bytes) {
  perdure::lab::begin_operation(perdure::lab::operation_type(type), payload_bytes);
}

void perdure_lab_operation_end(void) { perdure::lab::end_operation(); }

// From pm, which reports what no compiler can see.

void perdure_lab_flush(const void* address, size_t bytes, int kind) {
  tell(EventKind::kFlush, address, bytes, __builtin_return_address(0),
       static_cast<FlushKind>(kind));
}
void perdure_lab_fence() { tell(EventKind::kFence, nullptr, 0, __builtin_return_address(0)); }
void perdure_lab_stream(const void* address, size_t bytes) {
  tell(EventKind::kStream, address, bytes, __builtin_return_address(0));
}
void perdure_lab_allocate(size_t bytes) {
  tell(EventKind::kAllocate, nullptr, bytes, __builtin_return_address(0));
}

// From the assembler step's trampolines, which know the site.

void perdure_lab_event_flush(const void* address, int kind, const void* pc) {
  tell(EventKind::kFlush, address, 1, pc, static_cast<FlushKind>(kind));
}
void perdure_lab_event_fence(int /*kind*/, const void* pc) {
  tell(EventKind::kFence, nullptr, 0, pc);
}
void perdure_lab_event_stream(void* address, size_t bytes, const void* pc) {
  tell(EventKind::kStream, address, bytes, pc);
}
void perdure_lab_event_locked(void* address, size_t bytes, const void* pc) {
  tell(EventKind::kUpdate, address, bytes, pc);
}
void perdure_lab_event_load(const void* address, size_t bytes, const void* pc) {
  tell(EventKind::kLoad, address, bytes, pc);
}

}  // extern "C"
