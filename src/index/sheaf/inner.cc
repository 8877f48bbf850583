#include "index/sheaf/inner.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>
#include <numeric>
#include <tuple>
#include <utility>

namespace perdure::index::sheaf {

// ---- refs

RefSpace::~RefSpace() {
  for (char* arena : arenas_) std::free(arena);
}

Ref* RefSpace::take() {
  const std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    Ref* ref = free_.back();
    free_.pop_back();
    return ref;
  }
  if (used_ + ref_bytes_ > kArenaBytes) {
    arenas_.reserve(arenas_.size() + 1);
    // So that give() needs no memory.
    free_.reserve((arenas_.size() + 1) * (kArenaBytes / ref_bytes_));
    void* arena = std::aligned_alloc(kArenaBytes, kArenaBytes);
    if (arena == nullptr) throw std::bad_alloc();
    ::madvise(arena, kArenaBytes, MADV_HUGEPAGE);
    arenas_.push_back(static_cast<char*>(arena));
    used_ = 0;
  }
  Ref* ref = new (arenas_.back() + used_) Ref{};
  ref->obsolete = 1;
  used_ += ref_bytes_;
  return ref;
}

void RefSpace::give(Ref* ref) {
  const std::lock_guard lock(mutex_);
  free_.push_back(ref);
}

uint64_t RefSpace::dram_bytes() const {
  const std::lock_guard lock(mutex_);
  return arenas_.size() * kArenaBytes;
}

// ---- lows

void Texts::set(std::span<const std::string_view> texts) {
  uint64_t bytes = 0;
  for (const std::string_view text : texts) bytes += text.size();
  all_.clear();
  all_.reserve(bytes);
  heads_.clear();
  ends_.clear();
  heads_.reserve(texts.size());
  ends_.reserve(texts.size());
  uint64_t shared = 0;
  if (texts.size() > 1) {
    const auto [a, b] = std::ranges::mismatch(texts[1], texts.back());
    (void)b;
    shared = static_cast<uint64_t>(a - texts[1].begin());
  }
  for (const std::string_view text : texts) {
    all_ += text;
    ends_.push_back(static_cast<uint32_t>(all_.size()));
    heads_.push_back(head_at(text, shared));
  }
  prefix_ = texts.size() > 1 ? at(1).substr(0, shared) : std::string_view();
}

uint64_t Texts::position(std::string_view text, bool below) const {
  const uint64_t all = count();
  if (all == 1) return 0;
  const int order = text.substr(0, prefix_.size()).compare(prefix_);
  if (order != 0) return order < 0 ? 0 : all - 1;
  const uint64_t head = head_at(text, prefix_.size());
  uint64_t i = position_among(heads_.data() + 1, all - 1, head) + 1;
  if (heads_[i] < head) return i;
  if (heads_[i] > head) return i - 1;  // the first one is above it, too
  // Among those with this head: the first of them that comes after the text.
  uint64_t begin = static_cast<uint64_t>(
      std::lower_bound(heads_.begin() + 1, heads_.begin() + static_cast<int64_t>(i), head) -
      heads_.begin());
  uint64_t end = i + 1;
  while (begin < end) {
    const uint64_t half = begin + (end - begin) / 2;
    const int compared = at(half).compare(text);
    if (below ? compared < 0 : compared <= 0) {
      begin = half + 1;
    } else {
      end = half;
    }
  }
  return begin - 1;
}

// ---- the arrays

template <typename Content>
Inner<Content>::~Inner() {
  delete_all(gone_);
  OneTop* top = top_.load();
  if (top == nullptr) return;
  for (uint64_t i = 0; i < top->count(); ++i) delete top->groups[i].load();
  delete top;
}

Group<tree::Words>::Group(std::span<const ChildOf<tree::Words>> children)
    : count(static_cast<uint32_t>(children.size())) {
  lows.fill(~uint64_t{0});
  refs.fill(nullptr);
  for (size_t i = 0; i < children.size(); ++i) {
    lows[i] = children[i].low;
    refs[i] = children[i].ref;
  }
  for (size_t i = 0; i < heads.size(); ++i) heads[i] = lows[i * kPart];
}

