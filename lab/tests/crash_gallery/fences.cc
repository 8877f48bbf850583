// Flushes and streamed stores that no fence waits for: they are under way, in any order, and a
// crash may come first.
#include <fmt/core.h>

#include <cstring>

#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

struct Message {
  alignas(64) uint64_t payload;
  alignas(64) uint64_t ready;
};

struct Messages {
  Message all[4];
};

std::string text_of(const Messages& root) {
  std::string text;
  for (const Message& message : root.all) {
    text += message.ready != 0 ? fmt::format("{} ", message.payload) : "- ";
  }
  return text;
}

// Both lines are flushed in the right order, and one fence at the end was thought to be enough.
// Flushes of different lines overtake each other: the flag arrives without what it announces.
template <bool kRepaired>
class MissingFence : public RootProgram<Messages> {
 public:
  uint32_t operation_count() const override { return 4; }

 protected:
  void perform(Messages& root, uint32_t number) override {
    Message& message = root.all[number];
    message.payload = 7 + number;  // lost in missing_fence
    memory.flush(&message.payload, sizeof message.payload);
    if (kRepaired) memory.fence();
    message.ready = 1;
    memory.persist(&message.ready, sizeof message.ready);
  }
  std::string restore(Messages& root) override { return text_of(root); }
};

// The fence before the return was left out, because the next operation's would come soon enough.
// The caller was told that it is durable already.
template <bool kRepaired>
class UnfencedReturn : public RootProgram<Messages> {
 public:
  uint32_t operation_count() const override { return 4; }

 protected:
  void perform(Messages& root, uint32_t number) override {
    Message& message = root.all[number];
    message.payload = 7 + number;
    memory.persist(&message.payload, sizeof message.payload);
    message.ready = 1;  // lost in unfenced_return
    memory.flush(&message.ready, sizeof message.ready);
    if (kRepaired) memory.fence();
  }
  std::string restore(Messages& root) override { return text_of(root); }
};

struct Block {
  alignas(64) uint64_t words[8];
};

struct Blocks {
  alignas(64) uint64_t current;  // from 1; 0: none
  Block all[4];
};

// Streamed stores need no flush, and so the fence was forgotten with it. The pointer's own fence
// comes too late: its line may be evicted before that, while the block still sits in a combining
// buffer.
template <bool kRepaired>
class StreamUnfenced : public RootProgram<Blocks> {
 public:
  uint32_t operation_count() const override { return 4; }

 protected:
  void perform(Blocks& root, uint32_t number) override {
    alignas(64) Block block;
    for (uint64_t i = 0; i < 8; ++i) block.words[i] = 10 * number + i + 1;
    Block& target = root.all[number];
    memory.copy_nontemporal(&target, &block, sizeof block);  // lost in stream_unfenced
    if (kRepaired) memory.fence();
    root.current = number + 1;
    memory.persist(&root.current, sizeof root.current);
  }
  std::string restore(Blocks& root) override {
    if (root.current == 0) return "nothing";
    std::string text;
    for (const uint64_t word : root.all[root.current - 1].words) text += fmt::format("{} ", word);
    return text;
  }
};

}  // namespace

void add_fences(std::vector<Entry>& entries) {
  entries.push_back(make_entry<MissingFence>("missing_fence", "fences.cc"));
  entries.push_back(make_entry<UnfencedReturn>("unfenced_return", "fences.cc"));
  entries.push_back(make_entry<StreamUnfenced>("stream_unfenced", "fences.cc"));
}

}  // namespace perdure::crash_gallery
