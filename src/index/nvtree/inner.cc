// Building and rebuilding the inner part, and the locks of its leaf parents.
#include "index/nvtree/inner.h"

#include <algorithm>
#include <cassert>

namespace perdure::index::nvtree {

// ---- a parent

template <typename Content>
void Inner<Content>::Parent::put(uint32_t slot, const Child& child) {
  if constexpr (Content::kOutOfPlace) pm::store_release(texts()[slot], child.text);
  pm::store_release(words()[slot], child.word);
  pm::store_release(leaves()[slot], child.leaf);
}

template <typename Content>
Child Inner<Content>::Parent::child(uint32_t slot) const {
  Child child{pm::load_relaxed(words()[slot]), nullptr, leaf(slot)};
  if constexpr (Content::kOutOfPlace) child.text = pm::load_relaxed(texts()[slot]);
  return child;
}

template <typename Content>
void Inner<Content>::Parent::append(const Child& child) {
  put(count(), child);
  pm::publish(count_, count() + 1);
}

template <typename Content>
void Inner<Content>::Parent::insert(uint32_t slot, const Child& child) {
  assert(count() < records_);
  // Below the old count and the new one there is always a separator, for readers who come now.
  for (uint32_t i = count(); i > slot; --i) put(i, this->child(i - 1));
  put(slot, child);
  pm::publish(count_, count() + 1);
}

template <typename Content>
void Inner<Content>::Parent::set_leaf(uint32_t slot, uint64_t leaf) {
  pm::store_release(leaves()[slot], leaf);
}

template <typename Content>
const std::string* Inner<Content>::Parent::remove(uint32_t slot) {
  assert(count() > 1);
  const uint32_t goes = std::max<uint32_t>(slot, 1);
  const std::string* const text = child(goes).text;
  if (slot == 0) set_leaf(0, leaf(1));  // under the first separator, which is the parent's
  for (uint32_t i = goes; i + 1 < count(); ++i) put(i, child(i + 1));
  pm::publish(count_, count() - 1);
  return text;
}

// ---- separators, groups, tops

template <typename Content>
void Inner<Content>::Separators::add(const Child& child) {
  words.push_back(child.word);
  if constexpr (Content::kOutOfPlace) texts.push_back(*child.text);
}

template <typename Content>
typename Inner<Content>::Key Inner<Content>::Separators::key(uint32_t index) const {
  if constexpr (Content::kOutOfPlace) {
    return Key(std::string_view(texts[index]));
  } else {
    return words[index];
  }
}

template <typename Content>
Inner<Content>::Group::Group(const std::vector<Child>& children, uint64_t first, uint64_t end,
                             uint64_t all, uint32_t parent_records)
    : parents(static_cast<uint32_t>(end - first)),
      records(parent_records),
      memory(static_cast<char*>(
          ::operator new((end - first) * Parent::bytes(parent_records), std::align_val_t{64}))) {
  for (uint32_t p = 0; p < parents; ++p) {
    auto* parent = new (memory + p * Parent::bytes(records)) Parent(records);
    const uint64_t begin = children.size() * (first + p) / all;
    separators.add(children[begin]);
    for (uint64_t i = begin; i < children.size() * (first + p + 1) / all; ++i) {
      parent->append(children[i]);
    }
  }
}

template <typename Content>
Inner<Content>::Group::~Group() {
  for (uint32_t p = 0; p < parents; ++p) parent(p).~Parent();
  ::operator delete(memory, std::align_val_t{64});
}

template <typename Content>
void Inner<Content>::Top::add(Group* group) {
  separators.words.push_back(group->separators.words[0]);
  if constexpr (Content::kOutOfPlace) separators.texts.push_back(group->separators.texts[0]);
  groups.push_back(group);
}

// Half of each parent is left free, and none has one leaf only, if there are two.
template <typename Content>
void Inner<Content>::make_groups(const std::vector<Child>& children, Top& top) const {
  const uint64_t count = children.size();
  uint64_t parents = std::max<uint64_t>(1, count / (records_ / 2));
  if (count > parents * records_ * 3 / 4) ++parents;
  const uint64_t groups = (parents + records_ - 1) / records_;
  for (uint64_t g = 0; g < groups; ++g) {
    top.add(
        new Group(children, parents * g / groups, parents * (g + 1) / groups, parents, records_));
  }
}

template <typename Content>
void Inner<Content>::collect(const Group& group, std::vector<Child>& out) {
  for (uint32_t p = 0; p < group.parents; ++p) {
    const Parent& parent = group.parent(p);
    for (uint32_t slot = 0; slot < parent.count(); ++slot) out.push_back(parent.child(slot));
  }
}

template <typename Content>
void Inner<Content>::build(ChildList children) {
  auto fresh = std::make_unique<Top>();
  make_groups(children, *fresh);
  children.clear();  // the parents have them now
  pm::publish(top_, fresh.release());
}

template <typename Content>
Inner<Content>::~Inner() {
  Top* const last = top_.load(std::memory_order_relaxed);
  if (last == nullptr) return;
  // Without a list of them: there may be no memory.
  for (Group* group : last->groups) {
    for (uint32_t p = 0; p < group->parents; ++p) {
      const Parent& parent = group->parent(p);
      for (uint32_t slot = 0; slot < parent.count(); ++slot) delete parent.child(slot).text;
    }
    delete group;
  }
  delete last;
}

// ---- locks

template <typename Content>
typename Inner<Content>::Held Inner<Content>::lock(const Key& key) const {
  for (;;) {
    const Top& now = top();
    const Group& group = *now.groups[now.separators.index_of(key)];
    Held held;
    held.index = group.separators.index_of(key);
    held.group = &group;
    held.parent = &group.parent(held.index);
    held.lock = std::unique_lock(held.parent->lock);
    if (held.parent->retired()) continue;
    held.slot = held.parent->slot_of(key);
    return held;
  }
}

template <typename Content>
uint64_t Inner<Content>::previous(Held& held, uint32_t slot) const {
  // Who replaces a leaf holds the lock of its parent.
  if (slot > 0) return held.parent->leaf(slot - 1);
  const auto last_leaf = [](const Parent& parent) { return parent.leaf(parent.count() - 1); };
  const Group* const group = held.group;
  if (held.index > 0) {
    // Not retired: that would have needed the lock that is held.
    Parent& before = group->parent(held.index - 1);
    if (!held.previous_lock) held.previous_lock = std::unique_lock(before.lock);
    return last_leaf(before);
  }
  for (;;) {
    const Top& now = top();
    const uint32_t index = now.separators.index_of(group->separators.key(0));
    assert(now.groups[index] == group);
    if (index == 0) return 0;
    const Group& other = *now.groups[index - 1];
    Parent& before = other.parent(other.parents - 1);
    if (!held.previous_lock) held.previous_lock = std::unique_lock(before.lock);
    if (!before.retired()) return last_leaf(before);
    held.previous_lock = {};
  }
}

template <typename Content>
void Inner<Content>::rebuild(const Key& key) {
  const std::lock_guard only(mutex_);
  Top& old = *top_.load(std::memory_order_relaxed);
  const uint32_t index = old.separators.index_of(key);
  const Group& of_key = *old.groups[index];
  const uint32_t count = of_key.parent(of_key.separators.index_of(key)).count();
  if (count > 1 && count < records_) return;  // somebody was faster
  uint32_t first = index;
  uint32_t last = index;
  if (of_key.parents == 1 && count == 1) {  // nothing to share with but another group
    if (first > 0) {
      --first;
    } else if (last + 1 < old.groups.size()) {
      ++last;
    }
  }
  const auto for_parents = [&](auto&& visit) {
    for (uint32_t g = last + 1; g-- > first;) {
      for (uint32_t p = old.groups[g]->parents; p-- > 0;) visit(old.groups[g]->parent(p));
    }
  };
  std::vector<std::unique_lock<StripeLock>> locks;
  for_parents([&](Parent& parent) { locks.emplace_back(parent.lock); });
  std::vector<Child> all;
  for (uint32_t g = first; g <= last; ++g) collect(*old.groups[g], all);
  auto fresh = std::make_unique<Top>();
  for (uint32_t g = 0; g < first; ++g) fresh->add(old.groups[g]);
  make_groups(all, *fresh);
  for (size_t g = last + 1; g < old.groups.size(); ++g) fresh->add(old.groups[g]);
  std::vector<Group*> gone(old.groups.begin() + first, old.groups.begin() + last + 1);
  // Before anybody comes by the new top: leaves that are replaced from then on are not in the old
  // parents, and a writer that has a stamp of one of these must see that.
  for_parents([](Parent& parent) {
    parent.lock.begin_change();
    parent.retire();
  });
  pm::publish(top_, fresh.release(), "nv-tree: top");
  locks.clear();  // who waited for a retired parent finds the new top
  rebuilds_.fetch_add(1, std::memory_order_relaxed);
  epochs_.retire([gone = std::move(gone), top = &old] {
    for (Group* group : gone) delete group;
    delete top;
  });
}

// ---- looking at all of it

template <typename Content>
bool Inner<Content>::has_one_leaf() const {
  const Top& now = top();
  return now.groups.size() == 1 && now.groups[0]->parents == 1 &&
         now.groups[0]->parent(0).count() == 1;
}

template <typename Content>
std::vector<Child> Inner<Content>::children() const {
  const std::lock_guard only(mutex_);
  std::vector<Child> all;
  for (const Group* group : top().groups) {
    for (uint32_t p = 0; p < group->parents; ++p) {
      Parent& parent = group->parent(p);
      const std::lock_guard lock(parent.lock);
      for (uint32_t slot = 0; slot < parent.count(); ++slot) all.push_back(parent.child(slot));
    }
  }
  return all;
}

template <typename Content>
typename Inner<Content>::Size Inner<Content>::size() const {
  Size size;
  for (const Group* group : top().groups) {
    ++size.groups;
    size.parents += group->parents;
    size.dram_bytes += sizeof(Group) + group->parents * (Parent::bytes(records_) + 8);
  }
  for (const Child& child : children()) {
    if (child.text != nullptr) size.dram_bytes += sizeof(std::string) + child.text->capacity();
  }
  return size;
}

template class Inner<tree::Words>;
template class Inner<tree::Bytes>;

}  // namespace perdure::index::nvtree