Group<tree::Bytes>::Group(std::span<const ChildOf<tree::Bytes>> children)
    : count(static_cast<uint32_t>(children.size())) {
  refs.fill(nullptr);
  std::vector<std::string_view> all;
  for (size_t i = 0; i < children.size(); ++i) {
    all.push_back(children[i].low);
    refs[i] = children[i].ref;
  }
  lows.set(all);
}

void Top<tree::Words>::set(std::vector<uint64_t> all) {
  lows = std::move(all);
  const uint64_t number = std::bit_ceil(4 * count());
  const Wide wanted =
      (static_cast<Wide>(number) << 64) / (static_cast<Wide>(lows.back() - lows.front()) + 1);
  scale = wanted > ~uint64_t{0} ? ~uint64_t{0} : static_cast<uint64_t>(wanted);
  parts.assign(number + 1, 0);
  for (const uint64_t low : lows) ++parts[part_of(low) + 1];
  std::partial_sum(parts.begin(), parts.end(), parts.begin());
}

template <typename Content>
std::vector<std::unique_ptr<Group<Content>>> Inner<Content>::groups_of(
    std::span<const Child> children) {
  std::vector<std::unique_ptr<OneGroup>> groups;
  // Full ones halve; many at once, as when opening, have room for some more.
  const uint64_t parts =
      children.size() <= kGroupLeaves
          ? 1
          : (children.size() + kGroupLeaves * 3 / 4 - 1) / (kGroupLeaves * 3 / 4);
  for (uint64_t part = 0; part < parts; ++part) {
    const uint64_t begin = children.size() * part / parts;
    const uint64_t end = children.size() * (part + 1) / parts;
    groups.push_back(std::make_unique<OneGroup>(children.subspan(begin, end - begin)));
  }
  return groups;
}

// The top with `fresh` in the place of the groups `from` to `to` of the old one.
template <typename Content>
std::unique_ptr<Top<Content>> Inner<Content>::top_of(
    const OneTop* old, uint64_t from, uint64_t to,
    const std::vector<std::unique_ptr<OneGroup>>& fresh) {
  auto top = std::make_unique<OneTop>();
  std::vector<Low> lows;
  std::vector<OneGroup*> groups;
  const auto keep = [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      lows.push_back(old->low(i));
      groups.push_back(old->groups[i].load());
    }
  };
  if (old != nullptr) keep(0, from);
  for (const auto& group : fresh) {
    lows.push_back(group->low(0));
    groups.push_back(group.get());
  }
  if (old != nullptr) keep(to, old->count());
  top->groups = std::make_unique<std::atomic<OneGroup*>[]>(groups.size());
  for (uint64_t i = 0; i < groups.size(); ++i) top->groups[i].store(groups[i]);
  top->set(std::move(lows));
  return top;
}

template <typename Content>
void Inner<Content>::build(std::span<const Child> children) {
  auto groups = groups_of(children);
  top_.store(top_of(nullptr, 0, 0, groups).release());
  for (auto& group : groups) std::ignore = group.release();
}

template <typename Content>
Ref* Inner<Content>::find(Low key, bool& has_next, Low& next_low, const Ref** next) const {
  const OneTop* top = pm::acquire(top_);
  const uint64_t at = top->position(key);
  const OneGroup* group = pm::acquire(top->groups[at]);
  const uint64_t i = group->position(key);
  has_next = i + 1 < group->count || at + 1 < top->count();
  if (has_next) next_low = i + 1 < group->count ? group->low(i + 1) : top->low(at + 1);
  if (next != nullptr) *next = i + 1 < group->count ? group->refs[i + 1] : nullptr;
  return group->refs[i];
}

template <>
void Inner<tree::Words>::find_all(std::span<const uint64_t> keys, std::span<Ref*> refs) const {
  constexpr uint64_t kPart = OneGroup::kPart;
  std::array<const OneGroup*, kTogether> groups;
  for (size_t i = 0; i < keys.size(); ++i) {
    groups[i] = group_of(keys[i]);
    pm::prefetch(groups[i]->heads.data());
    pm::prefetch(groups[i]);
  }
  constexpr size_t kLineWords = pm::kLineBytes / sizeof(uint64_t);
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t at = groups[i]->part_of(keys[i]) * kPart;
    for (size_t word = 0; word < kPart; word += kLineWords) {
      pm::prefetch(&groups[i]->lows[at + word]);
      pm::prefetch(static_cast<const void*>(&groups[i]->refs[at + word]));
    }
  }
  for (size_t i = 0; i < keys.size(); ++i) refs[i] = groups[i]->refs[groups[i]->position(keys[i])];
}

