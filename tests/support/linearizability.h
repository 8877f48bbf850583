// Whether what several threads saw of one key can be explained by an order of their operations.
//
// The check of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993) with memoisation
// as Lowe describes it ("Testing for Linearizability", 2017), on the register that a key is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace perdure::test {

enum class Call : uint8_t { kInsert, kUpdate, kUpsert, kRemove, kLookup, kExchange, kRemoveIf };

// One operation on the key and what it returned.
struct Event {
  Call call;
  bool result = true;     // what insert, update, remove or lookup returned; true for upsert
  uint64_t value = 0;     // what was written, or what lookup found
  uint64_t invoked = 0;   // moments, all different, on a clock that all threads share
  uint64_t returned = 0;  // later than `invoked`
  uint64_t expected = 0;  // of kExchange and kRemoveIf
};

// The most events that linearizable() takes.
inline constexpr uint64_t kEventsMax = 2432;

// Whether some order of the events that keeps those apart in time in their order of time gives each
// the result it had, when the key first has the value `initial`, or is absent.
bool linearizable(std::optional<uint64_t> initial, const std::vector<Event>& history);

// The history in words, by time of invocation.
std::string describe(std::optional<uint64_t> initial, const std::vector<Event>& history);

}  // namespace perdure::test
