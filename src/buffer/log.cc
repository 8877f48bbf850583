#include "buffer/log.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "buffer/layout.h"
#include "perdure/error.h"
#include "pm/checksum.h"
#include "pm/layout.h"

namespace perdure::buffer {

namespace {

constexpr uint64_t kMarkBytes = Log::kAlign;

uint64_t checksum_of(const char* entry, uint64_t bytes, uint64_t salt) {
  constexpr size_t kSkipped = sizeof(EntryHeader::checksum);
  return pm::checksum64(entry + kSkipped, bytes - kSkipped, salt);
}

}  // namespace

bool parse_record(const char* at, uint64_t bytes, LogRecord& record) {
  if (bytes < sizeof(RecordHeader)) return false;
  std::memcpy(&record.header, at, sizeof(RecordHeader));
  const RecordHeader& header = record.header;
  const uint64_t least =
      sizeof(RecordHeader) + uint64_t{header.key_bytes} + uint64_t{header.value_bytes};
  if (header.bytes > bytes || header.bytes % 8 != 0 || header.bytes < least) return false;
  record.key = {at + sizeof(RecordHeader), header.key_bytes};
  record.value = {at + sizeof(RecordHeader) + header.key_bytes, header.value_bytes};
  return true;
}

template <typename VisitPiece>
void Log::visit_pieces(uint64_t lsn, uint64_t bytes, VisitPiece visit) const {
  const uint64_t at = lsn % bytes_;
  const uint64_t first = std::min(bytes, bytes_ - at);
  visit(at, first, uint64_t{0});
  if (first < bytes) visit(uint64_t{0}, bytes - first, first);
}

void Log::copy_out(uint64_t lsn, char* to, uint64_t bytes) const {
  visit_pieces(lsn, bytes, [&](uint64_t at, uint64_t piece, uint64_t done) {
    std::memcpy(to + done, ring_ + at, piece);
  });
}

bool Log::entry_is_sound(const char* entry, uint64_t bytes, uint64_t salt) {
  EntryHeader header;
  std::memcpy(&header, entry, sizeof header);
  return header.bytes == bytes && header.checksum == checksum_of(entry, bytes, salt);
}

Log::Found Log::entry_at(uint64_t lsn, Others others, std::vector<char>& copy) const {
  EntryHeader header;
  copy_out(lsn, reinterpret_cast<char*>(&header), sizeof header);
  if (header.lsn != lsn || header.bytes < kAlign || header.bytes % kAlign != 0 ||
      header.bytes > bytes_) {
    return {};
  }
  const char* entry = ring_ + lsn % bytes_;
  if (others == Others::kMayWrite || lsn % bytes_ + header.bytes > bytes_) {
    copy.resize(header.bytes);
    copy_out(lsn, copy.data(), header.bytes);
    entry = copy.data();
  }
  if (!entry_is_sound(entry, header.bytes, salt_)) return {};
  return {lsn, {entry, header.bytes}};
}

Log::Found Log::next_entry(uint64_t lsn, Others others, std::vector<char>& copy) const {
  const Found here = entry_at(lsn, others, copy);
  if (!here.entry.empty()) return here;
  const Found later = entry_at(lsn + bytes_, others, copy);
  if (later.entry.empty()) return {};
  EntryHeader header;
  std::memcpy(&header, later.entry.data(), sizeof header);
  return header.kind == EntryKind::kMark ? later : Found{};
}

void Log::visit_records(uint64_t lsn, const char* entry, uint64_t bytes, const Visit& visit) {
  LogRecord record;
  for (uint64_t at = sizeof(EntryHeader); at + sizeof(RecordHeader) <= bytes;) {
    if (!parse_record(entry + at, bytes - at, record) || record.header.bytes == 0) return;
    visit(lsn, lsn + at, record);
    at += record.header.bytes;
  }
}

void Log::analyse(uint64_t head, const Visit& visit) {
  std::vector<char> copy;
  uint64_t used = 0;
  uint64_t lsn = head;
  while (used < bytes_) {
    const auto [found, entry] = next_entry(lsn, Others::kNone, copy);
    if (entry.empty() || used + entry.size() > bytes_) break;
    visit_records(found, entry.data(), entry.size(), visit);
    used += entry.size();
    lsn = found + entry.size();
  }
  head_.store(head, std::memory_order_release);
  used_.store(used, std::memory_order_relaxed);
  tail_.store(lsn, std::memory_order_release);
  read_to_ = lsn;
  judge_end();
  if (!file_) return judge_ring(used);
  // What was read is not durable because it was read: a system that could not write a page may show
  // it all the same, and has told of it somebody who is dead by now. The sync is the mark's.
  visit_pieces(head, used,
               [this](uint64_t at, uint64_t piece, uint64_t) { file_->write_again(at, piece); });
}

// Entries up to the end that PM keeps were durable, and acknowledged, or about to be.
void Log::judge_end() {
  if (end_ == nullptr) return;
  uint64_t end = 0;
  if (!pm::unseal_word(pm::load_relaxed(*end_), kLogEndSalt, end)) {
    if (!is_to_read()) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("where the log of the database ends{} is damaged: save what can be "
                              "read with `perdure pool salvage`",
                              file_ ? " in its file" : ""));
    }
    lacks_entries_ = true;  // nobody knows whether it does
    has_lost_end_ = true;
    return;
  }
  end *= kAlign;
  if (tail() >= end) return;
  if (!is_to_read()) {
    if (file_) file_->refuse_as_old();
    throw Error(ErrorCode::kCorrupt,
                "the log of the database is damaged: it ends before the last commit that was "
                "acknowledged: save what can be read with `perdure pool salvage`");
  }
  lacks_entries_ = true;
  tail_.store(end, std::memory_order_release);  // pages in the page store have such LSNs
}

