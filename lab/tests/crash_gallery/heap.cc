// Blocks between the heap and the structure: an allocation and the link to it are two stores, and
// so are an unlinking and a release. A crash between them leaves a block that nobody has, or that
// two have.
#include <fmt/core.h>

#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

constexpr uint64_t kBlocks = 8;

// A stack of blocks, and the heap that they come from: a bit for each block in use.
struct Stack {
  alignas(64) uint64_t used;
  alignas(64) uint64_t top;  // a block's number, from 1; 0: empty
  struct Block {
    alignas(64) uint64_t value;
    uint64_t below;
  } blocks[kBlocks];
};

void set_used(Stack& root, uint64_t used) {
  root.used = used;
  memory.persist(&root.used, sizeof root.used);
}

void set_top(Stack& root, uint64_t top) {
  root.top = top;
  memory.persist(&root.top, sizeof root.top);
}

uint64_t reachable(const Stack& root) {
  uint64_t found = 0;
  for (uint64_t at = root.top; at != 0; at = root.blocks[at - 1].below) {
    if ((found & (uint64_t{1} << (at - 1))) != 0) damaged("the stack goes in a circle");
    found |= uint64_t{1} << (at - 1);
  }
  return found;
}

std::string text_of(const Stack& root) {
  const uint64_t found = reachable(root);
  std::string text;
  for (uint64_t at = root.top; at != 0; at = root.blocks[at - 1].below) {
    text += fmt::format("{} ", root.blocks[at - 1].value);
  }
  return text + fmt::format("leaked {}, used twice {}", __builtin_popcountll(root.used & ~found),
                            __builtin_popcountll(found & ~root.used));
}

void push(Stack& root, uint64_t value) {
  const auto block = static_cast<uint64_t>(__builtin_ctzll(~root.used));
  set_used(root, root.used | (uint64_t{1} << block));
  root.blocks[block].value = value;
  root.blocks[block].below = root.top;
  memory.persist(&root.blocks[block], sizeof root.blocks[block]);  // crash in leak
  set_top(root, block + 1);
}

// The block is taken from the heap, durably, before anything links it: a crash loses it for good.
// The twin's recovery takes for used what can be reached, and nothing else.
template <bool kRepaired>
class Leak : public RootProgram<Stack> {
 public:
  uint32_t operation_count() const override { return 4; }

 protected:
  void perform(Stack& root, uint32_t number) override { push(root, 20 + number); }
  std::string restore(Stack& root) override {
    if (kRepaired) set_used(root, reachable(root));
    return text_of(root);
  }
};

// The block goes back to the heap before the structure lets go of it; the next allocation gets a
// block that is still in the list.
template <bool kRepaired>
class FreedBeforeUnlinked : public RootProgram<Stack> {
 public:
  uint32_t operation_count() const override { return 3; }

 protected:
  void set_up(Stack& root) override {
    for (uint64_t i = 0; i < 4; ++i) push(root, 20 + i);
  }
  void perform(Stack& root, uint32_t /*number*/) override {
    const uint64_t block = root.top - 1;
    if (kRepaired) set_top(root, root.blocks[block].below);
    set_used(root, root.used & ~(uint64_t{1} << block));
    if (!kRepaired) {
      root.top = root.blocks[block].below;  // lost in freed_before_unlinked
      memory.persist(&root.top, sizeof root.top);
    }
  }
  std::string restore(Stack& root) override {
    // What was unlinked and not yet released: found again by both.
    const uint64_t found = reachable(root);
    if ((root.used & ~found) != 0) set_used(root, root.used & found);
    return text_of(root);
  }
};

}  // namespace

void add_heap(std::vector<Entry>& entries) {
  entries.push_back(make_entry<Leak>("leak", "heap.cc"));
  entries.push_back(make_entry<FreedBeforeUnlinked>("freed_before_unlinked", "heap.cc"));
}

}  // namespace perdure::crash_gallery
