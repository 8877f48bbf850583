#include "buffer/recovery.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <ranges>
#include <span>

#include "buffer/replay.h"
#include "perdure/error.h"
#include "pm/pause.h"

namespace perdure::buffer {

uint64_t NamedPages::find_slot(uint64_t page) const {
  uint64_t slot = slot_of(page);
  while (slots_[slot] != 0 && pages_[slots_[slot] - 1].page != page) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

uint32_t NamedPages::find(uint64_t page) const {
  return slots_[find_slot(page)] - 1;  // an empty one is kNone
}

void NamedPages::grow() {
  --shift_;
  slots_.assign(slots_.size() * 2, 0);
  for (uint32_t place = 0; place < pages_.size(); ++place) {
    slots_[find_slot(pages_[place].page)] = place + 1;
  }
}

void NamedPages::flush() {
  while (2 * (pages_.size() + waiting_count_) > slots_.size()) grow();
  const std::span noted(waiting_.data(), waiting_count_);
  for (const Named& one : noted) __builtin_prefetch(&slots_[slot_of(one.page)]);
  for (const Named& one : noted) {
    if (const uint32_t place = slots_[slot_of(one.page)]) __builtin_prefetch(&pages_[place - 1]);
  }
  for (const Named& one : noted) {
    uint32_t& slot = slots_[find_slot(one.page)];
    if (slot == 0) {
      pages_.push_back(one);
      slot = static_cast<uint32_t>(pages_.size());
    } else {
      pages_[slot - 1].lsn = one.lsn;
    }
  }
  waiting_count_ = 0;
}

void Recovery::analyse(uint64_t head) {
  open_head_ = head;
  log_.analyse(head, [&](uint64_t entry, uint64_t lsn, const LogRecord& record) {
    pages_.note(record.header.page, entry, lsn);
  });
  open_tail_ = log_.tail();
  pages_.flush();
  settled_ = std::make_unique<std::atomic<bool>[]>(pages_.size());
  pending_count_.store(pages_.size(), std::memory_order_release);
}

bool Recovery::is_pending(uint32_t place) const {
  return place != NamedPages::kNone && !pm::acquire(settled_[place]);
}

bool Recovery::find(uint64_t id, Expected& expected) const {
  if (pending() == 0) return false;
  const uint32_t place = pages_.find(id);
  if (!is_pending(place)) return false;
  expected = {pages_[place].lsn, pages_[place].entry};
  return true;
}

void Recovery::settle(uint64_t id) {
  if (pending() == 0) return;
  const uint32_t place = pages_.find(id);
  if (place == NamedPages::kNone) return;
  if (settled_[place].exchange(true, std::memory_order_acq_rel)) return;
  pm::may_pause();
  pending_count_.fetch_sub(1, std::memory_order_acq_rel);
}

uint64_t Recovery::oldest(uint64_t otherwise) const {
  const std::lock_guard lock(mutex_);
  for (; oldest_ < pages_.size(); ++oldest_) {
    if (is_pending(static_cast<uint32_t>(oldest_))) {
      return std::min(otherwise, pages_[oldest_].entry);
    }
  }
  return otherwise;
}

uint64_t Recovery::take_next() {
  if (pending() == 0) return kNoPage;
  const std::lock_guard lock(mutex_);
  while (next_ < pages_.size()) {
    const uint64_t place = next_++;
    const uint64_t id = pages_[place].page;
    if (is_pending(static_cast<uint32_t>(place)) && !given_up_.contains(id)) return id;
  }
  return kNoPage;
}

void Recovery::put_back() {
  const std::lock_guard lock(mutex_);
  next_ = oldest_;
}

void Recovery::give_up(uint64_t id) {
  const std::lock_guard lock(mutex_);
  given_up_.insert(id);
}

uint64_t Recovery::given_up() const {
  const std::lock_guard lock(mutex_);
  for (const uint64_t id : given_up_) {
    if (is_pending(pages_.find(id))) return id;
  }
  return kNoPage;
}

void Recovery::damaged(uint64_t id, const char* what) const {
  throw Error(ErrorCode::kCorrupt,
              fmt::format("page {} of the database {}, and the log does not reach back to mend it; "
                          "restore the page file from a copy",
                          id, what));
}

Recovery::Chain Recovery::chain_of(uint64_t id, uint64_t lsn, uint64_t known) const {
  Chain chain{{}, lsn, false};
  std::vector<char> buffer;
  LogRecord record;
  while (chain.before > known && chain.before >= open_head_) {
    if (!log_.read_record(chain.before, buffer, record) || record.header.page != id ||
        record.header.previous >= chain.before) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("the log record of page {} at {} is damaged", id, chain.before));
    }
    chain.lsns.push_back(chain.before);
    chain.before = record.header.previous;
    if (record.op() == Op::kImage) {
      chain.whole = true;
      return chain;
    }
  }
  return chain;
}

