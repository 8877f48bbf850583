// Garbage collection of the payload log.
#include <algorithm>

#include "index/plush/core.h"

namespace perdure::index::plush {

namespace {

// Chunks that are counted without being freed, at most, for each new chunk of a partition.
constexpr uint32_t kCountedPerChunk = 2;

}  // namespace

// The chunk with most to gain: at least half of it known to be dead, else the oldest that nobody has
// counted yet. Returns the number of chunks if there is none.
size_t Core::worth_collecting(uint32_t partition) const {
  const auto& chunks = payload_->chunks(partition);
  size_t best = chunks.size();
  size_t uncounted = chunks.size();
  uint64_t most = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (i == payload_->open_chunk(partition) || chunks[i].kept) continue;
    if (!chunks[i].counted && uncounted == chunks.size()) uncounted = i;
    const uint64_t dead = payload_->dead_bytes(chunks[i]);
    if (dead * 2 < chunks[i].used || dead <= most) continue;
    best = i;
    most = dead;
  }
  return best < chunks.size() ? best : uncounted;
}

// Returns whether any chunk was freed. `desperate`: the pool is full, so look into chunks that seem
// alive, too, and stop at the first that was freed.
bool Core::collect_payload(Partition& partition, bool desperate) {
  const uint32_t number = number_of(partition);
  const auto& chunks = payload_->chunks(number);
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
    if (i != payload_->open_chunk(number) && collect_chunk(partition, i, desperate)) return true;
  }
  return false;
}

bool Core::collect_chunk(Partition& partition, size_t index, bool desperate) {
  const uint32_t number = number_of(partition);
  const PayloadLog::Chunk chunk = payload_->chunks(number)[index];
  if (chunk.kept) return false;
  std::vector<std::pair<uint64_t, PayloadLog::View>> live;
  uint64_t live_bytes = 0;
  bool hidden_by_row = false;
  const auto look = [&](uint64_t pointer, const PayloadLog::View& view) {
    Hit hit;
    if (search(key_of(view.key), hit) != Found::kHit) return;
    if (hit.value != pointer) {
      hidden_by_row = hidden_by_row || hit.level == 0;
      return;
    }
    live.emplace_back(pointer, view);
    live_bytes += sizeof(PayloadEntry) + view.key.size() + (hit.live() ? view.value.size() : 0);
  };
  // A record that leads to a damaged entry must not come to dangle, as if it were superseded; nor may
  // an entry go while a damaged record may be the one that leads to it.
  const auto keep = [&] {
    payload_->chunks(number)[index].kept = true;
    return false;
  };
  try {
    if (!payload_->visit_entries(chunk, look)) return keep();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    return keep();
  }
  // Moving what is nearly all alive gains nothing; a full pool takes what it can get.
  payload_->set_dead(payload_->chunks(number)[index],
                     chunk.used - std::min(chunk.used, live_bytes));
  if (live_bytes * (desperate ? 8 : 2) > chunk.bytes * (desperate ? 7 : 1)) return false;
  try {
    // What hides an older version may be unlogged, and a crash go back to that older version.
    if (hidden_by_row && partition.unlogged) log_all_rows(partition);
    for (const auto& [pointer, view] : live) move_payload(partition, pointer, view);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCorrupt) return keep();
    if (!pm::is_full(error)) throw;
    payload_->set_dead(payload_->chunks(number)[index], 0);
    return false;  // what was moved so far is in order; the chunk stays
  }
  // A lookup that saw a pointer into the chunk and could not follow it tries again.
  const RowRange range = rows_in(number);
  const SequenceWrite guard(std::span(rows_ + range.begin, rows_ + range.end));
  payload_->remove_chunk(number, index);
  return true;
}

void Core::move_payload(Partition& partition, uint64_t pointer, const PayloadLog::View& view) {
  make_log_room(partition, 2);
  const Key key = key_of(view.key);
  Hit hit;
  if (search(key, hit) != Found::kHit || hit.value != pointer) return;
  // A tombstone needs only its key.
  const uint64_t moved =
      payload_->append(number_of(partition), view.key, hit.live() ? view.value : std::string_view{},
                       PayloadLog::Flush::kReclaim);
  if (hit.level == 0) {
    const LogKind kind = hit.live() ? LogKind::kUpsert : LogKind::kTombstone;
    partition.log.append({key.hash, moved, log_word(kind, rows_[hit.index].epoch)});
    memory_.fence();  // the copy and the record that leads to it, before the original goes
    pm::store_release(*hit.value_at, moved);
    return;
  }
  memory_.fence();  // the copy, before the pointer to it
  pm::store_release(*hit.value_at, moved);
  memory_.persist(hit.value_at, sizeof(uint64_t));
  follow_change(partition, key, hit, hit.tag, moved);
}

}  // namespace perdure::index::plush
