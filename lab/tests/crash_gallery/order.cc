// Everything is flushed and fenced, but what reveals a thing becomes durable before the thing
// itself.
#include <fmt/core.h>

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

// The flag is set and persisted first, the data after it. In the running program a lock hides this.
template <bool kRepaired>
class FlagBeforeData : public RootProgram<Messages> {
 public:
  uint32_t operation_count() const override { return 4; }

 protected:
  void perform(Messages& root, uint32_t number) override {
    Message& message = root.all[number];
    if (kRepaired) write(message, number);
    message.ready = 1;
    memory.persist(&message.ready, sizeof message.ready);
    if (!kRepaired) write(message, number);
  }
  std::string restore(Messages& root) override {
    std::string text;
    for (const Message& message : root.all) {
      text += message.ready != 0 ? fmt::format("{} ", message.payload) : "- ";
    }
    return text;
  }

 private:
  static void write(Message& message, uint32_t number) {
    message.payload = 7 + number;  // lost in flag_before_data
    memory.persist(&message.payload, sizeof message.payload);
  }
};

struct Log {
  alignas(64) uint64_t size;
  struct Record {
    alignas(64) uint64_t key;
    uint64_t value;
  } records[8];
};

// An append takes its place by raising the size, durably, and then fills the place.
template <bool kRepaired>
class SizeBeforeRecord : public RootProgram<Log> {
 public:
  uint32_t operation_count() const override { return 5; }

 protected:
  void perform(Log& root, uint32_t number) override {
    const uint64_t place = root.size;
    if (!kRepaired) set_size(root, place + 1);
    Log::Record& record = root.records[place];
    record.key = 40 + number;
    record.value = 50 + number;  // lost in size_before_record
    memory.persist(&record, sizeof record);
    if (kRepaired) set_size(root, place + 1);
  }
  std::string restore(Log& root) override {
    if (root.size > 8) damaged("the log is longer than its space");
    std::string text;
    for (uint64_t i = 0; i < root.size; ++i) {
      text += fmt::format("{}={} ", root.records[i].key, root.records[i].value);
    }
    return text;
  }

 private:
  static void set_size(Log& root, uint64_t size) {
    root.size = size;
    memory.persist(&root.size, sizeof root.size);
  }
};

struct List {
  alignas(64) uint64_t head;  // a node's number, from 1; 0: the end
  struct Node {
    alignas(64) uint64_t value;
    uint64_t next;
  } nodes[8];
};

// The new node is linked at the head before it points to the rest: a crash cuts the list off.
template <bool kRepaired>
class LinkBeforeInitialisation : public RootProgram<List> {
 public:
  uint32_t operation_count() const override { return 5; }

 protected:
  void perform(List& root, uint32_t number) override {
    List::Node& node = root.nodes[number];
    const uint64_t rest = root.head;
    if (!kRepaired) link(root, number + 1);
    node.value = 60 + number;
    node.next = rest;  // lost in link_before_initialisation
    memory.persist(&node, sizeof node);
    if (kRepaired) link(root, number + 1);
  }
  std::string restore(List& root) override {
    std::string text;
    for (uint64_t at = root.head; at != 0; at = root.nodes[at - 1].next) {
      if (text.size() > 100) damaged("the list goes in a circle");
      text += fmt::format("{} ", root.nodes[at - 1].value);
    }
    return text;
  }

 private:
  static void link(List& root, uint64_t node) {
    root.head = node;
    memory.persist(&root.head, sizeof root.head);
  }
};

}  // namespace

void add_order(std::vector<Entry>& entries) {
  entries.push_back(make_entry<FlagBeforeData>("flag_before_data", "order.cc"));
  entries.push_back(make_entry<SizeBeforeRecord>("size_before_record", "order.cc"));
  entries.push_back(make_entry<LinkBeforeInitialisation>("link_before_initialisation", "order.cc"));
}

}  // namespace perdure::crash_gallery
