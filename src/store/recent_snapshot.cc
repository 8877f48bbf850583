// Snapshots of an index in DRAM that are written while the partition is written to, so that an
// opening after a crash reads one, and of the log what has come since.
//
// A snapshot (IndexSnapshot) says what the partition knew at one moment, its begin, between two
// writes that were durable: of each block what counted, and each entry of the index. It is written
// later, in steps that the writes of callers pay, in the order of the table, or of keys, leaf by
// leaf. An entry that is changed before its turn is kept in DRAM and written at the end; one that
// leads to a place which was not there at the begin is left out. So it is exact, however long it
// takes: no entry passes from what has been written to what has not, or back, since the table's
// entries stand in the order of tags, and leaves of the one are not merged with leaves of the other
// (ordered_words.cc). How many words the leaves will take nobody knows at the begin, for they are
// split meanwhile: there is room for some more than the last time. Where it does not suffice the
// snapshot is given up, and the next one knows better.
//
// It takes its place in PM before it has content: its frame says how long it is, and the checksum
// in its header is 0, both durable before the link. The content is durable before the checksum is
// stored, and this before the snapshot before it is given back. So at any time there is the last
// whole one; what a crash leaves of another has a frame by which it is freed.
//
// Nothing waits for a snapshot: blocks are compacted, freed and used again. What it says holds, of
// the next openings and all later ones, for any number of crashes, since
//
//   - a block that is there with the same incarnation is the one that it speaks of: it has all the
//     records that it had at the begin, and maybe more at its end, if it was open. What the
//     snapshot has of other blocks does not count any more: before a block goes all that counted in
//     it has been moved, into blocks or ends of blocks that came later, or was superseded by a
//     record there.
//   - what has come since stands in blocks with higher incarnations, which are never given twice,
//     and at the ends of those that were open (points 1 to 4 of docs/store.md): of a key that was
//     written since, or whose record was moved, the record that counts is there. Of any other key
//     the snapshot has it.
//   - what supersedes a record of the snapshot whose block is still there is there, too, as long as
//     that block (point 4): recovery lets it take effect, by replay(), which finds the record in
//     the index. A block that was half compacted at the begin the snapshot names; of one that is
//     since, copies are met among what has come since, and the origins in the index.
//
// The origins of copies in a block that damage keeps from being compacted to the end are the
// exception: what superseded the copies may go while the block stays. So the snapshots go, durably,
// before anything else is compacted; a later one has the index as it is then.
//
// If anything does not fit, be it a checksum, or damage in what has come since, the records are
// read. So they are after a removal by prefix, of which nobody would know what it has removed
// without: then another snapshot is begun soon.
//
// The snapshot that a clean close has left serves as the first one. What is needed of long values
// is where their records stand: one whose record stood in a block that has gone counts only if a
// record that has come since refers to it.
//
// Room: a snapshot is begun only if the pool has some to spare, and all go when it has not, or when
// it refuses anything. A store that may not grow (StoreOptions::bytes_max) writes none.
#include "store/recent_snapshot.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <iterator>
#include <new>
#include <unordered_set>
#include <utility>

#include "pm/checksum.h"
#include "store/hash.h"
#include "store/recovery_scan.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace perdure::store {

namespace {

// Behind the leaves of an ordered index.
constexpr uint64_t kLastWord = 0;
// In IndexSnapshot::generation: it is none of a close.
constexpr uint64_t kIsRecent = uint64_t{1} << 61;
// What the checksum of a frame is seeded with, in place of an incarnation.
constexpr uint64_t kFrameSeed = ~uint64_t{0} - 1;

// Segments of 64 KiB that must be free for a snapshot to be begun, besides twice what it takes, or
// to be kept: a part of the pool, so that one does not follow the other at once.
uint64_t segments_to_begin(const pm::PoolImpl& pool, uint64_t bytes) {
  return pool.capacity_bytes() / pm::kSegmentBytes / 32 + 2 * bytes / pm::kSegmentBytes + 6;
}
uint64_t segments_to_keep(const pm::PoolImpl& pool) {
  return pool.capacity_bytes() / pm::kSegmentBytes / 64 + 3;
}

uint64_t frame_checksum(const SnapshotFrame& frame, uint64_t salt, uint32_t partition) {
  return pm::checksum64(&frame.bytes, sizeof frame.bytes, block_seed(salt, partition, kFrameSeed));
}

bool has_frame(pm::PoolImpl& pool, uint64_t offset, uint64_t salt, uint32_t partition) {
  if (offset == 0 || offset % pm::kLineBytes != 0 ||
      !pool.leads_inside(offset, sizeof(SnapshotFrame) + sizeof(IndexSnapshot))) {
    return false;
  }
  const auto& frame = *pool.at<SnapshotFrame>(offset);
  return frame.checksum == frame_checksum(frame, salt, partition) &&
         frame.bytes >= sizeof(SnapshotFrame) + sizeof(IndexSnapshot) &&
         pool.leads_inside(offset, frame.bytes) && pool.heap().is_allocated(offset, frame.bytes);
}

}  // namespace

