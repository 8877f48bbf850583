#include "buffer/recovery.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <ranges>

#include "buffer/replay.h"
#include "perdure/error.h"

namespace perdure::buffer {

void Recovery::analyse(uint64_t head) {
  open_head_ = head;
  log_.analyse(head, [&](uint64_t entry, uint64_t lsn, const LogRecord& record) {
    const auto [page, first] = pages_.try_emplace(record.header.page, Expected{lsn, entry});
    page->second.lsn = lsn;
    if (first) order_.push_back(record.header.page);
  });
  pending_count_.store(pages_.size(), std::memory_order_release);
}

bool Recovery::find(uint64_t id, Expected& expected) const {
  if (pending() == 0) return false;
  const std::lock_guard lock(mutex_);
  const auto found = pages_.find(id);
  if (found == pages_.end()) return false;
  expected = found->second;
  return true;
}

void Recovery::settle(uint64_t id) {
  if (pending() == 0) return;
  const std::lock_guard lock(mutex_);
  pages_.erase(id);
  pending_count_.store(pages_.size(), std::memory_order_release);
}

uint64_t Recovery::oldest(uint64_t otherwise) const {
  const std::lock_guard lock(mutex_);
  for (; oldest_ < order_.size(); ++oldest_) {
    const auto page = pages_.find(order_[oldest_]);
    if (page != pages_.end()) return std::min(otherwise, page->second.entry);
  }
  return otherwise;
}

uint64_t Recovery::take_next() {
  if (pending() == 0) return kNoPage;
  const std::lock_guard lock(mutex_);
  while (next_ < order_.size()) {
    const uint64_t id = order_[next_++];
    if (pages_.contains(id) && !given_up_.contains(id)) return id;
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
    if (pages_.contains(id)) return id;
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
    store_.read(id, page);
    const bool sound = is_sound(id, page) && header_of(page).lsn < log_.tail();
    if (sound) return;
    if (archive_ && archive_(id, 0, page)) {
      counters_.archived.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    damaged(id, "is damaged in the page file");
  }
  const Chain chain = chain_of(id, expected.lsn, 0);
  if (chain.whole) {
    std::memset(page, 0, format_.page_bytes());
    replay(id, page, chain, 0);
    return;
  }
  if (ahead != nullptr) {
    std::memcpy(page, ahead, format_.page_bytes());
  } else {
    store_.read(id, page);
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
