// Extendible hashing: a directory of segments that doubles when a segment is full.
#include <fmt/format.h>

#include <set>

#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

constexpr uint64_t kDepthMax = 4;
constexpr uint64_t kKeys = 3;

struct Table {
  alignas(64) uint64_t depth;
  // Of each depth; entries are numbers of segments.
  struct Directory {
    alignas(64) uint32_t segments[1 << kDepthMax];
  } directories[kDepthMax + 1];
  struct Segment {
    alignas(64) uint64_t keys[kKeys];  // 0: free
  } segments[1 << (kDepthMax + 1)];
};

// Segments of a depth follow those of the depths below it.
uint32_t segment_number(uint64_t depth, uint64_t entry) {
  return static_cast<uint32_t>((uint64_t{1} << depth) - 1 + entry);
}

Table::Segment& segment_of(Table& root, uint64_t key) {
  const uint64_t entry = key & ((uint64_t{1} << root.depth) - 1);
  return root.segments[root.directories[root.depth].segments[entry]];
}

// The directory of the next depth counts as soon as the depth says so. With the fault that is
// before the new segments have been filled.
template <bool kRepaired>
class DirectoryBeforeSegments : public RootProgram<Table> {
 public:
  uint32_t operation_count() const override { return 6; }

 protected:
  void set_up(Table& root) override { root.directories[0].segments[0] = segment_number(0, 0); }
  void perform(Table& root, uint32_t number) override {
    const uint64_t key = 3 * number + 1;
    for (;;) {
      for (uint64_t& slot : segment_of(root, key).keys) {
        if (slot != 0) continue;
        slot = key;
        memory.persist(&slot, sizeof slot);
        return;
      }
      if (root.depth == kDepthMax) damaged("the table is full");
      double_directory(root);
    }
  }
  std::string restore(Table& root) override {
    std::set<uint64_t> keys;
    const auto& directory = root.directories[root.depth];
    for (uint64_t entry = 0; entry < uint64_t{1} << root.depth; ++entry) {
      for (const uint64_t key : root.segments[directory.segments[entry]].keys) {
        if (key != 0) keys.insert(key);
      }
    }
    return fmt::format("{}", fmt::join(keys, " "));
  }

 private:
  static void double_directory(Table& root) {
    const uint64_t old_depth = root.depth;
    const uint64_t depth = old_depth + 1;
    auto& directory = root.directories[depth];
    const uint64_t count = uint64_t{1} << depth;
    for (uint64_t entry = 0; entry < count; ++entry) {
      directory.segments[entry] = segment_number(depth, entry);
    }
    memory.persist(&directory, count * sizeof directory.segments[0]);
    if (kRepaired) fill(root, old_depth);
    root.depth = depth;
    memory.persist(&root.depth, sizeof root.depth);
    if (!kRepaired) fill(root, old_depth);
  }

  // Shares out the keys of the old segments among the new ones.
  static void fill(Table& root, uint64_t old_depth) {
    const uint64_t count = uint64_t{1} << (old_depth + 1);
    for (uint64_t entry = 0; entry < count; ++entry) {
      const uint64_t old_entry = entry & (count / 2 - 1);
      const auto& from = root.segments[root.directories[old_depth].segments[old_entry]];
      auto& to = root.segments[segment_number(old_depth + 1, entry)];
      for (uint64_t i = 0; i < kKeys; ++i) {
        const uint64_t key = from.keys[i];
        to.keys[i] = key % count == entry ? key : 0;  // lost in directory_before_segments
      }
      memory.flush(&to, sizeof to);
    }
    memory.fence();
  }
};

}  // namespace

void add_directory(std::vector<Entry>& entries) {
  entries.push_back(
      make_entry<DirectoryBeforeSegments>("directory_before_segments", "directory.cc"));
}

}  // namespace perdure::crash_gallery
