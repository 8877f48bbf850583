#include "lab/model/model.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

#include "lab/model/cpu_cache.h"
#include "lab/model/dimm.h"
#include "lab/model/ledger.h"

namespace perdure::lab {
namespace {

// A line that a thread is filling with non-temporal stores.
struct StreamingLine {
  uint64_t key = 0;
  uint64_t bytes = 0;  // a bit for each byte written
  LineOwner owner;
};

struct ThreadState {
  std::vector<StreamingLine> streaming;  // in the order in which they were begun
  bool has_pending_writes = false;       // that its next fence waits for
};

constexpr uint64_t kWholeLine = ~uint64_t{0};

// The bits of bytes [first, last] of a line.
uint64_t byte_mask(uint64_t first, uint64_t last) {
  const uint64_t width = last - first + 1;
  return (width == 64 ? kWholeLine : (uint64_t{1} << width) - 1) << first;
}

}  // namespace

static_assert(kModelOperations == MemoryModel::kOperations);

struct MemoryModel::State {
  explicit State(const Profile& given) : profile(given), cache(given) {
    for (uint64_t number = 0; number < given.dimm_count; ++number) {
      dimms.emplace_back(given, number);
    }
  }

  // Calls visit(line) for every line that the range touches.
  template <class Visit>
  static void for_each_line(const Access& access, Visit visit) {
    if (access.bytes == 0) return;
    const uint64_t last = (access.address + access.bytes - 1) / kLineBytes;
    for (uint64_t line = access.address / kLineBytes; line <= last; ++line) visit(line);
  }

  CpuCache::Entry* use_line(uint64_t key, const Access& access, bool is_store);
  void miss(uint64_t key, const Access& access, bool is_store, const CpuCache::Victim& victim);
  void write_back(uint64_t key, LineOwner owner);
  void store_lines(const Access& access);
  void flush_line(uint64_t line, const Access& access, bool evict);
  void stream_line(uint64_t line, const Access& access);
  void leave_cache(uint64_t key);
  void leave_streaming(const StreamingLine& line);
  void settle_streaming(uint64_t key);
  void drain_streaming(ThreadState& thread);

  std::pair<Dimm*, uint64_t> place_of(uint64_t line);
  void insert(uint64_t line, LineOwner owner) {
    const auto [dimm, local] = place_of(line);
    dimm->write(local, owner, ledger);
  }

  ThreadState& thread(uint16_t number) {
    if (number >= threads.size()) [[unlikely]]
      threads.resize(size_t{number} + 1);
    return threads[number];
  }