// ---- the stream

struct SnapshotStream::State {
  alignas(64) XXH3_state_t hash;
};

SnapshotStream::SnapshotStream(const pm::Memory& memory, char* to, uint64_t bytes, uint64_t seed)
    : memory_(memory),
      to_(to),
      left_words_(bytes / sizeof(uint64_t)),
      state_(std::make_unique<State>()) {
  constexpr size_t kPieceWords = 512;
  buffer_.reserve(kPieceWords);
  XXH3_INITSTATE(&state_->hash);
  XXH3_64bits_reset_withSeed(&state_->hash, seed);
}

SnapshotStream::~SnapshotStream() = default;

void SnapshotStream::write_out() {
  const uint64_t bytes = buffer_.size() * sizeof(uint64_t);
  const uint64_t skipped = std::exchange(skipped_bytes_, 0);  // the checksum's own word
  XXH3_64bits_update(&state_->hash, reinterpret_cast<const char*>(buffer_.data()) + skipped,
                     bytes - skipped);
  memory_.copy_nontemporal(to_, buffer_.data(), bytes);
  to_ += bytes;
  buffer_.clear();
}

void SnapshotStream::put(std::span<const uint64_t> words) {
  lacks_ = lacks_ || words.size() > left_words_;
  words = words.first(std::min<uint64_t>(words.size(), left_words_));
  left_words_ -= words.size();
  while (!words.empty()) {
    const size_t count = std::min(words.size(), buffer_.capacity() - buffer_.size());
    buffer_.insert(buffer_.end(), words.begin(), words.begin() + static_cast<ptrdiff_t>(count));
    words = words.subspan(count);
    if (buffer_.size() == buffer_.capacity()) write_out();
  }
}

bool SnapshotStream::fill(uint64_t words) {
  constexpr std::array<uint64_t, 64> kZeros{};
  for (words = std::min(words, left_words_); words != 0;) {
    const uint64_t some = std::min<uint64_t>(words, kZeros.size());
    put(std::span(kZeros).first(some));
    words -= some;
  }
  return left_words_ != 0;
}

uint64_t SnapshotStream::finish() {
  if (!buffer_.empty()) write_out();
  return XXH3_64bits_digest(&state_->hash);
}

// ---- writing

Partition::SnapshotWriting::SnapshotWriting(Partition& partition, uint32_t its_place,
                                            const IndexSnapshot& header)
    : place(its_place),
      met_bytes(partition.appended_bytes_),
      stream(partition.memory_,
             partition.pool_.at<char>(partition.root_.snapshots[its_place] + sizeof(SnapshotFrame)),
             header.bytes,
             block_seed(partition.config_.salt, partition.number_, ~header.generation)),
      partition_(partition),
      entries_left_(partition.index_.size()),
      ends_(partition.blocks_.size(), partition.config_.block_bytes) {
  for (const Head* head : {&partition.head_, &partition.moved_head_}) {
    if (head->slot != kNoSlot) ends_[head->slot] = static_cast<uint32_t>(head->position);
  }
  if (OrderedIndex* const ordered = partition.index_.ordered(); ordered != nullptr) {
    leaves_ = ordered->leaves();
    ordered->begin_walk();
  }
  partition.index_.watch(this);
}

// The index is left alone from here on.
void Partition::SnapshotWriting::end() {
  partition_.index_.watch(nullptr);
  if (OrderedIndex* const ordered = partition_.index_.ordered()) ordered->end_walk();
}