// An entry in PM is written when the one before it is durable, and LSNs are given once: so a crash
// leaves no whole entry of commits with an LSN behind the end. One that is there tells of damage to
// those before it, of which the end that PM keeps does not tell after a power failure. An entry has
// at most a quarter of the ring, and so has one that is damaged.
void Log::judge_ring(uint64_t used) {
  const uint64_t end = read_to_;
  const uint64_t behind = std::min(bytes_ - used, bytes_ / 4 + kAlign);
  std::vector<char> copy;
  for (uint64_t i = kAlign; i < behind; i += kAlign) {
    const uint64_t at = (end + i) % bytes_;
    EntryHeader header;
    std::memcpy(&header, ring_ + at, sizeof header);
    if (header.lsn <= end || header.lsn % bytes_ != at || header.kind != EntryKind::kCommit) {
      continue;
    }
    if (entry_at(header.lsn, Others::kNone, copy).entry.empty()) continue;
    if (!to_read_) {
      throw Error(ErrorCode::kCorrupt,
                  "the log of the database is damaged before its last entries: save what can be "
                  "read with `perdure pool salvage`");
    }
    lacks_entries_ = true;
    return;
  }
}

void Log::make_durable() {
  if (file_) return;  // analyse() has written it again
  visit_pieces(head(), used(),
               [this](uint64_t at, uint64_t piece, uint64_t) { memory_.flush(ring_ + at, piece); });
  memory_.fence();
}

void Log::read_entries(uint64_t from, uint64_t to,
                       const std::function<void(std::string_view)>& visit) const {
  std::vector<char> copy;
  for (uint64_t lsn = from; lsn < to;) {
    const auto [found, entry] = next_entry(lsn, Others::kMayWrite, copy);
    if (entry.empty() || found >= to) return;
    visit(entry);
    lsn = found + entry.size();
  }
}

uint64_t Log::used() const { return used_.load(std::memory_order_relaxed); }

