#include "lab/crash/pending.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace perdure::lab::crash {
namespace {

constexpr uint64_t kWordBytes = 8;
constexpr uint64_t kLineBytes = 64;

// Of the stores that a line has pending, the oldest are taken together beyond this many: lines that
// are never flushed (locks, hints) would otherwise gather all of their history.
constexpr size_t kStoresPerLineMax = 24;

// A later word of the same offset takes the place of an earlier one.
void overlay(std::vector<Word>& words, const Word& word) {
  for (Word& known : words) {
    if (known.offset == word.offset) {
      known.value = word.value;
      return;
    }
  }
  words.push_back(word);
}

void overlay(std::vector<Word>& words, const std::vector<Word>& more) {
  for (const Word& word : more) overlay(words, word);
}

}  // namespace

uint64_t word_hash(uint64_t offset, uint64_t value) {
  uint64_t x = offset * 0x9e3779b97f4a7c15U + value;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93U;
  x ^= value * 0xc2b2ae3d27d4eb4fU;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9U;
  return x ^ (x >> 32);
}

PendingMemory::PendingMemory(const Trace& trace, Domain domain, unsigned char* image,
                             std::function<bool(uint32_t)> drops)
    : trace_(trace),
      domain_(domain),
      unit_(domain == Domain::kPage ? kImagePageBytes : kLineBytes),
      durable_(image),
      drops_(std::move(drops)) {
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
    for (auto store = stores.rbegin(); store != stores.rend(); ++store) {
      for (const Word& word : store->words) {
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
  }
  const bool dropped = drops_ && drops_(position_);
  // A locked instruction is a fence before its store.
  if (is_fence(event.kind) && !dropped) take_fence(event.thread);
  if (is_store(event.kind)) take_store(event);
  if (event.kind == EventKind::kFlush && !dropped) take_flush(event);
  if (event.kind == EventKind::kSync && !dropped) take_sync(event);
  ++position_;
}

void PendingMemory::merge_oldest(PendingLine& line) const {
  PendingStore& first = line.stores[0];
  PendingStore& second = line.stores[1];
  for (const PendingStore* store : {&first, &second}) {
    if (store->stream || store->guaranteed) return;
  }
  // A flush between the two, on its way, covers the first alone.
  for (const auto& marks : flushed_) {
    for (const FlushMark& mark : marks) {
      if (mark.line == line.number && mark.sequence == line.first_sequence + 1) return;
    }
  }
  overlay(first.words, second.words);
  second.words = std::move(first.words);
  second.merged = true;
  line.stores.erase(line.stores.begin());
  ++line.first_sequence;
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
    if (value == before) continue;
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

void PendingMemory::guarantee(PendingLine& line,
                              const std::function<bool(uint64_t, const PendingStore&)>& which) {
  uint64_t sequence = line.first_sequence;
  for (PendingStore& store : line.stores) {
    if (which(sequence++, store)) store.guaranteed = true;
  }
  size_t done = 0;
  while (done < line.stores.size() && line.stores[done].guaranteed) {
    for (const Word& word : line.stores[done].words) put(word);
    ++done;
  }
  line.stores.erase(line.stores.begin(), line.stores.begin() + static_cast<std::ptrdiff_t>(done));
  line.first_sequence += done;
}

void PendingMemory::take_flush(const TraceEvent& event) {
  if (domain_ != Domain::kLine) return;
  const uint64_t end = event.offset + event.bytes;
  for (uint64_t number = event.offset / unit_; number * unit_ < end; ++number) {
    const auto found = lines_.find(number);
    if (found == lines_.end()) continue;
    PendingLine& line = found->second;
    const uint64_t sequence = line.first_sequence + line.stores.size();
    if (event.flush == FlushKind::kClflush) {
      // Ordered with the stores after it: by itself as good as a flush and a fence.
      guarantee(line, [](uint64_t, const PendingStore& store) { return !store.stream; });
      if (line.stores.empty()) lines_.erase(found);
    } else {
      flushed_[event.thread].push_back({number, sequence});
    }
  }
}

void PendingMemory::take_fence(uint16_t thread) {
  if (domain_ == Domain::kPage) return;
  for (const FlushMark& mark : std::exchange(flushed_[thread], {})) {
    const auto found = lines_.find(mark.line);
    if (found == lines_.end()) continue;
    guarantee(found->second, [&](uint64_t sequence, const PendingStore& store) {
      return sequence < mark.sequence && (!store.stream || store.thread == thread);
    });
    if (found->second.stores.empty()) lines_.erase(found);
  }
  for (const uint64_t number : std::exchange(streamed_[thread], {})) {
    const auto found = lines_.find(number);
    if (found == lines_.end()) continue;
    guarantee(found->second, [&](uint64_t, const PendingStore& store) {
      return store.stream && store.thread == thread;
    });
    if (found->second.stores.empty()) lines_.erase(found);
  }
}

void PendingMemory::take_sync(const TraceEvent& event) {
  const uint64_t end = event.offset + event.bytes;
  for (auto line = lines_.lower_bound(event.offset / unit_);
       line != lines_.end() && line->first * unit_ < end;) {
    guarantee(line->second, [](uint64_t, const PendingStore&) { return true; });
    line = line->second.stores.empty() ? lines_.erase(line) : std::next(line);
  }
}

LineOption PendingMemory::option_of(std::vector<Word> words) const {
  LineOption option;
  std::erase_if(words, [this](const Word& word) { return this->word(word.offset) == word.value; });
  std::sort(words.begin(), words.end(),
            [](const Word& a, const Word& b) { return a.offset < b.offset; });
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

std::vector<LineOption> PendingMemory::options(const PendingLine& line, size_t max) const {
  std::vector<LineOption> found;
  const auto add = [&](std::vector<Word> words) {
    if (found.size() >= max) return;
    LineOption option = option_of(std::move(words));
    if (option.words.empty()) return;  // the durable state
    for (const LineOption& known : found) {
      if (known.words == option.words) return;
    }
    found.push_back(std::move(option));
  };
  // The state with those words that are guaranteed or chosen, in the order of the program.
  using Choice = std::function<bool(const PendingStore&, size_t ordered, size_t word)>;
  const auto state = [&line](const Choice& is_in) {
    std::vector<Word> words;
    size_t ordered = 0;  // stores before this one that are not streamed
    for (const PendingStore& store : line.stores) {
      for (size_t i = 0; i < store.words.size(); ++i) {
        if (store.guaranteed || is_in(store, ordered, i)) overlay(words, store.words[i]);
      }
      if (!store.stream) ++ordered;
    }
    return words;
  };
  const auto ordered_count = static_cast<size_t>(std::count_if(
      line.stores.begin(), line.stores.end(), [](const auto& store) { return !store.stream; }));
  const bool streams = ordered_count < line.stores.size();
  const auto first = [&](size_t count, bool with_streams) {
    return state([=](const PendingStore& store, size_t ordered, size_t) {
      return store.stream ? with_streams : ordered < count;
    });
  };
  add(first(ordered_count, true));
  for (size_t count = ordered_count + 1; count-- > 0;) {
    add(first(count, false));
    if (streams) add(first(count, true));
  }
  // Torn: words of the store after the first `before` ordered ones, or of all that is streamed.
  struct Torn {
    const PendingStore* store;
    size_t word;
  };
  const auto add_torn = [&](const std::vector<Torn>& torn, size_t before) {
    for (size_t i = 0; torn.size() > 1 && i < torn.size(); ++i) {
      for (const int choice : {0, 1, 2}) {
        add(state([&](const PendingStore& store, size_t ordered, size_t word) {
          for (size_t k = 0; k < torn.size(); ++k) {
            if (torn[k].store != &store || torn[k].word != word) continue;
            return choice == 0 ? k == i : choice == 1 ? k != i : k <= i;  // alone, all but, up to
          }
          return !store.stream && ordered < before;
        }));
      }
    }
  };
  std::vector<Torn> streamed;
  size_t before = 0;
  for (const PendingStore& store : line.stores) {
    std::vector<Torn> own;
    std::vector<Torn>& words = store.stream ? streamed : own;
    for (size_t i = 0; i < store.words.size() && !store.guaranteed && !store.merged; ++i) {
      words.push_back({&store, i});
    }
    add_torn(own, before);
    if (!store.stream) ++before;
  }
  add_torn(streamed, ordered_count);
  return found;
}

}  // namespace perdure::lab::crash
