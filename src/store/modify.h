// What increment() and append() make of a value, be they called or awaited.
#pragma once

#include <fmt/core.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "perdure/error.h"
#include "store/partition.h"

namespace perdure::store {

// Replaces the value of a key by what `change` makes of it (given null if the key is not there), or
// removes the record if that is nothing. The record keeps its expiry.
template <typename Change>
void modify(Partition& partition, uint64_t hash, std::string_view key, uint64_t now_ms,
            Change& change) {
  Partition::Found found{};
  const bool present = partition.get(hash, key, now_ms, found);
  const std::optional<std::string> value = change(present ? &found.value : nullptr);
  if (!value) {
    if (present) partition.remove(hash, key, now_ms);
    return;
  }
  const uint64_t expiry = present ? found.expiry_ms : kNoExpiry;
  partition.put(hash, {.key = key, .value = *value, .expiry_ms = expiry}, now_ms);
}

// Throws kInvalidArgument if there is no such sum.
struct Increment {
  std::string_view key;
  int64_t by;
  int64_t sum = 0;

  std::optional<std::string> operator()(const std::string_view* value) {
    int64_t before = 0;
    if (value != nullptr) {
      const char* end = value->data() + value->size();
      // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): `end` is the size
      const auto [rest, error] = std::from_chars(value->data(), end, before);
      if (error != std::errc() || rest != end) {
        throw Error(
            ErrorCode::kInvalidArgument,
            fmt::format("the value of '{}' is no 64-bit number: increment() needs one", key));
      }
    }
    if (__builtin_add_overflow(before, by, &sum)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} + {} is no 64-bit number: the value of '{}' stays as it is",
                              before, by, key));
    }
    return fmt::format("{}", sum);
  }
};

struct Append {
  std::string_view suffix;
  uint64_t bytes = 0;

  std::optional<std::string> operator()(const std::string_view* value) {
    std::string text(value != nullptr ? *value : std::string_view());
    text += suffix;
    bytes = text.size();
    return text;
  }
};

}  // namespace perdure::store