bool Recovery::is_sound(uint64_t id, const char* page) const {
  return format_.is_sound(page, id) && is_well_formed(format_, page);
}

bool Recovery::keeps(uint64_t id, const char* page, uint64_t older) {
  if (!keeps_newer_ || header_of(page).lsn < older || !is_sound(id, page)) return false;
  kept_newer_.insert(id);
  return true;
}

PartMask Recovery::replay(uint64_t id, char* page, const Chain& chain, uint64_t known) {
  PartMask touched = 0;
  std::vector<char> buffer;
  LogRecord record;
  for (const uint64_t lsn : std::views::reverse(chain.lsns)) {
    if (lsn <= known) continue;
    if (!log_.read_record(lsn, buffer, record) || record.header.page != id) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("the log record of page {} at {} is damaged", id, lsn));
    }
    touched |= apply_record(format_, page, lsn, record, Checksums::kLater);
    counters_.replayed.fetch_add(1, std::memory_order_relaxed);
  }
  if (!is_well_formed(format_, page)) damaged(id, "makes no sense with its log records");
  return touched;
}

void Recovery::fetch(uint64_t id, char* page, const char* ahead) {
  Expected expected{};
  const bool pending = find(id, expected);
  if (!pending) {
    if (ahead != page) store_.read(id, page);
    if (keeps(id, page, log_.read_to())) return;
    const uint64_t lsn = header_of(page).lsn;
    const bool sound = is_sound(id, page) && lsn < log_.tail();
    // An LSN between the log's end and the opening's mark was given before, and what has it got
    // there only when its entry was durable.
    const bool is_newer = lsn >= open_tail_ && lsn < open_tail_ + log_.bytes();
    if (sound && is_newer) {
      damaged(id, "is newer in the page file than the log, whose last entries are damaged");
    }
    if (sound) return;
    if (archive_ && archive_(id, 0, page)) {
      counters_.archived.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    damaged(id, "is damaged in the page file");
  }
  if (keeps_newer_ && ahead == nullptr) {
    try {
      store_.read(id, page);
      if (keeps(id, page, expected.lsn + 1)) return;
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): told below if it is needed
    }
  }
  const Chain chain = chain_of(id, expected.lsn, 0);
  if (chain.whole) {
    std::memset(page, 0, format_.page_bytes());
    replay(id, page, chain, 0);
    return;
  }
  if (ahead == nullptr) {
    store_.read(id, page);
  } else if (ahead != page) {
    std::memcpy(page, ahead, format_.page_bytes());
  }
  const uint64_t lsn = header_of(page).lsn;
  const bool named = lsn == chain.before ||
                     std::find(chain.lsns.begin(), chain.lsns.end(), lsn) != chain.lsns.end();
  if (is_sound(id, page) && named) {
    replay(id, page, chain, lsn);
    return;
  }
  if (archive_ && archive_(id, chain.before, page)) {
    counters_.archived.fetch_add(1, std::memory_order_relaxed);
    replay(id, page, chain, chain.before);
    return;
  }
  damaged(id, is_sound(id, page) ? "is of another time in the page file"
                                 : "is damaged in the page file");
}

PartMask Recovery::judge(uint64_t id, char* page, char* scratch) {
  Expected expected{};
  const bool pending = find(id, expected);
  const uint64_t lsn = header_of(page).lsn;
  const bool sound = is_sound(id, page);
  if (lsn < open_tail_ && keeps(id, page, log_.read_to())) return 0;
  if (sound && (pending ? lsn == expected.lsn : lsn < open_head_)) {
    counters_.right.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  if (sound && pending && lsn < expected.lsn) {
    const Chain chain = chain_of(id, expected.lsn, lsn);
    // An LSN that the chain does not name is one of an unfinished commit.
    if (chain.whole || chain.before == lsn) {
      const PartMask touched = replay(id, page, chain, lsn);
      counters_.older.fetch_add(1, std::memory_order_relaxed);
      return touched;
    }
  }
  fetch(id, scratch);
  std::memcpy(page, scratch, format_.page_bytes());
  (sound ? counters_.newer : counters_.corrupted).fetch_add(1, std::memory_order_relaxed);
  return format_.all_parts();
}

}  // namespace perdure::buffer