// A quarter of the ring for an entry at most; and always room for some marks.
uint64_t Log::room() const {
  const uint64_t used = this->used() + 64 * kMarkBytes;
  return used >= bytes_ ? 0 : std::min(bytes_ - used, bytes_ / 4);
}

void Log::require_lsns() const {
  if (tail() < kLsnMax - kLsnsForOpenings) return;
  throw Error(ErrorCode::kNoSpace,
              "the log of the database has used up its numbers; nothing was changed: dump the "
              "database, and load it into a new one");
}

void Log::write(std::span<char> entry, EntryKind kind, uint64_t lsn) {
  auto* header = reinterpret_cast<EntryHeader*>(entry.data());
  header->lsn = lsn;
  header->bytes = static_cast<uint32_t>(entry.size());
  header->kind = kind;
  header->checksum = checksum_of(entry.data(), entry.size(), salt_);
  if (used() + entry.size() > bytes_) {
    throw Error(ErrorCode::kInternal, "a log entry is written where older ones are needed");
  }
  if (lsn + entry.size() >= kLsnMax) {
    throw Error(ErrorCode::kNoSpace,
                "the log of the database has used up its numbers: it cannot be opened any more");
  }
  visit_pieces(lsn, entry.size(), [&](uint64_t at, uint64_t piece, uint64_t done) {
    put(at, entry.data() + done, piece);
  });
  used_.fetch_add(entry.size(), std::memory_order_relaxed);
  tail_.store(lsn + entry.size(), std::memory_order_release);
}

void Log::put(uint64_t at, const char* from, uint64_t bytes) {
  if (file_) {
    file_->write(at, from, bytes);
  } else {
    memory_.copy_nontemporal(ring_ + at, from, bytes);
  }
}

void Log::fence() {
  if (file_) {
    file_->sync();
  } else {
    memory_.fence();
  }
  if (end_ == nullptr) return;
  // Not before the entries are durable: a crash in between would leave a log that seems to lack
  // them.
  pm::store_release(*end_, pm::seal_word(tail() / kAlign, kLogEndSalt));
  // Before anybody hears of the commits: a file that lacks them is to be found out. Of a log in PM
  // the word is not worth a second fence: see keep_end().
  if (file_) memory_.persist(end_, sizeof *end_);
}

void Log::keep_end() const {
  if (end_ != nullptr && !file_) memory_.flush(end_, sizeof *end_);
}

void Log::append(std::vector<char>& entry) {
  entry.resize((entry.size() + kAlign - 1) / kAlign * kAlign, '\0');
  write(entry, EntryKind::kCommit, tail());
}

void Log::mark() {
  // Without memory: a commit that found none ends with a mark, or commits would stop.
  alignas(kAlign) std::array<char, kMarkBytes> entry{};
  write(entry, EntryKind::kMark, tail() + bytes_);
  // Before anything that bears a later LSN may reach PM: else the next opening would end the log
  // before the mark, and give those LSNs a second time.
  fence();
}

void Log::release_before(uint64_t head) {
  const uint64_t from = this->head();
  if (head == from) return;
  // A mark is one ring further than its place, so only the places count. They are the same only if
  // all of the ring was in use.
  const uint64_t gone = (head - from) % bytes_;
  used_.fetch_sub(gone == 0 ? bytes_ : gone, std::memory_order_relaxed);
  head_.store(head, std::memory_order_release);
}

bool Log::read_record(uint64_t lsn, std::vector<char>& buffer, LogRecord& record) const {
  RecordHeader header;
  copy_out(lsn, reinterpret_cast<char*>(&header), sizeof header);
  if (header.bytes < sizeof header || header.bytes > bytes_) return false;
  buffer.resize(header.bytes);
  copy_out(lsn, buffer.data(), header.bytes);
  return parse_record(buffer.data(), header.bytes, record);
}

}  // namespace perdure::buffer
