// Reading trees.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "buffer/btree/glance.h"
#include "buffer/btree/tree.h"
#include "perdure/error.h"

namespace perdure::buffer {

namespace {

constexpr int kTries = 64;

// A page of a view: in its frame, held shared, or an old version.
class PageHold {
 public:
  PageHold() = default;
  explicit PageHold(PageGuard guard) : guard_(std::move(guard)) {}
  explicit PageHold(std::shared_ptr<const PageVersion> version) : version_(std::move(version)) {}

  explicit operator bool() const { return guard_ || version_; }
  char* data() const {
    return version_ ? const_cast<char*>(version_->bytes.data()) : guard_.data();
  }
  uint64_t page() const { return version_ ? version_->page : guard_.page(); }

 private:
  PageGuard guard_;
  std::shared_ptr<const PageVersion> version_;
};

// What the view has of a page that is held shared.
PageHold as_seen(const View& view, PageGuard guard) {
  if (view.moment == nullptr || header_of(guard.data()).lsn <= view.moment->lsn()) {
    return PageHold(std::move(guard));
  }
  const uint64_t page = guard.page();
  if (auto version = view.moment->find(page)) return PageHold(std::move(version));
  view.moment->require();
  throw Error(ErrorCode::kInternal,
              fmt::format("page {} of the database has no version of a snapshot's moment", page));
}

// Nothing: it was not changed since, or the view has no moment.
PageHold old_version(const View& view, uint64_t page) {
  return view.moment == nullptr ? PageHold() : PageHold(view.moment->find(page));
}

// Waits; by who holds nothing.
PageHold hold(const View& view, uint64_t page) {
  if (PageHold old = old_version(view, page)) return old;
  PageGuard guard(view.pool, view.pool.pin(page));
  guard.lock_shared();
  return as_seen(view, std::move(guard));
}

// Nothing, if it could not be had at once.
PageHold try_hold(const View& view, uint64_t page) {
  if (PageHold old = old_version(view, page)) return old;
  PageGuard guard(view.pool, view.pool.pin(page));
  for (int i = 0; i < kTries; ++i) {
    if (guard.try_lock_shared()) return as_seen(view, std::move(guard));
  }
  return {};
}

struct Bounds {
  std::optional<std::string> low;   // none: no leaf before
  std::optional<std::string> high;  // none: no leaf behind
};

enum class Toward : uint8_t { kKey, kBelow, kEnd };

// What separators lead to lies further on in their direction, or a scan would never end.
void require_progress(bool on, uint64_t leaf) {
  if (on) return;
  throw Error(ErrorCode::kCorrupt,
              fmt::format("the keys above page {} of the database are out of order", leaf));
}

// The leaf that a key belongs to, or nothing if a page on the way is being changed.
PageHold try_descend(const View& view, uint64_t root, std::string_view key, Toward toward,
                     Bounds* bounds) {
  PageHold here = hold(view, root);
  for (int level = kAnyLevel;; --level) {
    const Node node = node_of(view.pool.format(), here.data(), here.page(), level);
    level = node.level();
    if (level == 0) return here;
    const uint32_t child =
        toward == Toward::kEnd ? node.count() : node.child_index(key, toward == Toward::kBelow);
    if (bounds != nullptr) {
      if (child > 0) bounds->low = node.key(child - 1);
      if (child < node.count()) bounds->high = node.key(child);
    }
    PageHold next = try_hold(view, node.child(child));
    if (!next) return {};
    here = std::move(next);
  }
}

// False if a page could not be had at once.
bool try_read_value(const View& view, const Node& node, uint32_t slot, std::string& value) {
  if ((node.flags(slot) & kSlotOverflow) == 0) {
    value.assign(node.value(slot));
    return true;
  }
  OverflowRef reference;
  std::memcpy(&reference, node.value(slot).data(), sizeof reference);
  value.clear();
  uint64_t known = kNoPage;  // one of the last pages: a chain that comes to it again is a circle
  for (uint64_t page = reference.page, count = 0; page != 0; ++count) {
    const PageHold guard = try_hold(view, page);
    if (!guard) return false;
    OverflowBody body;
    const char* at = guard.data() + view.pool.format().body();
    std::memcpy(&body, at, sizeof body);
    if (header_of(guard.data()).type != PageType::kOverflow || page == known ||
        value.size() + body.bytes > reference.bytes) {
      throw Error(ErrorCode::kCorrupt, fmt::format("page {} of the database is damaged", page));
    }
    if (std::has_single_bit(count + 1)) known = page;
    value.append(at + sizeof body, body.bytes);
    page = body.next;
  }
  if (value.size() != reference.bytes) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("the pages of a value from page {} on are damaged", reference.page));
  }
  return true;
}

