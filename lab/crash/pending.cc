#include "lab/crash/pending.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "pm/memory.h"

namespace perdure::lab::crash {
namespace {

constexpr uint64_t kWordBytes = 8;
using pm::kLineBytes;

// What a disk writes wholly or not at all.
constexpr uint64_t kSectorBytes = 512;

// Of the stores that a line has pending, the oldest are taken together beyond this many: lines that
// are never flushed (locks, hints) would otherwise gather all of their history. Those of operations
// in flight are never taken together.
constexpr size_t kStoresPerLineMax = 24;

// Words are kept in the order of their offsets. A later one takes the place of an earlier one.
void overlay(std::vector<Word>& words, const Word& word) {
  const auto at =
      std::lower_bound(words.begin(), words.end(), word.offset,
                       [](const Word& known, uint64_t offset) { return known.offset < offset; });
  if (at != words.end() && at->offset == word.offset) {
    at->value = word.value;
  } else {
    words.insert(at, word);
  }
}

void overlay(std::vector<Word>& words, const std::vector<Word>& more) {
  if (more.size() < 4) {
    for (const Word& word : more) overlay(words, word);
    return;
  }
  std::vector<Word> merged;
  merged.reserve(words.size() + more.size());
  auto from = words.begin();
  for (const Word& word : more) {
    while (from != words.end() && from->offset < word.offset) merged.push_back(*from++);
    if (from != words.end() && from->offset == word.offset) ++from;
    merged.push_back(word);
  }
  merged.insert(merged.end(), from, words.end());
  words = std::move(merged);
}

// The line with its first `count` stores that are not streamed, with or without those that are.
std::vector<Word> state_of(const PendingLine& line, size_t count, bool with_streams) {
  std::vector<Word> words;
  size_t ordered = 0;
  for (const PendingStore& store : line.stores) {
    if (store.stream ? with_streams : ordered < count) overlay(words, store.words);
    if (!store.stream) ++ordered;
  }
  return words;
}

// A word that may arrive without others.
struct TornWord {
  const PendingStore* store;
  size_t word;
};

// The line with its first `count` stores that are not streamed, and of `torn` those words that are
// chosen by number; in the order of the program.
std::vector<Word> torn_state_of(const PendingLine& line, size_t count,
                                const std::vector<TornWord>& torn,
                                const std::function<bool(size_t)>& is_chosen) {
  std::vector<Word> words;
  size_t ordered = 0;
  for (const PendingStore& store : line.stores) {
    const bool in = !store.stream && ordered < count;
    if (!store.stream) ++ordered;
    if (in) {
      overlay(words, store.words);
      continue;
    }
    for (size_t i = 0; i < torn.size(); ++i) {
      if (torn[i].store == &store && is_chosen(i)) overlay(words, store.words[torn[i].word]);
    }
  }
  return words;
}

// Each of the words alone, all but one, all up to one, until `add` says that it is enough.
bool for_each_tear(const PendingLine& line, size_t count, const std::vector<TornWord>& torn,
                   const std::function<bool(std::vector<Word>)>& add) {
  for (size_t i = 0; torn.size() > 1 && i < torn.size(); ++i) {
    if (!add(torn_state_of(line, count, torn, [i](size_t k) { return k == i; })) ||
        !add(torn_state_of(line, count, torn, [i](size_t k) { return k != i; })) ||
        !add(torn_state_of(line, count, torn, [i](size_t k) { return k <= i; }))) {
      return false;
    }
  }
  return true;
}

}  // namespace

uint64_t word_hash(uint64_t offset, uint64_t value) {
  uint64_t x = offset * 0x9e3779b97f4a7c15U + value;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93U;
  x ^= value * 0xc2b2ae3d27d4eb4fU;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9U;
  return x ^ (x >> 32);
}

PendingMemory::PendingMemory(const Trace& trace, Domain domain, unsigned char* image, Drops drops,
                             const Inherited& inherited)
    : trace_(trace),
      domain_(domain),
      unit_(domain == Domain::kPage ? kSectorBytes : kLineBytes),
      durable_(image),
      drops_(std::move(drops)),
      position_(inherited.events),
      lines_(inherited.lines),
      begun_(1, kNever),
      flushed_(1),
      streamed_(1) {
  for (const auto& [number, page] : trace.base) {
    std::memcpy(durable_ + number * kImagePageBytes, page.data(), page.size());
  }
}

uint64_t PendingMemory::word(uint64_t offset) const {
  uint64_t value = 0;
  std::memcpy(&value, durable_ + offset, kWordBytes);
  return value;
}

void PendingMemory::put(const Word& word) {
  hash_ ^= word_hash(word.offset, this->word(word.offset)) ^ word_hash(word.offset, word.value);
  std::memcpy(durable_ + word.offset, &word.value, kWordBytes);
}

uint64_t PendingMemory::visible(uint64_t offset) const {
  if (const auto line = lines_.find(offset / unit_); line != lines_.end()) {
    const auto& stores = line->second.stores;
    for (size_t i = stores.size(); i-- > 0;) {  // the latest first
      for (const Word& word : stores[i].words) {
        if (word.offset == offset) return word.value;
      }
    }
  }
  return word(offset);
}

bool PendingMemory::next_is_crash_point() const {
  const TraceEvent& event = trace_.events[position_];
  switch (event.kind) {
    case EventKind::kFlush:
    case EventKind::kStream:
    case EventKind::kSync:
      return true;
    case EventKind::kFence:
      return true;
    case EventKind::kLocked:
    case EventKind::kUpdate:
      // A fence by the way: it matters only if the thread has something under way.
      return domain_ == Domain::kByte ||
             (event.thread < flushed_.size() &&
              (!flushed_[event.thread].empty() || !streamed_[event.thread].empty()));
    case EventKind::kBegin:
    case EventKind::kEnd:
      return true;
    case EventKind::kStore:
      return domain_ == Domain::kByte;
    default:
      return false;
  }
}

void PendingMemory::step() {
  const TraceEvent& event = trace_.events[position_];
  if (event.thread >= flushed_.size()) {
    flushed_.resize(event.thread + 1U);
    streamed_.resize(event.thread + 1U);
    begun_.resize(event.thread + 1U, kNever);
  }
  if (event.kind == EventKind::kBegin) begun_[event.thread] = position_;
  if (event.kind == EventKind::kEnd) begun_[event.thread] = kNever;
  const bool dropped = drops_ && drops_(event);
  // A locked instruction is a fence before its store.
  if (is_fence(event.kind) && !dropped) take_fence(event.thread);
  if (is_store(event.kind)) take_store(event);
  if (event.kind == EventKind::kFlush && !dropped) take_flush(event);
  if (event.kind == EventKind::kSync && !dropped) take_sync(event);
  ++position_;
}

bool PendingMemory::is_in_flight(const PendingStore& store) const {
  return begun_[store.thread] != kNever && store.event >= begun_[store.thread];
}

void PendingMemory::merge_oldest(PendingLine& line) const {
  PendingStore& first = line.stores[0];
  PendingStore& second = line.stores[1];
  for (const PendingStore* store : {&first, &second}) {
    if (store->stream || is_in_flight(*store)) return;
  }
  // A flush between the two, on its way, covers the first alone.
  for (const auto& marks : flushed_) {
    for (const FlushMark& mark : marks) {
      const bool between = first.event < mark.event && mark.event < second.event;
      if (mark.line == line.number && between) return;
    }
  }
  overlay(first.words, second.words);
  second.words = std::move(first.words);
  second.merged = true;
  line.stores.erase(line.stores.begin());
}

bool PendingMemory::waits(uint64_t offset) const {
  const auto line = lines_.find(offset / unit_);
  if (line == lines_.end()) return false;
  return std::ranges::any_of(line->second.stores, [offset](const PendingStore& store) {
    return std::ranges::any_of(store.words,
                               [offset](const Word& word) { return word.offset == offset; });
  });
}

void PendingMemory::take_store(const TraceEvent& event) {
  const unsigned char* bytes = trace_.stored(event);
  // Only streamed words wait in domain `byte`: for a fence that empties the combining buffers.
  const bool at_once = domain_ == Domain::kByte && event.kind != EventKind::kStream;
  const uint64_t end = event.offset + event.bytes;
  PendingLine* line = nullptr;
  PendingStore store{.event = position_,
                     .thread = event.thread,
                     .stream = event.kind == EventKind::kStream && domain_ != Domain::kPage};
  const auto finish_line = [&] {
    if (line == nullptr || store.words.empty()) return;
    if (line->stores.size() >= kStoresPerLineMax) merge_oldest(*line);
    line->stores.push_back(store);
    if (store.stream) streamed_[event.thread].push_back(line->number);
  };
  for (uint64_t offset = event.offset & ~(kWordBytes - 1); offset < end; offset += kWordBytes) {
    uint64_t value = visible(offset);
    const uint64_t before = value;
    const uint64_t from = std::max(offset, event.offset);
    const uint64_t to = std::min(offset + kWordBytes, end);
    std::memcpy(reinterpret_cast<unsigned char*>(&value) + (from - offset),
                bytes + (from - event.offset), to - from);
    // A streamed word is durable at the fence, also if it repeats a store that nobody has flushed.
    if (value == before && !(store.stream && waits(offset))) continue;
    if (at_once) {
      put({offset, value});
      continue;
    }
    const uint64_t number = offset / unit_;
    if (line == nullptr || line->number != number) {
      finish_line();
      store.words.clear();
      line = &lines_[number];
      line->number = number;
    }
    store.words.push_back({offset, value});
  }
  finish_line();
}

// Stores that are guaranteed may come behind streamed ones that are not. They are durable all the
// same; of those before them, what they wrote over cannot come back.
void PendingMemory::guarantee(PendingLine& line,
                              const std::function<bool(const PendingStore&)>& which) {
  std::vector<PendingStore> left;
  for (PendingStore& store : line.stores) {
    if (!which(store)) {
      left.push_back(std::move(store));
      continue;
    }
    for (const Word& word : store.words) {
      put(word);
      for (PendingStore& earlier : left) {
        std::erase_if(earlier.words, [&](const Word& old) { return old.offset == word.offset; });
      }
    }
  }
  std::erase_if(left, [](const PendingStore& store) { return store.words.empty(); });
  line.stores = std::move(left);
}

void PendingMemory::take_flush(const TraceEvent& event) {
  if (domain_ != Domain::kLine) return;
  const uint64_t end = event.offset + event.bytes;
  for (uint64_t number = event.offset / unit_; number * unit_ < end; ++number) {
    const auto found = lines_.find(number);
    if (found == lines_.end()) continue;
    PendingLine& line = found->second;
    if (event.flush == FlushKind::kClflush) {
      // Ordered with the stores after it: by itself as good as a flush and a fence.
      guarantee(line, [](const PendingStore& store) { return !store.stream; });
      if (line.stores.empty()) lines_.erase(found);
    } else {
      flushed_[event.thread].push_back({number, position_});
    }
  }
}

void PendingMemory::take_fence(uint16_t thread) {
  if (domain_ == Domain::kPage) return;
  for (const FlushMark& mark : std::exchange(flushed_[thread], {})) {
    const auto found = lines_.find(mark.line);
    if (found == lines_.end()) continue;
    guarantee(found->second, [&](const PendingStore& store) {
      return store.event < mark.event && (!store.stream || store.thread == thread);
    });
    if (found->second.stores.empty()) lines_.erase(found);
  }
  for (const uint64_t number : std::exchange(streamed_[thread], {})) {
    const auto found = lines_.find(number);
    if (found == lines_.end()) continue;
    guarantee(found->second,
              [&](const PendingStore& store) { return store.stream && store.thread == thread; });
    if (found->second.stores.empty()) lines_.erase(found);
  }
}

void PendingMemory::take_sync(const TraceEvent& event) {
  const uint64_t end = event.offset + event.bytes;
  for (auto line = lines_.lower_bound(event.offset / unit_);
       line != lines_.end() && line->first * unit_ < end;) {
    guarantee(line->second, [](const PendingStore&) { return true; });
    line = line->second.stores.empty() ? lines_.erase(line) : std::next(line);
  }
}

LineOption PendingMemory::option_of(std::vector<Word> words) const {
  LineOption option;
  std::erase_if(words, [this](const Word& word) { return this->word(word.offset) == word.value; });
  for (const Word& word : words) {
    option.hash_delta ^=
        word_hash(word.offset, this->word(word.offset)) ^ word_hash(word.offset, word.value);
  }
  option.words = std::move(words);
  return option;
}

LineOption PendingMemory::complete(const PendingLine& line) const {
  std::vector<Word> words;
  for (const PendingStore& store : line.stores) overlay(words, store.words);
  return option_of(std::move(words));
}

LineOption PendingMemory::as_of(const PendingLine& line, uint32_t event) const {
  std::vector<Word> words;
  for (const PendingStore& store : line.stores) {
    if (store.event < event) overlay(words, store.words);
  }
  return option_of(std::move(words));
}

std::vector<LineOption> PendingMemory::options(const PendingLine& line, size_t max) const {
  std::vector<LineOption> found;
  // Whether there is room for more.
  const auto add = [&](std::vector<Word> words) {
    LineOption option = option_of(std::move(words));
    if (option.words.empty()) return true;  // the durable state
    for (const LineOption& known : found) {
      if (known.words == option.words) return true;
    }
    found.push_back(std::move(option));
    return found.size() < max;
  };
  const auto ordered_count = static_cast<size_t>(std::count_if(
      line.stores.begin(), line.stores.end(), [](const auto& store) { return !store.stream; }));
  const bool streams = ordered_count < line.stores.size();
  if (!add(state_of(line, ordered_count, true))) return found;
  for (size_t count = ordered_count + 1; count-- > 0;) {
    if (!add(state_of(line, count, false))) return found;
    if (streams && !add(state_of(line, count, true))) return found;
  }
  // Torn: one ordered store after those before it, or everything that is streamed.
  std::vector<TornWord> streamed;
  size_t before = 0;
  for (const PendingStore& store : line.stores) {
    std::vector<TornWord> own;
    std::vector<TornWord>& words = store.stream ? streamed : own;
    for (size_t i = 0; i < store.words.size() && !store.merged; ++i) {
      words.push_back({&store, i});
    }
    if (!for_each_tear(line, before, own, add)) return found;
    if (!store.stream) ++before;
  }
  for_each_tear(line, ordered_count, streamed, add);
  return found;
}

}  // namespace perdure::lab::crash
