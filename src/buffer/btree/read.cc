// Reading trees.
#include <fmt/core.h>

#include <bit>
#include <cstring>
#include <optional>
#include <thread>
#include <unordered_set>
#include <utility>

#include "buffer/btree/tree.h"
#include "perdure/error.h"

namespace perdure::buffer {

namespace {

constexpr int kTries = 64;

// A page that is held shared, or nothing, if it could not be had at once.
PageGuard try_hold(BufferPool& pool, uint64_t page) {
  PageGuard guard(pool, pool.pin(page));
  for (int i = 0; i < kTries; ++i) {
    if (guard.try_lock_shared()) return guard;
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
PageGuard try_descend(BufferPool& pool, uint64_t root, std::string_view key, Toward toward,
                      Bounds* bounds) {
  PageGuard here(pool, pool.pin(root));
  here.lock_shared();
  for (int level = kAnyLevel;; --level) {
    const Node node = node_of(pool.format(), here.data(), here.page(), level);
    level = node.level();
    if (level == 0) return here;
    const uint32_t child =
        toward == Toward::kEnd ? node.count() : node.child_index(key, toward == Toward::kBelow);
    if (bounds != nullptr) {
      if (child > 0) bounds->low = node.key(child - 1);
      if (child < node.count()) bounds->high = node.key(child);
    }
    PageGuard next = try_hold(pool, node.child(child));
    if (!next) return {};
    here = std::move(next);
  }
}

// False if a page could not be had at once.
bool try_read_value(BufferPool& pool, const Node& node, uint32_t slot, std::string& value) {
  if ((node.flags(slot) & kSlotOverflow) == 0) {
    value.assign(node.value(slot));
    return true;
  }
  OverflowRef reference;
  std::memcpy(&reference, node.value(slot).data(), sizeof reference);
  value.clear();
  uint64_t known = kNoPage;  // one of the last pages: a chain that comes to it again is a circle
  for (uint64_t page = reference.page, count = 0; page != 0; ++count) {
    const PageGuard guard = try_hold(pool, page);
    if (!guard) return false;
    OverflowBody body;
    const char* at = guard.data() + pool.format().body();
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

bool tree_get(BufferPool& pool, uint64_t root, std::string_view key, std::string& value) {
  bool found = false;
  until_done([&] {
    const PageGuard leaf = try_descend(pool, root, key, Toward::kKey, nullptr);
    if (!leaf) return false;
    const Node node(pool.format(), leaf.data());
    const uint32_t slot = node.lower_bound(key, found);
    return !found || try_read_value(pool, node, slot, value);
  });
  return found;
}

void tree_read_forward(BufferPool& pool, uint64_t root, std::string_view from, LeafCopy& copy) {
  until_done([&] {
    Bounds bounds;
    const PageGuard leaf = try_descend(pool, root, from, Toward::kKey, &bounds);
    if (!leaf) return false;
    const Node node(pool.format(), leaf.data());
    copy = {leaf.page(), {}, !bounds.high, bounds.high.value_or("")};
    require_progress(copy.last || copy.next > from, leaf.page());
    bool found = false;
    for (uint32_t i = node.lower_bound(from, found); i < node.count(); ++i) {
      copy.records.push_back({node.key(i), {}});
      if (!try_read_value(pool, node, i, copy.records.back().value)) return false;
    }
    return true;
  });
}

void tree_read_backward(BufferPool& pool, uint64_t root, std::string_view below, bool to_end,
                        LeafCopy& copy) {
  until_done([&] {
    Bounds bounds;
    const PageGuard leaf =
        try_descend(pool, root, below, to_end ? Toward::kEnd : Toward::kBelow, &bounds);
    if (!leaf) return false;
    const Node node(pool.format(), leaf.data());
    copy = {leaf.page(), {}, !bounds.low, bounds.low.value_or("")};
    require_progress(copy.last || to_end || copy.next < below, leaf.page());
    bool found = false;
    const uint32_t end = to_end ? node.count() : node.lower_bound(below, found);
    for (uint32_t i = 0; i < end; ++i) {
      copy.records.push_back({node.key(i), {}});
      if (!try_read_value(pool, node, i, copy.records.back().value)) return false;
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

namespace {

class Salvager {
 public:
  Salvager(BufferPool& pool,
           const std::function<void(std::string_view key, std::string_view value)>& visit,
           const std::function<void(Loss, const std::string&)>& lost)
      : pool_(pool), visit_(visit), lost_(lost) {}

  void walk(uint64_t page, int level, const Bounds& bounds) {
    if (!met_.insert(page).second) return lose(bounds, fmt::format("page {} was met before", page));
    std::vector<std::pair<uint64_t, Bounds>> children;
    int here = 0;
    try {
      const PageGuard guard(pool_, pool_.pin(page));
      const Node node = node_of(pool_.format(), guard.data(), page, level);
      here = node.level();
      if (here == 0) return read_leaf(node);
      for (uint32_t i = 0; i <= node.count(); ++i) {
        Bounds inner = bounds;
        if (i > 0) inner.low = node.key(i - 1);
        if (i < node.count()) inner.high = node.key(i);
        children.emplace_back(node.child(i), std::move(inner));
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      return lose(bounds, error.what());
    }
    for (const auto& [child, inner] : children) walk(child, here - 1, inner);
  }

 private:
  void read_leaf(const Node& node) {
    std::string value;
    for (uint32_t i = 0; i < node.count(); ++i) {
      const std::string key = node.key(i);
      try {
        until_done([&] { return try_read_value(pool_, node, i, value); });
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kCorrupt) throw;
        lost_(Loss::kValue, fmt::format("the value of \"{}\" is lost: {}", key, error.what()));
        continue;
      }
      visit_(key, value);
    }
  }
  void lose(const Bounds& bounds, const std::string& why) const {
    const std::string from =
        bounds.low ? fmt::format("from \"{}\"", *bounds.low) : "from the first";
    const std::string to =
        bounds.high ? fmt::format("before \"{}\"", *bounds.high) : "up to the last";
    lost_(Loss::kRange, fmt::format("the records {} {} are lost: {}", from, to, why));
  }

  BufferPool& pool_;
  const std::function<void(std::string_view key, std::string_view value)>& visit_;
  const std::function<void(Loss, const std::string&)>& lost_;
  std::unordered_set<uint64_t> met_;
};

}  // namespace

void tree_salvage(BufferPool& pool, uint64_t root,
                  const std::function<void(std::string_view key, std::string_view value)>& visit,
                  const std::function<void(Loss, const std::string&)>& lost) {
  Salvager(pool, visit, lost).walk(root, kAnyLevel, {});
}

}  // namespace perdure::buffer
