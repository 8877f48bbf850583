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
  ref->dead = 1;
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

// ---- the arrays

Inner::~Inner() {
  delete_all(gone_);
  Top* top = top_.load();
  if (top == nullptr) return;
  for (uint64_t i = 0; i < top->count(); ++i) delete top->groups[i].load();
  delete top;
}

// ---- arrays

Inner::Group::Group(std::span<const Child> children)
    : count(static_cast<uint32_t>(children.size())) {
  lows.fill(~uint64_t{0});
  refs.fill(nullptr);
  for (size_t i = 0; i < children.size(); ++i) {
    lows[i] = children[i].low;
    refs[i] = children[i].ref;
  }
  for (size_t i = 0; i < heads.size(); ++i) heads[i] = lows[i * kPart];
}

void Inner::Top::make_parts() {
  const uint64_t number = std::bit_ceil(4 * count());
  const Wide wanted =
      (static_cast<Wide>(number) << 64) / (static_cast<Wide>(lows.back() - lows.front()) + 1);
  scale = wanted > ~uint64_t{0} ? ~uint64_t{0} : static_cast<uint64_t>(wanted);
  parts.assign(number + 1, 0);
  for (const uint64_t low : lows) ++parts[part_of(low) + 1];
  std::partial_sum(parts.begin(), parts.end(), parts.begin());
}

std::vector<std::unique_ptr<Inner::Group>> Inner::groups_of(std::span<const Child> children) {
  std::vector<std::unique_ptr<Group>> groups;
  // Full ones halve; many at once, as when opening, have room for some more.
  const uint64_t parts =
      children.size() <= kGroupLeaves
          ? 1
          : (children.size() + kGroupLeaves * 3 / 4 - 1) / (kGroupLeaves * 3 / 4);
  for (uint64_t part = 0; part < parts; ++part) {
    const uint64_t begin = children.size() * part / parts;
    const uint64_t end = children.size() * (part + 1) / parts;
    groups.push_back(std::make_unique<Group>(children.subspan(begin, end - begin)));
  }
  return groups;
}

// The top with `fresh` in the place of the groups `from` to `to` of the old one.
std::unique_ptr<Inner::Top> Inner::top_of(const Top* old, uint64_t from, uint64_t to,
                                          const std::vector<std::unique_ptr<Group>>& fresh) {
  auto top = std::make_unique<Top>();
  std::vector<Group*> groups;
  const auto keep = [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      top->lows.push_back(old->lows[i]);
      groups.push_back(old->groups[i].load());
    }
  };
  if (old != nullptr) keep(0, from);
  for (const auto& group : fresh) {
    top->lows.push_back(group->lows[0]);
    groups.push_back(group.get());
  }
  if (old != nullptr) keep(to, old->count());
  top->groups = std::make_unique<std::atomic<Group*>[]>(groups.size());
  for (uint64_t i = 0; i < groups.size(); ++i) top->groups[i].store(groups[i]);
  top->make_parts();
  return top;
}

void Inner::build(std::span<const Child> children) {
  auto groups = groups_of(children);
  top_.store(top_of(nullptr, 0, 0, groups).release());
  for (auto& group : groups) std::ignore = group.release();
}

Ref* Inner::find(uint64_t key, bool& has_next, uint64_t& next_low) const {
  const Top* top = pm::acquire(top_);
  const uint64_t at = top->position(key);
  const Group* group = pm::acquire(top->groups[at]);
  const uint64_t i = group->position(key);
  has_next = i + 1 < group->count || at + 1 < top->count();
  if (has_next) next_low = i + 1 < group->count ? group->lows[i + 1] : top->lows[at + 1];
  return group->refs[i];
}

void Inner::find_all(std::span<const uint64_t> keys, std::span<Ref*> refs) const {
  std::array<const Group*, kTogether> groups;
  for (size_t i = 0; i < keys.size(); ++i) {
    groups[i] = group_of(keys[i]);
    pm::prefetch(groups[i]->heads.data());
    pm::prefetch(groups[i]);
  }
  constexpr size_t kLineWords = pm::kLineBytes / sizeof(uint64_t);
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t at = groups[i]->part_of(keys[i]) * Group::kPart;
    for (size_t word = 0; word < Group::kPart; word += kLineWords) {
      pm::prefetch(&groups[i]->lows[at + word]);
      pm::prefetch(static_cast<const void*>(&groups[i]->refs[at + word]));
    }
  }
  for (size_t i = 0; i < keys.size(); ++i) refs[i] = groups[i]->refs[groups[i]->position(keys[i])];
}

Ref* Inner::before(uint64_t low) const { return low == 0 ? nullptr : find(low - 1); }

Inner::Change Inner::prepare(uint64_t from, uint64_t to, std::span<const Child> fresh) {
  Change change;
  change.lock_ = std::unique_lock(mutex_);
  Top* top = top_.load();
  change.old_top_ = top;
  change.begin_ = top->position(from);
  change.end_ = top->position(to) + 1;
  std::vector<Child> children;
  bool placed = false;
  for (uint64_t at = change.begin_; at < change.end_; ++at) {
    const Group* group = top->groups[at].load();
    for (uint32_t i = 0; i < group->count; ++i) {
      const uint64_t low = group->lows[i];
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

void Inner::publish(Change change) noexcept {
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

void Inner::delete_all(Gone* gone) {
  while (gone != nullptr) delete std::exchange(gone, gone->next);
}

std::vector<Child> Inner::children() const {
  std::vector<Child> all;
  const Top* top = pm::acquire(top_);
  for (uint64_t at = 0; at < top->count(); ++at) {
    const Group* group = pm::acquire(top->groups[at]);
    for (uint32_t i = 0; i < group->count; ++i) all.push_back({group->lows[i], group->refs[i]});
  }
  return all;
}

uint64_t Inner::dram_bytes() const {
  const Top* top = pm::acquire(top_);
  return top->count() * (sizeof(Group) + 16) + top->parts.size() * sizeof(uint32_t);
}

}  // namespace perdure::index::sheaf
