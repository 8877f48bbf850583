// What becomes of keys, told on channels: Redis' keyspace notifications.
//
//   __keyspace@0__:KEY     the event, such as "set", "lpush", "del", "expired"
//   __keyevent@0__:EVENT   the key
//
// Off unless notify-keyspace-events names kinds of them; then a command costs one branch more. With
// it, the keys that a command is about to change are noted, and once it has been carried out what
// became of them says which events there are (key_events.cc has the table). They are told when the
// turn's writes are durable; what EXEC has undone is not.
//
// "expired" is told some 0.1 s after the time of expiry, of keys whose expiry is known: a table in
// DRAM has it, from what is written, and from a walk through all keys, a part at a time, after the
// events were turned on.
//
// With the execution lock, but for note_evicted().
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/keyspace.h"

namespace perdure::server {

class Server;
struct Command;

namespace event_kinds {
inline constexpr uint32_t kByKey = 1;        // K: on the channels of keys
inline constexpr uint32_t kByEvent = 2;      // E: on those of events
inline constexpr uint32_t kGeneric = 4;      // g: of any type
inline constexpr uint32_t kString = 8;       // $
inline constexpr uint32_t kList = 16;        // l
inline constexpr uint32_t kSet = 32;         // s
inline constexpr uint32_t kHash = 64;        // h
inline constexpr uint32_t kSortedSet = 128;  // z
inline constexpr uint32_t kExpired = 256;    // x
inline constexpr uint32_t kEvicted = 512;    // e
inline constexpr uint32_t kStream = 1024;    // t, of which there are none
inline constexpr uint32_t kModule = 2048;    // d, of which there are none
inline constexpr uint32_t kMissed = 4096;    // m: a key that was asked for is not there
inline constexpr uint32_t kNew = 8192;       // n
inline constexpr uint32_t kAll = kGeneric | kString | kList | kSet | kHash | kSortedSet | kExpired |
                                 kEvicted | kStream | kModule;  // A
}  // namespace event_kinds

// As Redis reads and writes them: "KEA". Throws Error(kInvalidArgument).
uint32_t parse_event_kinds(std::string_view text);
std::string text_of_event_kinds(uint32_t kinds);

class KeyEvents {
 public:
  explicit KeyEvents(Server& server) : server_(server) {}

  // Kinds without a channel are none.
  void set_kinds(uint32_t kinds);
  bool are_on() const { return kinds_.load(std::memory_order_relaxed) != 0; }

  // Around a command, if they are on: before it is carried out; when it was, and its writes are in
  // the store or in the group of a transaction; or when it was not.
  void begin(const Command& command, std::span<const std::string_view> arguments,
             uint32_t database);
  void end(std::span<const std::string_view> arguments, uint32_t database);
  void abandon();
  // Abandons, at its end, what was begun and has come to no end.
  class Carrying {
   public:
    explicit Carrying(KeyEvents& events) : events_(events) {}
    ~Carrying() {
      if (events_.command_ != nullptr) [[unlikely]]
        events_.abandon();
    }
    Carrying(const Carrying&) = delete;
    Carrying& operator=(const Carrying&) = delete;

   private:
    KeyEvents& events_;
  };
  // How many wait to be told; and what has come since then goes.
  size_t waiting() const { return waiting_.size(); }
  void drop_from(size_t count);
  // A transaction is in the store: the expiries that it has changed are looked at.
  void note_committed();
  // Tells them: what they are about is durable.
  void tell();
  void drop() { waiting_.clear(); }

  // Any thread: a record has been evicted.
  void note_evicted(std::string_view raw);
  // From time to time: some of the keys that have expired, and more of the walk. Returns whether
  // there is more to do.
  bool look_at_expiries();
  // All keys of a database, or of all (~0), are gone.
  void forget_expiries(uint32_t database);

 private:
  struct Waiting {
    std::string_view event;  // of the table
    std::string raw;
  };
  void note(uint32_t kind, std::string_view event, std::string_view raw);
  void note_events(std::span<const std::string_view> arguments, uint32_t database);
  void note_expiry(std::string_view raw, uint64_t expiry_ms);
  void note_expiry(std::string_view raw, const Item& item) {
    note_expiry(raw, item ? item.expiry_ms : store::kNoExpiry);
  }
  void forget_expiry(std::string_view raw) { note_expiry(raw, store::kNoExpiry); }
  void walk();

  Server& server_;
  std::atomic<uint32_t> kinds_{0};
  const Command* command_ = nullptr;  // that is being carried out, and has events
  Keyspace::Touched touched_;
  std::vector<Waiting> waiting_;

  std::mutex evicted_mutex_;
  std::vector<std::string> evicted_;

  // What is known, by key and by time; the keys are those of expiries_.
  using ByTime = std::multimap<uint64_t, const std::string*>;
  std::unordered_map<std::string, ByTime::iterator> expiries_;
  ByTime by_time_;
  std::vector<std::string> uncommitted_;  // keys whose expiry a transaction may have changed
  bool walks_ = false;
  uint32_t walk_partition_ = 0;
  store::CopyPlace walk_place_;
};

}  // namespace perdure::server
