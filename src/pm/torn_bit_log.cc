#include "pm/torn_bit_log.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <iterator>

#include "perdure/error.h"
#include "pm/layout.h"

namespace perdure::pm {

namespace {

constexpr uint64_t kChunkSalt = 0xc47c;
constexpr uint64_t kOldestSalt = 0x01de;

constexpr uint64_t kWordMask = ~uint64_t{0} >> 1;
constexpr uint64_t kLineWords = kLineBytes / 8;

}  // namespace

uint64_t TornBitLog::chunk_bytes_for(uint64_t records) {
  return (kChunkHeaderBytes + most_bytes(records) + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
}

uint64_t TornBitLog::after(uint64_t position) {
  constexpr uint64_t kLastLine = kUnitBytes - kLineBytes;
  const uint64_t unit = position / kUnitBytes * kUnitBytes;
  const uint64_t within = position - unit;
  if (within >= kLastLine) return unit + kUnitBytes;
  return within + 2 * kRecordBytes <= kLastLine ? position + kRecordBytes : unit + kLastLine;
}

TornBitLog::TornBitLog(const Memory& memory, char* area, uint64_t chunk_bytes, uint32_t chunks)
    : current_(area), chunk_bytes_(chunk_bytes), memory_(&memory), area_(area), chunks_(chunks) {
  assert(chunks >= 3);
  nontemporal_ = memory.domain() == Domain::kLine && prefers_nontemporal_lines();
}

void TornBitLog::format() {
  header(0).sequence = seal_word(1, kChunkSalt);  // plus one, so that 0 means never used
  memory_->flush(&header(0), sizeof(ChunkHeader));
  begin_line();
}

void TornBitLog::append(const RedoRecord& record) {
  assert(record.c != 0);
  if (!has_room(1)) [[unlikely]]
    throw Error(ErrorCode::kInternal,
                "a record is appended to a log chunk that has no room for it");
  const uint64_t encoded[3] = {(record.a & kWordMask) << 1 | flag_,
                               (record.b & kWordMask) << 1 | flag_,
                               record.c << 3 | record.a >> 63 << 2 | record.b >> 63 << 1 | flag_};
  char* target = current_ + position_;
  const uint64_t at = position_ % kLineBytes / 8;
  position_ = after(position_);
  if (!nontemporal_) {
    auto* words = reinterpret_cast<uint64_t*>(target);
    for (int i = 0; i < 3; ++i) store_relaxed(words[i], encoded[i]);
    memory_->flush(words, kRecordBytes);
    return;
  }
  // Whole lines: words of earlier records are written again as they are, so a torn line harms none.
  target -= at * 8;
  for (uint64_t i = 0; i < std::size(encoded); ++i) lines_[at + i] = encoded[i];
  memory_->copy_nontemporal(target, lines_, kLineBytes);
  const uint64_t end = at + std::size(encoded);
  if (end > kLineWords)
    memory_->copy_nontemporal(target + kLineBytes, lines_ + kLineWords, kLineBytes);
  if (end >= kLineWords) {
    std::copy_n(lines_ + kLineWords, kLineWords, lines_);
    std::fill_n(lines_ + kLineWords, kLineWords, flag_ ^ 1);
  }
  if (position_ % kLineBytes / 8 != end % kLineWords) begin_line();  // the rest of it stays unused
}

void TornBitLog::begin_line() {
  // What is not valid here and now, without a look at what is there.
  std::ranges::fill(lines_, flag_ ^ 1);
}

// What the line at the position holds: records, and words of the ring's last pass.
void TornBitLog::load_line() {
  if (!nontemporal_ || position_ >= chunk_bytes_) return;
  begin_line();
  std::memcpy(lines_, current_ + position_ / kLineBytes * kLineBytes, kLineBytes);
}

bool TornBitLog::read(uint64_t sequence, uint64_t position, RedoRecord& record) const {
  const auto* words = reinterpret_cast<const uint64_t*>(chunk(sequence) + position);
  const uint64_t flag = flag_of(sequence);
  if ((words[0] & 1) != flag || (words[1] & 1) != flag || (words[2] & 1) != flag) return false;
  record.a = words[0] >> 1 | (words[2] >> 2 & 1) << 63;
  record.b = words[1] >> 1 | (words[2] >> 1 & 1) << 63;
  record.c = words[2] >> 3;
  return record.c != 0;
}

bool TornBitLog::fill_rest(uint64_t flag) {
  auto* words = reinterpret_cast<uint64_t*>(current_);
  uint64_t dirty_from = chunk_bytes_;
  uint64_t dirty_to = 0;
  for (uint64_t at = position_; at < chunk_bytes_; at += 8) {
    if ((words[at / 8] & 1) == flag) continue;
    store_relaxed(words[at / 8], flag);
    if (dirty_to == 0) dirty_from = at;
    dirty_to = at + 8;
  }
  if (dirty_to == 0) return false;
  memory_->flush(current_ + dirty_from, dirty_to - dirty_from);
  return true;
}

void TornBitLog::move_to(uint64_t sequence) {
  sequence_ = sequence;
  flag_ = flag_of(sequence);
  current_ = chunk(sequence);
}

void TornBitLog::advance() {
  if (!next_is_free()) [[unlikely]]
    throw Error(ErrorCode::kInternal, "a log moves on to a chunk that is still live");
  // No word of the chunk may bear the flag of its next use. Before the next header: a crash that
  // kept that and lost some of these words would leave the chunk so for good, since nobody comes
  // back to it, and when it is used again the next crash would replay what they still hold: whole
  // records of two uses before.
  fill_rest(flag_);
  memory_->fence();
  move_to(sequence_ + 1);
  position_ = kChunkHeaderBytes;
  store_relaxed(header(sequence_).oldest, seal_word(oldest_, kOldestSalt));
  store_release(header(sequence_).sequence, seal_word(sequence_ + 1, kChunkSalt));
  // The header, before any record that is valid only under its flag.
  memory_->persist(&header(sequence_), sizeof(ChunkHeader));
  begin_line();
}

void TornBitLog::release_before(uint64_t sequence) {
  oldest_ = sequence;
  store_relaxed(header(sequence_).oldest, seal_word(oldest_, kOldestSalt));
  memory_->flush(&header(sequence_).oldest, sizeof(uint64_t));
}

bool TornBitLog::replay(const std::function<void(const RedoRecord&, uint64_t sequence)>& apply) {
  uint64_t newest = 0;
  for (uint64_t i = 0; i < chunks_; ++i) {
    const uint64_t word = header(i).sequence;
    uint64_t value = 0;
    if (word == 0) continue;
    if (!unseal_word(word, kChunkSalt, value) || value == 0 || (value - 1) % chunks_ != i) {
      return false;
    }
    if (value > newest) newest = value;
  }
  if (newest == 0) return false;
  move_to(newest - 1);
  oldest_ = sequence_ + 1 >= chunks_ ? sequence_ + 1 - chunks_ : 0;
  uint64_t noted = 0;
  if (header(sequence_).oldest != 0) {
    if (!unseal_word(header(sequence_).oldest, kOldestSalt, noted) || noted > sequence_) {
      return false;
    }
    if (noted > oldest_) oldest_ = noted;
  }
  for (uint64_t s = oldest_; s <= sequence_; ++s) {
    uint64_t value = 0;
    if (!unseal_word(header(s).sequence, kChunkSalt, value) || value != s + 1) return false;
    position_ = kChunkHeaderBytes;
    RedoRecord record{};
    while (position_ + kRecordBytes <= chunk_bytes_ && read(s, position_, record)) {
      apply(record, s);
      position_ = after(position_);
    }
  }
  fill_rest(flag_ ^ 1);
  // All of the live chunks: a process that died may have left headers, records and the flags of the
  // rest in the caches only.
  for (uint64_t s = oldest_; s <= sequence_; ++s) memory_->flush(chunk(s), chunk_bytes_);
  // What was applied, before anybody acts on it; the headers, before a record that counts by them;
  // the rest, since what a torn record left behind must not complete the next one.
  memory_->fence();
  load_line();
  return true;
}

}  // namespace perdure::pm