bool Partition::SnapshotWriting::is_written(uint64_t entry) const {
  const PartitionIndex& index = partition_.index_;
  if (index.ordered() != nullptr) return index.ordered()->is_behind_walk(entry);
  return HashIndex::tag_of_word(index.hash().word_at(entry)) < next_tag_;
}

void Partition::SnapshotWriting::will_change(uint64_t entry) noexcept {
  const PartitionIndex& index = partition_.index_;
  const Location location = index.at(entry);
  if (is_written(entry) || !was_there(location)) return;
  try {
    kept_.push_back(index.is_hash() ? index.hash().word_at(entry) : location.word());
    --entries_left_;
  } catch (const std::bad_alloc&) {
    failed = true;
  }
}

// Returns whether entries are left.
bool Partition::SnapshotWriting::write_tags(uint64_t words) {
  next_tag_ = partition_.index_.hash().for_some(next_tag_, words, [&](uint64_t word) {
    if (!was_there(Location::of_word(word))) return;
    stream.put(word);
    --entries_left_;
  });
  return next_tag_ < HashIndex::kTags;
}

// The same of an ordered index. A leaf is written when its words have been asked for.
bool Partition::SnapshotWriting::write_leaves(uint64_t words) {
  OrderedIndex& ordered = *partition_.index_.ordered();
  while (advance_ <= words) {
    words -= std::exchange(advance_, 0);
    words_.clear();
    const std::optional<uint64_t> met =
        ordered.walk_on([&](Location location) { return was_there(location); }, words_);
    if (!met) {
      stream.put(kLastWord);
      // Also if there was no room for it: so much the next one has.
      partition_.leaf_words_ = leaf_words_ * 5 / 4 / std::max<uint64_t>(leaves_, 1) + 2;
      return false;
    }
    stream.put(words_);
    entries_left_ -= *met;
    leaf_words_ += words_.size() - 2 * *met;
    // A leaf without any has been looked at, too.
    advance_ = words_.size() + 8;
  }
  advance_ -= words;
  return true;
}

void Partition::SnapshotWriting::write_some(uint64_t words) {
  if (!all_met_) {
    all_met_ = !(partition_.index_.is_hash() ? write_tags(words) : write_leaves(words));
  } else if (kept_done_ < kept_.size()) {
    words = std::min(words, kept_.size() - kept_done_);
    stream.put(std::span(kept_).subspan(kept_done_, words));
    kept_done_ += words;
  }
  if (!all_met_ || kept_done_ < kept_.size()) return;
  failed = entries_left_ != 0 || stream.lacks();
  // What was not needed may be much: no write pays for all of it.
  if (failed || stream.fill(words)) return;
  end();
  checksum = stream.finish();
  complete = true;
}

Partition::~Partition() = default;

// How much is appended from the begin of one to that of the next.
uint64_t Partition::snapshot_interval() const {
  return std::max(4 * uint64_t{config_.block_bytes}, live_bytes_ / 100 * config_.snapshot_percent);
}

// After a fence, when it is time to look.
void Partition::work_on_snapshots() {
  next_look_ = appended_bytes_ + config_.block_bytes;
  if (has_recent() && pool_.heap().is_scarce(segments_to_keep(pool_))) {
    give_up_snapshots();
    return;
  }
  if (writing_ != nullptr) {
    if (writing_->failed) {
      drop_writing();
    } else if (writing_->complete) {
      end_snapshot();
    }
    return;
  }
  const uint64_t since = appended_bytes_ - snapshot_begun_at_;
  if (since >= snapshot_interval() ||
      (wants_snapshot_ && since >= 4 * uint64_t{config_.block_bytes})) {
    begin_snapshot();
  }
}

