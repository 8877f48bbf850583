// What an index may hold after a crash: durable linearizability, key by key.
//
// Operations that returned are there, in an order that explains what they returned (a lookup's
// answer too: what a reader has seen, no crash may take away); of those in flight each is there
// wholly or not at all.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace perdure::lab::crash {

// kBulk: an upsert that a crash may lose until the next checkpoint or durable write to its key.
enum class Verb : uint8_t { kInsert, kUpdate, kUpsert, kRemove, kLookup, kBulk, kCheckpoint };
const char* to_string(Verb verb);

// Keys and values are numbers; what bytes they stand for is not the oracle's affair.
struct Step {
  Verb verb;
  uint32_t key;
  uint32_t value;
};

// What an operation returned: whether it found (lookup, update, remove) or made (insert) something,
// and for lookups what. An operation that failed for want of space did nothing.
struct Answer {
  bool yes = true;
  bool full = false;
  uint32_t value = 0;
};

class Oracle {
 public:
  using Held = std::optional<uint32_t>;  // the value of a key

  static constexpr uint32_t kNone = ~uint32_t{0};
  // It takes effect after the operation in flight of another `thread`, if one is given.
  void begin(uint32_t thread, const Step& step, uint32_t after = kNone);
  void end(uint32_t thread, const Answer& answer);

  // A record (or none) that was there at the beginning, though a crash may bring any of `others`
  // until an operation that changes it has returned: a process that died had one in flight.
  void found_unsettled(uint32_t key, const Held& held, const std::set<Held>& others);

  // Why the answers so far have no explanation, in words; empty if they have one.
  const std::string& contradiction() const { return contradiction_; }

  // What each key may hold; keys that may only be absent are left out.
  std::map<uint32_t, std::set<Held>> allowed() const;
  // Those that may hold more than one thing.
  std::map<uint32_t, std::set<Held>> unsettled() const;

  // Digests of all combinations of what the keys may hold, or some where there are very many.
  std::vector<uint64_t> digests() const;

  // What is wrong with contents, in words: at most `max` differences.
  std::string difference(const std::map<uint32_t, uint32_t>& contents, size_t max) const;

 private:
  struct Pending {
    uint32_t thread;
    Step step;
    uint32_t after;  // the thread whose operation comes first, while that is in flight; or kNone
  };
  // A way to explain the answers: what the key holds now, and what the operations in flight that
  // took effect will answer.
  struct Config {
    Held held;
    std::map<uint32_t, Answer> done;  // by thread
    // What a crash may bring back: what the key held since it was last durable, before `held`.
    std::set<Held> behind;
  };
  struct Key {
    uint64_t last_bulk = 0;  // when a kBulk was last begun or ended
    std::vector<Pending> pending;
    std::vector<Config> configs = {Config{}};
  };

  static Answer apply(const Step& step, Config& config);
  void end_checkpoint(uint64_t begun);
  static std::vector<Config> closure(const Key& key);
  static std::set<Held> finals(const Key& key);
  void settle(uint32_t number, Key& key);

  std::map<uint32_t, Key> keys_;          // with operations in flight, or more than one explanation
  std::map<uint32_t, uint32_t> settled_;  // what all others hold, if anything
  uint64_t settled_digest_ = 0;
  std::map<uint32_t, uint32_t> key_of_thread_;
  std::map<uint32_t, uint64_t> checkpoints_;  // by thread: when the one in flight was begun
  uint64_t now_ = 0;                          // counts beginnings and ends
  std::string contradiction_;
};

// Tells a recording what a recovery found. Of the keys in `unsettled` a crash may bring other
// values than that.
template <typename Recording>
void note_found(Recording& recording, const std::map<uint32_t, uint32_t>& contents,
                const std::map<uint32_t, std::set<Oracle::Held>>& unsettled) {
  for (const auto& [key, value] : contents) {
    if (!unsettled.contains(key)) recording.found({Verb::kUpsert, key, value});
  }
  for (const auto& [key, values] : unsettled) {
    const auto held = contents.find(key);
    recording.found_unsettled(
        key, held == contents.end() ? Oracle::Held() : Oracle::Held(held->second), values);
  }
}

// The digest of contents is the exclusive or of its records' digests.
uint64_t record_digest(uint32_t key, uint32_t value);

}  // namespace perdure::lab::crash
