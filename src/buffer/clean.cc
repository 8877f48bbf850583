// Writing changed pages to the page store, by way of the staging area, and letting the log's head
// move.
#include <algorithm>
#include <cstring>

#include "buffer/pool.h"
#include "perdure/error.h"
#include "pm/layout.h"
#include "pm/pause.h"

namespace perdure::buffer {

// Writes what is staged to the page store once more: after a crash, or an attempt that failed. Each
// page that may be torn there is among it; nothing else is staged before this has succeeded.
void BufferPool::finish_batch() {
  if (!batch_open_) return;
  uint64_t count = 0;
  if (!pm::unseal_word(pm::load_relaxed(areas_.root->batch), kBatchSalt, count) ||
      count > kStagedMax) {
    throw Error(ErrorCode::kCorrupt, "the root of the database is damaged");
  }
  const uint64_t bytes = format_.page_bytes();
  std::vector<PageStore::PageWrite> writes;
  for (uint64_t i = 0; i < count; ++i) {
    char* page = batch_.get() + i * bytes;
    std::memcpy(page, areas_.staging + i * bytes, bytes);
    // A staged page that was damaged since is found in the page store, if it is torn there.
    const uint64_t id = header_of(page).id;
    if (format_.is_sound(page, id) && id < store_.capacity()) writes.push_back({id, page});
  }
  store_.write_all(writes);
  store_.sync();
  pm::store_release(areas_.root->batch, pm::seal_word(0, kBatchSalt));
  // Before other pages are staged: a crash would have them written over newer ones.
  memory_.persist(&areas_.root->batch, sizeof(uint64_t));
  batch_open_ = false;
}

// Copies a page that nobody changes to the staging area; it counts as clean from here on. False:
// not now.
bool BufferPool::stage(Frame& frame, uint64_t id, uint64_t slot) {
  if (!frame.latch.try_lock()) return false;
  const std::unique_ptr<Latch, void (*)(Latch*)> held(&frame.latch,
                                                      [](Latch* latch) { latch->unlock(); });
  if (frame.page.load(std::memory_order_relaxed) != id) return false;
  const uint64_t bytes = format_.page_bytes();
  format_.seal(frame.data, frame.unsealed);
  frame.unsealed = 0;
  frame.updates = 0;
  std::memcpy(batch_.get() + slot * bytes, frame.data, bytes);
  memory_.copy_nontemporal(areas_.staging + slot * bytes, batch_.get() + slot * bytes, bytes);
  if (frame.pm) memory_.flush(frame.data, bytes);
  pm::publish(recovery_lsn(frame), uint64_t{0});
  return true;
}

uint64_t BufferPool::clean(uint64_t limit, uint64_t before) {
  const std::lock_guard lock(clean_mutex_);
  require_sound();
  finish_batch();
  std::vector<std::pair<uint64_t, uint64_t>> changed;  // first change, frame
  for (uint64_t i = 0; i < frame_count_; ++i) {
    const uint64_t lsn = pm::acquire(recovery_lsns_[i]);
    if (lsn != 0 && lsn < before) changed.emplace_back(lsn, i);
  }
  const auto end =
      changed.begin() + static_cast<ptrdiff_t>(std::min<uint64_t>(limit, changed.size()));
  std::partial_sort(changed.begin(), end, changed.end());
  uint64_t done = 0;
  std::vector<uint64_t> batch;
  for (auto at = changed.begin(); at != end; ++at) {
    batch.push_back(at->second);
    if (batch.size() < kStagedMax && at + 1 != end) continue;
    write_batch(batch, done);
    batch.clear();
  }
  return done;
}

void BufferPool::write_batch(const std::vector<uint64_t>& numbers, uint64_t& done) {
  struct Staged {
    Frame* frame;
    uint64_t changed;
  };
  std::vector<Staged> staged;
  // Pinned to the end: a page that is not in the page store yet must not leave.
  std::vector<PageGuard> pinned;
  // Room now: what is staged counts as clean, and must be known to have been changed.
  staged.reserve(numbers.size());
  pinned.reserve(numbers.size());
  try {
    for (const uint64_t number : numbers) {
      const uint64_t id = pm::acquire(frames_[number].page);
      pm::come_to_place("buffer: to be staged");
      Frame* frame = id == kNoPage ? nullptr : pin_if_here(id);
      if (frame == nullptr) continue;
      pinned.emplace_back(*this, *frame);
      if (pm::acquire(frame->loading) || pm::acquire(frame->unjudged)) {
        continue;
      }
      // It has moved from one of these frames to another, and is staged already: writes of a batch
      // have no order.
      if (std::ranges::find(staged, frame, &Staged::frame) != staged.end()) continue;
      const uint64_t changed = pm::acquire(recovery_lsn(*frame));
      if (changed != 0 && stage(*frame, id, staged.size())) staged.push_back({frame, changed});
    }
    if (staged.empty()) return;
    log_.keep_end();
    // The staged pages, before the word that counts them; and pages in PM, before the log's head
    // moves. And where the log ends, before the page store has pages that need it: damage to their
    // entries is found then.
    memory_.fence();
    pm::store_release(areas_.root->batch, pm::seal_word(staged.size(), kBatchSalt));
    // Before the page store is written, where a crash tears pages.
    memory_.persist(&areas_.root->batch, sizeof(uint64_t));
    batch_open_ = true;
    const uint64_t bytes = format_.page_bytes();
    std::vector<PageStore::PageWrite> writes;
    for (uint64_t i = 0; i < staged.size(); ++i) {
      const char* page = batch_.get() + i * bytes;
      writes.push_back({header_of(page).id, page});
    }
    store_.write_all(writes);
    store_.sync();
    pm::store_release(areas_.root->batch, pm::seal_word(0, kBatchSalt));
    // As in finish_batch().
    memory_.persist(&areas_.root->batch, sizeof(uint64_t));
    batch_open_ = false;
  } catch (...) {
    for (const Staged& one : staged) {
      pm::publish(recovery_lsn(*one.frame), uint64_t{one.changed});
    }
    throw;
  }
  done += staged.size();
  counters_.written.fetch_add(staged.size(), std::memory_order_relaxed);
}

void BufferPool::truncate() {
  const std::lock_guard cleaning(clean_mutex_);  // whose pages count as clean too early
  // Once the log has failed the last commit was undone, and its entry may be whole all the same: it
  // is not to come to the archive, nor may the head pass it while pages are without it.
  log_.require_sound();
  const std::lock_guard miss(miss_mutex_);  // whose pages are between two frames
  // Read first: what is changed later needs no record before it.
  uint64_t head = recovery_.oldest(log_.tail());
  for (uint64_t i = 0; i < frame_count_; ++i) {
    const uint64_t lsn = pm::acquire(recovery_lsns_[i]);
    if (lsn != 0) head = std::min(head, lsn);
  }
  if (head <= log_.head()) return;
  if (archive_) archive_(log_.head(), head);
  forget_unjudged();
  pm::store_release(areas_.root->head, pm::seal_word(head / Log::kAlign, kHeadSalt));
  // Before entries are overwritten, which the next opening would else begin with.
  memory_.persist(&areas_.root->head, sizeof(uint64_t));
  log_.release_before(head);
}

}  // namespace perdure::buffer