// All that has been appended is durable. What there is no room for is tried again later.
void Partition::begin_snapshot() {
  snapshot_begun_at_ = appended_bytes_;
  wants_snapshot_ = false;
  if (uncertain_below_ != 0 || !accounts_exact_) return;
  try {
    drop_unfinished();  // what there was no memory for
    std::vector<uint64_t> head;
    const IndexSnapshot header =
        compose_head(pool_.generation() | kIsRecent | kind_of_index(), words_of_index(), head);
    const uint64_t bytes = sizeof(SnapshotFrame) + header.bytes;
    if (pool_.heap().is_scarce(segments_to_begin(pool_, bytes))) return;
    const uint32_t place = root_.snapshots[0] == 0 ? 0 : 1;
    if (root_.snapshots[place] != 0) return;  // both: one has damage in it
    {
      pm::Heap::Txn txn(pool_.heap());
      const uint64_t offset = txn.allocate(bytes);
      auto* frame = pool_.at<SnapshotFrame>(offset);
      *frame = {.checksum = 0, .bytes = bytes, .reserved = {}};
      frame->checksum = frame_checksum(*frame, config_.salt, number_);
      auto* snapshot = pool_.at<IndexSnapshot>(offset + sizeof(SnapshotFrame));
      snapshot->checksum = 0;
      memory_.flush(frame, sizeof *frame);
      memory_.flush(&snapshot->checksum, sizeof snapshot->checksum);
      // Before the link: the frame, by which it can be freed, and that it has no content, where the
      // block may hold an earlier snapshot.
      txn.publish(offset, root_.snapshots[place]);
      recent_bytes_[place] = bytes;
    }
    count_recent();
    writing_ = std::make_unique<SnapshotWriting>(*this, place, header);
    writing_->stream.put(head);
    if (index_.ordered() != nullptr) writing_->stream.put(OrderedIndex::kLeavesFollow);
    // What went past the caches is ordered by a fence of the thread that stored it, and the next
    // one may be another thread's.
    fence();
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
  } catch (const std::bad_alloc&) {
    // It comes again.
  }
}

// Before a fence: as many bytes as were appended, of an ordered index, which has more, twice as
// many: what comes while one is written is what an opening has to read besides. A piece at a time,
// since each one finds the index, and all that it is compared with, out of the caches. Does not
// throw.
void Partition::write_some_snapshot() {
  if (writing_->complete || writing_->failed) return;
  constexpr uint64_t kLeast = 128;
  constexpr uint64_t kPiece = 1024;
  const uint64_t appended = appended_bytes_ - std::exchange(writing_->met_bytes, appended_bytes_);
  writing_->owed_bytes += std::max(index_.ordered() != nullptr ? 2 * appended : appended, kLeast);
  if (writing_->owed_bytes < kPiece) return;
  try {
    writing_->write_some(std::exchange(writing_->owed_bytes, 0) / sizeof(uint64_t));
  } catch (const std::bad_alloc&) {
    writing_->failed = true;
  }
  unfenced_ = true;
  if (writing_->complete || writing_->failed) next_look_ = 0;
}

// That an index snapshot takes, at most as a rule.
uint64_t Partition::words_of_index() const {
  if (index_.is_hash()) return index_.size();
  constexpr uint64_t kFixed = 64;
  return 2 * index_.size() + leaf_words_ * index_.ordered()->leaves() + kFixed;
}

// All of it is durable.
void Partition::end_snapshot() {
  const uint32_t place = writing_->place;
  auto* snapshot = pool_.at<IndexSnapshot>(root_.snapshots[place] + sizeof(SnapshotFrame));
  pm::store_release(snapshot->checksum, writing_->checksum);
  memory_.flush(&snapshot->checksum, sizeof snapshot->checksum);
  fence();  // it counts, before the one that counted goes
  auto written = std::move(writing_);
  try {
    drop_recent(1 - place);
    drop_snapshot();
  } catch (const std::bad_alloc&) {
    writing_ = std::move(written);  // all of this comes once more
    return;
  }
  ++snapshots_written_;
}

void Partition::drop_writing() {
  writing_.reset();
  drop_unfinished();
}

// What has no content yet.
void Partition::drop_unfinished() {
  for (uint32_t place = 0; place < std::size(root_.snapshots); ++place) {
    if (recent_bytes_[place] == 0) continue;
    const auto* snapshot = pool_.at<IndexSnapshot>(root_.snapshots[place] + sizeof(SnapshotFrame));
    if (snapshot->checksum == 0) drop_recent(place);
  }
}