// Repeats what could not be had at once.
template <typename Attempt>
void until_done(Attempt attempt) {
  while (!attempt()) std::this_thread::yield();
}

}  // namespace

namespace {

// Reads a value without a store to anything that threads share: a node, the next one's version, and
// then whether the first one is still as it was, so that the next one was its child when that
// version was read. False: latches are needed.
bool try_get_unlatched(const BufferPool& pool, uint64_t root, std::string_view key,
                       std::string& value, bool& found) {
  thread_local const auto copied = std::make_unique<char[]>(kPageBytesMax);
  BufferPool::Unlatched here{};
  if (!pool.try_look_at(root, here)) return false;
  for (int level = kAnyLevel;;) {
    Glance seen;
    const bool is_node = glance_at_node(pool.format(), here.frame->data, key, copied.get(), seen);
    if (!is_node || !here.is_still()) return false;
    if ((level != kAnyLevel && seen.level != level) || seen.overflow) return false;
    if (seen.level == 0) {
      found = seen.found;
      if (found) value.assign(copied.get(), seen.value_bytes);
      return true;
    }
    BufferPool::Unlatched next{};
    if (!pool.try_look_at(seen.child, next) || !here.is_still()) return false;
    here = next;
    level = seen.level - 1;
  }
}

}  // namespace

bool tree_get(const View& view, uint64_t root, std::string_view key, std::string& value) {
  bool found = false;
  if (view.moment == nullptr && try_get_unlatched(view.pool, root, key, value, found)) return found;
  until_done([&] {
    const PageHold leaf = try_descend(view, root, key, Toward::kKey, nullptr);
    if (!leaf) return false;
    const Node node(view.pool.format(), leaf.data());
    const uint32_t slot = node.lower_bound(key, found);
    return !found || try_read_value(view, node, slot, value);
  });
  return found;
}

void tree_read_forward(const View& view, uint64_t root, std::string_view from, LeafCopy& copy) {
  until_done([&] {
    Bounds bounds;
    const PageHold leaf = try_descend(view, root, from, Toward::kKey, &bounds);
    if (!leaf) return false;
    const Node node(view.pool.format(), leaf.data());
    copy = {leaf.page(), {}, !bounds.high, bounds.high.value_or("")};
    require_progress(copy.last || copy.next > from, leaf.page());
    bool found = false;
    for (uint32_t i = node.lower_bound(from, found); i < node.count(); ++i) {
      copy.records.push_back({node.key(i), {}});
      if (!try_read_value(view, node, i, copy.records.back().value)) return false;
    }
    return true;
  });
}

void tree_read_backward(const View& view, uint64_t root, std::string_view below, bool to_end,
                        LeafCopy& copy) {
  until_done([&] {
    Bounds bounds;
    const PageHold leaf =
        try_descend(view, root, below, to_end ? Toward::kEnd : Toward::kBelow, &bounds);
    if (!leaf) return false;
    const Node node(view.pool.format(), leaf.data());
    copy = {leaf.page(), {}, !bounds.low, bounds.low.value_or("")};
    require_progress(copy.last || to_end || copy.next < below, leaf.page());
    bool found = false;
    const uint32_t end = to_end ? node.count() : node.lower_bound(below, found);
    for (uint32_t i = 0; i < end; ++i) {
      copy.records.push_back({node.key(i), {}});
      if (!try_read_value(view, node, i, copy.records.back().value)) return false;
    }
    return true;
  });
}

namespace {

class Checker {
 public:
  Checker(BufferPool& pool, const std::function<void(const std::string&)>& report,
          const std::function<void(uint64_t)>& meet)
      : pool_(pool), report_(report), meet_(meet) {}

  void visit(uint64_t page, int level, const Bounds& bounds) {
    meet_(page);
    const PageGuard guard(pool_, pool_.pin(page));
    const Node node(pool_.format(), guard.data());
    if (header_of(guard.data()).type != PageType::kNode) return fail(page, "is no node");
    if (level >= 0 && node.level() != level) return fail(page, "is not at its level");
    check_order(page, node, bounds);
    for (uint32_t i = 0; node.level() > 0 && i <= node.count(); ++i) {
      Bounds inner = bounds;
      if (i > 0) inner.low = node.key(i - 1);
      if (i < node.count()) inner.high = node.key(i);
      visit(node.child(i), node.level() - 1, inner);
    }
    if (node.level() > 0) return;
    records_ += node.count();
    for (uint32_t i = 0; i < node.count(); ++i) {
      if ((node.flags(i) & kSlotOverflow) != 0) check_overflow(page, node.value(i));
    }
  }
  uint64_t records() const { return records_; }

