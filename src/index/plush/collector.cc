// Garbage collection of the payload log.
#include "index/plush/collector.h"

#include <algorithm>

namespace perdure::index::plush {

namespace {

// Chunks that are counted without being freed, at most, for each new chunk of a partition.
constexpr uint32_t kCountedPerChunk = 2;

}  // namespace

void Collector::collect_if_grown(Partition& partition) {
  const uint32_t number = partitions_.number_of(partition);
  if (payload_.log().chunks(number).size() <= partition.payload_chunks) return;
  collect(partition, false);
  partition.payload_chunks = payload_.log().chunks(number).size();
}

uint64_t Collector::store(Partition& partition, const Key& key, std::string_view value,
                          PayloadLog::Flush flush) {
  const uint32_t number = partitions_.number_of(partition);
  collect_if_grown(partition);
  for (size_t times = 0;; ++times) {
    try {
      return payload_.log().append(number, key.bytes, value, flush);
    } catch (const Error& error) {
      if (!pm::is_full(error) || !make_room(partition, times)) throw;
    }
  }
}

bool Collector::make_room(Partition& partition, size_t times) {
  // A chunk is worth collecting from one eighth of garbage; do not look again for less.
  if (partition.garbage_bytes < pm::kSegmentBytes / 8) return false;
  const size_t chunks = payload_.log().chunks(partitions_.number_of(partition)).size();
  if (times < chunks && collect(partition, true)) return true;
  partition.garbage_bytes = 0;
  return false;
}

// The chunk with most to gain: at least half of it known to be garbage, else the oldest that nobody
// has counted yet. Returns the number of chunks if there is none.
size_t Collector::worth_collecting(uint32_t partition) const {
  const auto& chunks = payload_.log().chunks(partition);
  size_t best = chunks.size();
  size_t uncounted = chunks.size();
  uint64_t most = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (i == payload_.log().open_chunk(partition) || chunks[i].kept) continue;
    if (!chunks[i].counted && uncounted == chunks.size()) uncounted = i;
    const uint64_t garbage = payload_.log().garbage_bytes_of(chunks[i]);
    if (garbage * 2 < chunks[i].used || garbage <= most) continue;
    best = i;
    most = garbage;
  }
  return best < chunks.size() ? best : uncounted;
}

// Returns whether any chunk was freed. `desperate`: the pool is full, so look into chunks that seem
// alive, too, and stop at the first that was freed.
bool Collector::collect(Partition& partition, bool desperate) {
  const uint32_t number = partitions_.number_of(partition);
  const auto& chunks = payload_.log().chunks(number);
  bool freed = false;
  uint32_t in_vain = 0;
  while (desperate || in_vain < kCountedPerChunk) {
    const size_t best = worth_collecting(number);
    if (best == chunks.size()) break;
    if (collect_chunk(partition, best, desperate)) {
      freed = true;
      if (desperate) return true;
    } else {
      ++in_vain;  // it is counted now
    }
  }
  if (freed || !desperate) return freed;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (i != payload_.log().open_chunk(number) && collect_chunk(partition, i, desperate))
      return true;
  }
  return false;
}

bool Collector::collect_chunk(Partition& partition, size_t index, bool desperate) {
  const uint32_t number = partitions_.number_of(partition);
  const PayloadLog::Chunk chunk = payload_.log().chunks(number)[index];
  if (chunk.kept) return false;
  std::vector<std::pair<uint64_t, PayloadLog::View>> live;
  uint64_t live_bytes = 0;
  bool hidden_by_row = false;
  const auto look = [&](uint64_t pointer, const PayloadLog::View& view) {
    Hit hit;
    if (lookup_.search(keys_.key_of(view.key), hit) != Found::kHit) return;
    if (hit.value != pointer) {
      // A process that died may have left what leads elsewhere in the caches only: durable with the
      // fence before the chunk is unlinked, else a power failure would bring back a pointer to it.
      if (hit.level > 0 && payload_.log().may_be_unflushed())
        memory_.flush(hit.value_at, sizeof *hit.value_at);
      hidden_by_row = hidden_by_row || hit.level == 0;
      return;
    }
    live.emplace_back(pointer, view);
    live_bytes += PayloadLog::entry_bytes(view.key.size(), hit.live() ? view.value.size() : 0);
  };
  // A record that leads to a damaged entry must not come to dangle, as if it were superseded; nor
  // may an entry go while a damaged record may be the one that leads to it.
  const auto keep = [&] {
    payload_.log().chunks(number)[index].kept = true;
    return false;
  };
  try {
    if (!payload_.log().visit_entries(chunk, look)) return keep();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    return keep();
  }
  // Moving what is nearly all alive gains nothing; a full pool takes what it can get.
  payload_.log().set_garbage(payload_.log().chunks(number)[index],
                             chunk.used - std::min(chunk.used, live_bytes));
  if (live_bytes * (desperate ? 8 : 2) > chunk.bytes * (desperate ? 7 : 1)) return false;
  try {
    // What hides an older version may be unlogged, and a crash go back to that older version.
    if (hidden_by_row && partition.unlogged) log_.log_all_rows(partition);
    for (const auto& [pointer, view] : live) move(partition, pointer, view);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCorrupt) return keep();
    if (!pm::is_full(error)) throw;
    payload_.log().set_garbage(payload_.log().chunks(number)[index], 0);
    return false;  // what was moved so far is in order; the chunk stays
  }
  // A lookup that saw a pointer into the chunk and could not follow it tries again.
  const RowRange range = geometry_.rows_in(number);
  const SequenceWrite guard(rows_.in(range));
  payload_.log().remove_chunk(number, index);
  return true;
}

void Collector::move(Partition& partition, uint64_t pointer, const PayloadLog::View& view) {
  log_.make_room(partition, 2);
  const Key key = keys_.key_of(view.key);
  Hit hit;
  if (lookup_.search(key, hit) != Found::kHit || hit.value != pointer) return;
  // A tombstone needs only its key.
  const uint64_t moved = payload_.log().append(partitions_.number_of(partition), view.key,
                                               hit.live() ? view.value : std::string_view{},
                                               PayloadLog::Flush::kReclaim);
  if (hit.level == 0) {
    const LogKind kind = hit.live() ? LogKind::kUpsert : LogKind::kTombstone;
    partition.log.append({key.hash, moved, log_word(kind, rows_[hit.index].epoch)});
    memory_.fence();  // the copy and the record that leads to it, before the original goes
    pm::store_release(*hit.value_at, moved);
    return;
  }
  // With the copy, that the record is a tombstone, which a process that died may have left in the
  // caches only: else a power failure would make it a record with the copy's empty value.
  if (!hit.live() && payload_.log().may_be_unflushed())
    memory_.flush(hit.tag_at, sizeof *hit.tag_at);
  memory_.fence();  // the copy, before the pointer to it
  pm::store_release(*hit.value_at, moved);
  memory_.persist(hit.value_at, sizeof(uint64_t));  // before the original goes
  pm::may_pause();
  migrator_.follow_change(partition, key, hit, hit.tag, moved);
}

}  // namespace perdure::index::plush