// Durable on return.
void Partition::drop_recent(uint32_t place) {
  uint64_t& link = root_.snapshots[place];
  if (link == 0) return;
  if (recent_bytes_[place] != 0) {
    pm::Heap::Txn txn(pool_.heap(), true);
    txn.retire(link, link, 0);
  } else {
    // What it leads to may be another's block: that stays allocated.
    pm::store_release(link, uint64_t{0});
    memory_.flush(&link, sizeof link);
    fence();
  }
  recent_bytes_[place] = 0;
  count_recent();
}

// Gives room back. Returns whether there was any. Durable on return: from here on the next recovery
// reads the records.
bool Partition::give_up_snapshots() {
  if (!has_recent() || pool_.read_only()) return false;
  writing_.reset();
  for (uint32_t place = 0; place < std::size(root_.snapshots); ++place) drop_recent(place);
  drop_snapshot();
  snapshot_begun_at_ = appended_bytes_;
  count_recent();
  return true;
}

// How many partitions have some, for whoever needs the room.
void Partition::count_recent() {
  if (config_.snapshots == nullptr || has_recent() == counted_recent_) return;
  counted_recent_ = has_recent();
  if (counted_recent_) {
    config_.snapshots->fetch_add(1, std::memory_order_relaxed);
  } else {
    config_.snapshots->fetch_sub(1, std::memory_order_relaxed);
  }
}

// ---- recovery

bool is_recent_sound(pm::PoolImpl& pool, uint64_t offset, uint64_t salt, uint32_t partition) {
  if (!has_frame(pool, offset, salt, partition)) return false;
  const auto& snapshot = *pool.at<IndexSnapshot>(offset + sizeof(SnapshotFrame));
  const uint64_t bytes = pool.at<SnapshotFrame>(offset)->bytes - sizeof(SnapshotFrame);
  return snapshot.checksum == 0 || holds(snapshot, bytes, salt, partition);
}

// Which of those that are linked are snapshots, whole or not.
void Partition::find_snapshots() {
  if (root_.snapshot != 0 && is_sound(pool_, root_.snapshot, config_.salt, number_)) {
    snapshot_bytes_ = pool_.at<IndexSnapshot>(root_.snapshot)->bytes;
  }
  for (uint32_t place = 0; place < std::size(root_.snapshots); ++place) {
    const uint64_t offset = root_.snapshots[place];
    const bool is_one = has_frame(pool_, offset, config_.salt, number_);
    // A link that damage has made the same as the other one must not free what that leads to.
    const bool is_twice = place != 0 && offset == root_.snapshots[0];
    recent_bytes_[place] = is_one && !is_twice ? pool_.at<SnapshotFrame>(offset)->bytes : 0;
  }
}