 private:
  void fail(uint64_t page, const char* what) {
    report_(fmt::format("page {} of the database {}", page, what));
  }

  void check_order(uint64_t page, const Node& node, const Bounds& bounds) {
    std::optional<std::string> before;
    for (uint32_t i = 0; i < node.count(); ++i) {
      const std::string key = node.key(i);
      if (before && key <= *before) fail(page, "has keys out of order");
      if ((bounds.low && key < *bounds.low) || (bounds.high && key >= *bounds.high)) {
        fail(page, "has a key that belongs elsewhere");
      }
      before = key;
    }
  }

  void check_overflow(uint64_t leaf, std::string_view value) {
    OverflowRef reference;
    std::memcpy(&reference, value.data(), sizeof reference);
    uint64_t bytes = 0;
    for (uint64_t page = reference.page; page != 0;) {
      meet_(page);
      const PageGuard guard(pool_, pool_.pin(page));
      OverflowBody body;
      std::memcpy(&body, guard.data() + pool_.format().body(), sizeof body);
      if (header_of(guard.data()).type != PageType::kOverflow) {
        return fail(page, "is no overflow page");
      }
      bytes += body.bytes;
      page = body.next;
    }
    if (bytes != reference.bytes) fail(leaf, "has a value of another length than its pages");
  }

  BufferPool& pool_;
  const std::function<void(const std::string&)>& report_;
  const std::function<void(uint64_t)>& meet_;
  uint64_t records_ = 0;
};

}  // namespace

uint64_t tree_check(BufferPool& pool, uint64_t root,
                    const std::function<void(const std::string&)>& report,
                    const std::function<void(uint64_t)>& meet) {
  Checker checker(pool, report, meet);
  checker.visit(root, -1, {});
  return checker.records();
}

bool TreeSalvage::walk(const std::string& tree, uint64_t root, const Visit& visit,
                       const Lost& lost) {
  const size_t before = parts_.size();
  walk(root, kAnyLevel, {}, tree, visit, lost);
  return parts_.size() == before;
}