  Profile profile;
  CpuCache cache;
  Ledger ledger;
  std::vector<Dimm> dimms;
  std::vector<ThreadState> threads;
  uint64_t streaming_lines = 0;  // of all threads
};

// Where a line of PM lies: the DIMM, and the line's number on it.
std::pair<Dimm*, uint64_t> MemoryModel::State::place_of(uint64_t line) {
  const uint64_t lines_per_chunk = profile.interleave_bytes / kLineBytes;
  const uint64_t chunk = line / lines_per_chunk;
  const uint64_t local_chunk = chunk / dimms.size();
  const uint64_t local = local_chunk * lines_per_chunk + line % lines_per_chunk;
  return {&dimms[chunk % dimms.size()], local};
}

inline CpuCache::Entry* MemoryModel::State::use_line(uint64_t key, const Access& access,
                                                     bool is_store) {
  bool hit;
  CpuCache::Victim victim;
  CpuCache::Entry* const entry = cache.use(key, hit, victim);
  if (!hit) {
    miss(key, access, is_store, victim);
  } else if (!access.pm) {
    ++ledger.operation(access.operation).dram_hits;
  }
  return entry;
}

void MemoryModel::State::miss(uint64_t key, const Access& access, bool is_store,
                              const CpuCache::Victim& victim) {
  // The line may be on its way around the cache.
  if (streaming_lines != 0) settle_streaming(key);
  if (victim.key != CpuCache::kNoLine && victim.entry.dirty) {
    write_back(victim.key, victim.entry.owner());
  }
  Counters& counters = ledger.operation(access.operation);
  if (!access.pm) {
    ++counters.dram_misses;
    return;
  }
  ++(is_store ? counters.pm_write_misses : counters.pm_read_misses);
  ++ledger.site(access.site).pm_misses;
  const auto [dimm, local] = place_of(CpuCache::line_of(key));
  if (dimm->read(local, access.operation, ledger)) ++counters.pm_misses_buffered;
}

// A dirty line leaves the cache on its own account.
void MemoryModel::State::write_back(uint64_t key, LineOwner owner) {
  Counters& counters = ledger.operation(owner.operation);
  if (!CpuCache::is_pm(key)) {
    ++counters.dram_writebacks;
    return;
  }
  ++counters.wpq_eviction;
  ++ledger.site(owner.site).wpq_eviction;
  insert(CpuCache::line_of(key), owner);
}

void MemoryModel::State::store_lines(const Access& access) {
  for_each_line(access, [&](uint64_t line) {
    CpuCache::Entry* const entry =
        use_line(CpuCache::key_of(line, access.pm), access, /*is_store=*/true);
    const bool was_dirty = std::exchange(entry->dirty, true);
    entry->site = access.site;
    entry->operation = access.operation;
    if (!access.pm) return;
    Counters& counters = ledger.operation(access.operation);
    SiteCounters& site = ledger.site(access.site);
    ++counters.pm_lines_written;
    ++site.pm_lines_written;
    if (!was_dirty) {
      ++counters.pm_lines_dirtied;
      ++site.pm_lines_dirtied;
    }
  });
}

void MemoryModel::State::flush_line(uint64_t line, const Access& access, bool evict) {
  const uint64_t key = CpuCache::key_of(line, access.pm);
  CpuCache::Entry* const entry = cache.find(key);
  const bool dirty = entry != nullptr && entry->dirty;
  if (dirty) entry->dirty = false;
  if (entry != nullptr && evict) cache.remove(key);

  Counters& counters = ledger.operation(access.operation);
  if (!access.pm) {
    if (dirty) ++counters.dram_writebacks;
    return;
  }
  SiteCounters& site = ledger.site(access.site);
  ++counters.flushes;
  ++site.flushes;
  if (!dirty) {
    ++counters.flushes_clean;
    ++site.flushes_clean;
    return;
  }
  ++counters.wpq_flush;
  ++site.wpq_flush;
  thread(access.thread).has_pending_writes = true;
  insert(line, {.site = access.site, .operation = access.operation});
}

void MemoryModel::State::stream_line(uint64_t line, const Access& access) {
  const uint64_t key = CpuCache::key_of(line, access.pm);
  const uint64_t line_address = line * kLineBytes;
  const uint64_t first = std::max(access.address, line_address) - line_address;
  const uint64_t last =
      std::min(access.address + access.bytes, line_address + kLineBytes) - 1 - line_address;
  leave_cache(key);
  if (access.pm) {
    ++ledger.operation(access.operation).pm_lines_written;
    ++ledger.site(access.site).pm_lines_written;
  }

  ThreadState& state = thread(access.thread);
  state.has_pending_writes = true;
  std::vector<StreamingLine>& lines = state.streaming;
  auto at = std::find_if(lines.begin(), lines.end(),
                         [key](const StreamingLine& each) { return each.key == key; });
  if (at == lines.end()) {
    if (lines.size() == profile.streaming_buffers) {
      leave_streaming(lines.front());
      lines.erase(lines.begin());
    }
    lines.push_back({.key = key, .bytes = 0, .owner = {}});
    ++streaming_lines;
    at = lines.end() - 1;
  }
  at->bytes |= byte_mask(first, last);
  at->owner = {.site = access.site, .operation = access.operation};
  if (at->bytes == kWholeLine) {
    leave_streaming(*at);
    lines.erase(at);
  }
}

// A line that is about to be streamed to does not stay cached.
void MemoryModel::State::leave_cache(uint64_t key) {
  const CpuCache::Entry* const entry = cache.find(key);
  if (entry == nullptr) return;
  const CpuCache::Entry old = *entry;
  cache.remove(key);
  if (old.dirty) write_back(key, old.owner());
}

void MemoryModel::State::leave_streaming(const StreamingLine& line) {
  --streaming_lines;
  Counters& counters = ledger.operation(line.owner.operation);
  if (!CpuCache::is_pm(line.key)) {
    ++counters.dram_writebacks;
    return;
  }
  ++counters.wpq_nontemporal;
  ++ledger.site(line.owner.site).wpq_nontemporal;
  insert(CpuCache::line_of(line.key), line.owner);
}

// An ordinary access to a line that some thread is streaming sends it out first.
void MemoryModel::State::settle_streaming(uint64_t key) {
  for (ThreadState& state : threads) {
    for (size_t at = 0; at < state.streaming.size(); ++at) {
      if (state.streaming[at].key != key) continue;
      leave_streaming(state.streaming[at]);
      state.streaming.erase(state.streaming.begin() + static_cast<ptrdiff_t>(at));
      break;
    }
  }
}

void MemoryModel::State::drain_streaming(ThreadState& state) {
  for (const StreamingLine& line : state.streaming) leave_streaming(line);
  state.streaming.clear();
}

MemoryModel::MemoryModel(const Profile& profile) {
  validate(profile);
  state_ = std::make_unique<State>(profile);
}

MemoryModel::~MemoryModel() = default;
MemoryModel::MemoryModel(MemoryModel&&) noexcept = default;
MemoryModel& MemoryModel::operator=(MemoryModel&&) noexcept = default;

void MemoryModel::load(const Access& access) {
  Counters& counters = state_->ledger.operation(access.operation);
  ++counters.loads;
  State::for_each_line(access, [&](uint64_t line) {
    if (access.pm) ++counters.pm_lines_read;
    state_->use_line(CpuCache::key_of(line, access.pm), access, /*is_store=*/false);
  });
}

void MemoryModel::store(const Access& access) {
  ++state_->ledger.operation(access.operation).stores;
  state_->store_lines(access);
}

void MemoryModel::locked(const Access& access) {
  locked_fence(access.thread, access.operation);
  load(access);
  store(access);
}

void MemoryModel::locked_fence(uint16_t thread, uint16_t operation) {
  ThreadState& state = state_->thread(thread);
  if (!state.streaming.empty()) state_->drain_streaming(state);
  ++state_->ledger.operation(operation).locked;
}

void MemoryModel::stream(const Access& access) {
  ++state_->ledger.operation(access.operation).streams;
  State::for_each_line(access, [&](uint64_t line) { state_->stream_line(line, access); });
}

void MemoryModel::flush(const Access& access, FlushKind kind) {
  const bool evict = kind != FlushKind::kClwb || state_->profile.clwb_evicts_line;
  State::for_each_line(access, [&](uint64_t line) { state_->flush_line(line, access, evict); });
}

void MemoryModel::fence(uint16_t thread, uint16_t operation, uint32_t site) {
  ThreadState& state = state_->thread(thread);
  if (!state.streaming.empty()) state_->drain_streaming(state);
  Counters& counters = state_->ledger.operation(operation);
  ++counters.fences;
  ++state_->ledger.site(site).fences;
  if (std::exchange(state.has_pending_writes, false)) ++counters.fences_waiting;
}

void MemoryModel::allocation(uint16_t operation, uint64_t bytes) {
  Counters& counters = state_->ledger.operation(operation);
  ++counters.allocations;
  counters.allocation_bytes += bytes;
}

void MemoryModel::operation_done(uint16_t operation, uint64_t payload_bytes) {
  Counters& counters = state_->ledger.operation(operation);
  ++counters.operations;
  counters.payload_bytes += payload_bytes;
}

void MemoryModel::reset_counters() { state_->ledger.reset(); }

void MemoryModel::drain() {
  for (ThreadState& thread : state_->threads) state_->drain_streaming(thread);
  state_->cache.for_each([&](uint64_t key, CpuCache::Entry& entry) {
    if (std::exchange(entry.dirty, false)) state_->write_back(key, entry.owner());
  });
  for (Dimm& dimm : state_->dimms) dimm.drain(state_->ledger);
}

const Counters& MemoryModel::counters(uint16_t operation) const {
  return std::as_const(state_->ledger).operation(operation);
}

Counters MemoryModel::total() const { return state_->ledger.total(); }

const std::vector<SiteCounters>& MemoryModel::sites() const { return state_->ledger.sites(); }

Pending MemoryModel::pending() const {
  Pending pending;
  pending.streaming_lines = state_->streaming_lines;
  state_->cache.for_each([&](uint64_t key, const CpuCache::Entry& entry) {
    if (entry.dirty && CpuCache::is_pm(key)) ++pending.cache_lines;
  });
  for (const Dimm& dimm : state_->dimms) {
    pending.media_units += dimm.dirty_units();
    pending.media_unit_lines += dimm.dirty_lines();
  }
  return pending;
}

const Profile& MemoryModel::profile() const { return state_->profile; }

}  // namespace perdure::lab