// Takes what the newest snapshot tells that does, and what has come since. Returns false, having
// changed nothing, if there is none.
bool Partition::load_base(std::span<const uint32_t> order) {
  if (index_.pm() != nullptr) return false;
  struct Candidate {
    const IndexSnapshot* snapshot;
    uint32_t place;
  };
  std::vector<Candidate> candidates;
  for (uint32_t place = 0; place < std::size(root_.snapshots); ++place) {
    if (recent_bytes_[place] == 0) continue;
    const auto* snapshot = pool_.at<IndexSnapshot>(root_.snapshots[place] + sizeof(SnapshotFrame));
    if (holds(*snapshot, recent_bytes_[place] - sizeof(SnapshotFrame), config_.salt, number_)) {
      candidates.push_back({snapshot, place});
    }
  }
  if (snapshot_bytes_ != 0) {
    candidates.push_back({pool_.at<IndexSnapshot>(root_.snapshot), kOfClose});
  }
  std::ranges::sort(candidates, std::greater(), [](const Candidate& one) {
    return std::pair(one.snapshot->next_incarnation, one.snapshot->next_version);
  });
  for (const Candidate& one : candidates) {
    try {
      if (read_base(*one.snapshot, order)) {
        base_ = one.place;
        return true;
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
    }
    forget_checkpoint();
    index_.clear();
  }
  return false;
}

bool Partition::read_base(const IndexSnapshot& header, std::span<const uint32_t> order) {
  if (is_of_ordered(header) != (index_.ordered() != nullptr)) return false;
  const SnapshotParts parts(header);
  // Of each slot whether its block is the one that the snapshot speaks of, and where that ended.
  std::vector<uint64_t> ends(blocks_.size());
  std::vector<Location> valueless;  // records whose long values have gone
  for (const SnapshotBlock& one : parts.blocks) {
    if (one.slot >= blocks_.size()) return false;
    const Block& block = blocks_[one.slot];
    const bool is_long_value = one.is_long_value != 0;
    // Of a snapshot that does not tell whose it is.
    if (is_long_value && one.live != 0 && one.expiry_ms_or_owner == 0) return false;
    if (block.state <= State::kSpare || block.incarnation != one.incarnation) {
      if (is_long_value && one.live != 0) {
        valueless.push_back(Location::of_word(one.expiry_ms_or_owner));
      }
      continue;
    }
    if ((block.state == State::kOverflow) != is_long_value) return false;
    ends[one.slot] = sizeof(BlockHeader) + one.bytes;
  }
  std::vector<std::pair<uint32_t, uint64_t>> tail;
  uint64_t tail_bytes = 0;
  for (const uint32_t slot : order) {
    const Block& block = blocks_[slot];
    const bool opened_since = block.incarnation >= header.next_incarnation;
    const uint64_t begin = opened_since ? sizeof(BlockHeader) : ends[slot];
    if (begin == 0) return false;  // it was there, and the snapshot does not know of it
    if (block.state == State::kClosed && begin >= sizeof(BlockHeader) + block.bytes) {
      if (begin > sizeof(BlockHeader) + block.bytes) return false;
      continue;
    }
    tail.emplace_back(slot, begin);
    tail_bytes += config_.block_bytes - begin;
  }
  // To read all records is as quick, then.
  if (tail_bytes > order.size() * payload_bytes() / 2 && order.size() > 8) return false;
  Scan scan;
  scan.is_tail = true;
  if (!scan_tail(tail, scan)) return false;
  for (const auto& [bytes, removals] : scan.prefixes) {
    for (const auto& [prefix, version] : removals) {
      if (version >= header.next_version) return false;
    }
  }
  const auto is_there = [&](Location location) {
    return location.slot() < ends.size() && ends[location.slot()] != 0 &&
           blocks_[location.slot()].state != State::kOverflow;
  };
  std::unordered_set<uint64_t> removals_since;  // records of removals that have been moved
  for (const auto& [version, removal] : prefix_removals_) removals_since.insert(version);
  take_snapshot(header, parts);
  std::erase_if(stale_, [&](uint32_t slot) { return slot >= ends.size() || ends[slot] == 0; });
  std::erase_if(prefix_removals_, [&](const auto& one) {
    return !is_there(one.second.location) && !removals_since.contains(one.first);
  });
  // A long value whose record has gone, but for what has come since, is not needed.
  for (const SnapshotBlock& one : parts.blocks) {
    if (one.is_long_value == 0 || ends[one.slot] == 0) continue;
    if (!is_there(Location::of_word(one.expiry_ms_or_owner))) blocks_[one.slot].live = 0;
  }
  // A value goes after what superseded its record. With it goes a long key, by which replay() would
  // find the record: it is left out.
  std::unordered_set<uint64_t> keyless;
  for (const Location location : valueless) {
    if (!is_there(location)) continue;
    const RecordView record = view_at(location);
    if (!record.has(kKeyOutside)) continue;
    discount(record, blocks_[location.slot()]);
    keyless.insert(location.word());
  }
  const auto counts_still = [&](Location location) {
    return is_there(location) && (keyless.empty() || !keyless.contains(location.word()));
  };
  if (!index_.assign(parts.entries, counts_still)) return false;
  replay(scan, header.next_version);
  return true;
}

// What is not to be what the next recovery begins with goes. Durable on return.
void Partition::keep_base() {
  const bool keeps = config_.snapshot_percent != 0 && uncertain_below_ == 0 && accounts_exact_;
  for (uint32_t place = 0; place < std::size(root_.snapshots); ++place) {
    if (!keeps || base_ != place) drop_recent(place);
  }
  if (!keeps || base_ != kOfClose) drop_snapshot();
  count_recent();
  if (config_.snapshot_percent == 0) return;
  next_look_ = 0;
  // What has come since the base counts, too, as far as it is known.
  wants_snapshot_ = base_ == kNoBase || recovered_ > index_.size() / 8;
}

}  // namespace perdure::store