void TreeSalvage::walk(uint64_t page, int level, const Bounds& bounds, const std::string& tree,
                       const Visit& visit, const Lost& lost) {
  const auto lose = [&](const std::string& why) {
    lost(Loss::kRange,
         fmt::format("{}: the records {} are lost: {}", label_of(tree), range_of(bounds), why));
  };
  if (!met_.insert(page).second) return lose(fmt::format("page {} was met before", page));
  std::vector<std::pair<uint64_t, Bounds>> children;
  int here = 0;
  try {
    const PageGuard guard(pool_, pool_.pin(page));
    const Node node = node_of(pool_.format(), guard.data(), page, level);
    here = node.level();
    if (here == 0) return read_leaf(node, page, bounds, tree, visit, lost);
    for (uint32_t i = 0; i <= node.count(); ++i) {
      Bounds inner = bounds;
      if (i > 0 && !is_below(bounds, node.key(i - 1))) inner.low = node.key(i - 1);
      if (i < node.count() && !is_above(bounds, node.key(i))) inner.high = node.key(i);
      children.emplace_back(node.child(i), std::move(inner));
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    if (level == 0) return lose(error.what());
    parts_.push_back({tree, bounds, error.what()});
    return;
  }
  for (const auto& [child, inner] : children) walk(child, here - 1, inner, tree, visit, lost);
}

void TreeSalvage::read_leaf(const Node& node, uint64_t page, const Bounds& bounds,
                            const std::string& tree, const Visit& visit, const Lost& lost) {
  std::string value;
  uint32_t elsewhere = 0;
  for (uint32_t i = 0; i < node.count(); ++i) {
    const std::string key = node.key(i);
    if (is_below(bounds, key) || is_above(bounds, key)) {
      ++elsewhere;
      continue;
    }
    try {
      until_done([&] { return try_read_value(pool_, node, i, value); });
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      lost(Loss::kValue,
           fmt::format("{}: the value of \"{}\" is lost: {}", label_of(tree), key, error.what()));
      continue;
    }
    visit(key, value);
  }
  if (elsewhere == 0) return;
  lost(Loss::kRange,
       fmt::format(
           "{}: page {}, where the records {} are to be, has {} whose keys belong elsewhere: "
           "it is of another time than the page that leads to it; they are left out",
           label_of(tree), page, range_of(bounds), elsewhere));
}

bool TreeSalvage::is_below(const Bounds& bounds, std::string_view key) {
  return bounds.low && key < *bounds.low;
}

bool TreeSalvage::is_above(const Bounds& bounds, std::string_view key) {
  return bounds.high && key >= *bounds.high;
}

std::string TreeSalvage::range_of(const Bounds& bounds) {
  return (bounds.low ? fmt::format("from \"{}\"", *bounds.low) : "from the first") +
         (bounds.high ? fmt::format(" before \"{}\"", *bounds.high) : " up to the last");
}

std::string TreeSalvage::label_of(const std::string& tree) {
  return tree.empty() ? "names of trees" : "tree " + tree;
}

void TreeSalvage::find_strays(uint64_t pages,
                              const std::function<void(std::string_view tree)>& begin_tree,
                              const Visit& visit, const Lost& lost) {
  if (parts_.empty()) return;
  std::vector<std::vector<Stray>> of_parts(parts_.size());
  for (uint64_t page = 1; page < pages; ++page) {
    if (met_.contains(page)) continue;
    std::optional<Stray> stray = stray_at(page);
    if (!stray) continue;
    const auto holds = [&](const Part& part) {
      return !is_below(part.bounds, stray->first) && !is_above(part.bounds, stray->last);
    };
    const auto owner = std::ranges::find_if(parts_, holds);
    if (owner == parts_.end()) continue;
    const auto other = std::find_if(owner + 1, parts_.end(), holds);
    if (other == parts_.end()) {
      of_parts[static_cast<size_t>(owner - parts_.begin())].push_back(std::move(*stray));
      continue;
    }
    lost(Loss::kRange,
         fmt::format(
             "page {}: {} records from \"{}\" to \"{}\" are of tree {} or of tree {}, nobody "
             "can say which: they are left out",
             page, stray->records, stray->first, stray->last, owner->tree, other->tree));
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    take(parts_[i], of_parts[i], begin_tree, visit, lost);
  }
}

// The leaf with records in a page, if it is one.
std::optional<TreeSalvage::Stray> TreeSalvage::stray_at(uint64_t page) const {
  try {
    const PageGuard guard(pool_, pool_.pin(page));
    if (header_of(guard.data()).type != PageType::kNode) return std::nullopt;
    const Node node = node_of(pool_.format(), guard.data(), page, kAnyLevel);
    if (node.level() != 0 || node.count() == 0) return std::nullopt;
    return Stray{page, header_of(guard.data()).lsn, node.key(0), node.key(node.count() - 1),
                 node.count()};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    return std::nullopt;
  }
}

void TreeSalvage::take(const Part& part, std::vector<Stray>& strays,
                       const std::function<void(std::string_view tree)>& begin_tree,
                       const Visit& visit, const Lost& lost) {
  // The newest first: of two with the same keys the other is from before a write that the device
  // has lost.
  std::ranges::sort(strays, std::ranges::greater(), &Stray::lsn);
  std::map<std::string, const Stray*> taken;  // by first key
  uint64_t records = 0;
  for (const Stray& stray : strays) {
    const auto behind = taken.upper_bound(stray.last);  // begins behind it
    if (behind != taken.begin() && std::prev(behind)->second->last >= stray.first) continue;
    taken.emplace(stray.first, &stray);
    records += stray.records;
  }
  const std::string range = range_of(part.bounds);
  if (taken.empty()) {
    return lost(Loss::kRange, fmt::format("{}: the records {} are lost: {}", label_of(part.tree),
                                          range, part.why));
  }
  lost(Loss::kRange,
       fmt::format(
           "{}: the way to the records {} is lost: {}; {} of them were found in {} pages that "
           "nothing leads to, others may be lost",
           label_of(part.tree), range, part.why, records, taken.size()));
  begin_tree(part.tree);
  for (const auto& [first, stray] : taken) {
    const PageGuard guard(pool_, pool_.pin(stray->page));
    const Node node = node_of(pool_.format(), guard.data(), stray->page, 0);
    read_leaf(node, stray->page, part.bounds, part.tree, visit, lost);
  }
}

}  // namespace perdure::buffer