template <>
void Inner<tree::Bytes>::find_all(std::span<const std::string_view> keys,
                                  std::span<Ref*> refs) const {
  for (size_t i = 0; i < keys.size(); ++i) refs[i] = find(keys[i]);
}

template <typename Content>
Ref* Inner<Content>::find_under(const Low* key, Low& low) const
  requires(Content::kOutOfPlace)
{
  const OneTop* top = pm::acquire(top_);
  const uint64_t at = key == nullptr ? top->count() - 1 : top->position(*key, true);
  const OneGroup* group = pm::acquire(top->groups[at]);
  const uint64_t i = key == nullptr ? group->count - 1 : group->position(*key, true);
  low = group->low(i);
  return group->refs[i];
}

template <typename Content>
Ref* Inner<Content>::before(Low low) const {
  if (low == Low()) return nullptr;
  if constexpr (Content::kOutOfPlace) {
    Low unused;
    return find_under(&low, unused);
  } else {
    return find(low - 1);
  }
}

template <typename Content>
typename Inner<Content>::Change Inner<Content>::prepare(Low from, Low to,
                                                        std::span<const Child> fresh) {
  Change change;
  change.lock_ = std::unique_lock(mutex_);
  OneTop* top = top_.load();
  change.old_top_ = top;
  change.begin_ = top->position(from);
  change.end_ = top->position(to) + 1;
  std::vector<Child> children;
  bool placed = false;
  for (uint64_t at = change.begin_; at < change.end_; ++at) {
    const OneGroup* group = top->groups[at].load();
    for (uint32_t i = 0; i < group->count; ++i) {
      const Low low = group->low(i);
      if (low < from || low > to) {
        children.push_back({low, group->refs[i]});
      } else if (!std::exchange(placed, true)) {
        children.insert(children.end(), fresh.begin(), fresh.end());
      }
    }
  }
  change.groups_ = groups_of(children);
  change.gone_ = std::make_unique<Gone>();
  change.gone_->groups.reserve(change.end_ - change.begin_);
  if (change.groups_.size() == 1 && change.end_ - change.begin_ == 1) {
    change.place_ = &top->groups[change.begin_];
  } else {
    change.top_ = top_of(top, change.begin_, change.end_, change.groups_);
  }
  return change;
}

template <typename Content>
void Inner<Content>::publish(Change change) noexcept {
  Gone* gone = change.gone_.release();
  for (uint64_t at = change.begin_; at < change.end_; ++at) {
    gone->groups.emplace_back(change.old_top_->groups[at].load());
  }
  if (change.top_ == nullptr) {
    pm::publish(*change.place_, change.groups_.front().release(), "sheaf: group");
  } else {
    gone->top.reset(top_.load());
    pm::publish(top_, change.top_.release(), "sheaf: top");
    for (auto& group : change.groups_) std::ignore = group.release();
  }
  gone->next = std::exchange(gone_, gone);
  if (++gone_count_ < kGoneTogether) return;
  try {
    epochs_.retire([all = gone_] { delete_all(all); });
    gone_ = nullptr;
    gone_count_ = 0;
  } catch (const std::bad_alloc&) {  // with the next ones
  }
}

template <typename Content>
void Inner<Content>::delete_all(Gone* gone) {
  while (gone != nullptr) delete std::exchange(gone, gone->next);
}

template <typename Content>
std::vector<ChildOf<Content>> Inner<Content>::children() const {
  std::vector<Child> all;
  const OneTop* top = pm::acquire(top_);
  for (uint64_t at = 0; at < top->count(); ++at) {
    const OneGroup* group = pm::acquire(top->groups[at]);
    for (uint32_t i = 0; i < group->count; ++i) all.push_back({group->low(i), group->refs[i]});
  }
  return all;
}

template <typename Content>
uint64_t Inner<Content>::dram_bytes() const {
  const OneTop* top = pm::acquire(top_);
  uint64_t bytes = top->dram_bytes();
  for (uint64_t at = 0; at < top->count(); ++at)
    bytes += pm::acquire(top->groups[at])->dram_bytes();
  return bytes;
}

template class Inner<tree::Words>;
template class Inner<tree::Bytes>;

}  // namespace perdure::index::sheaf
