#include "store/boundaries.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "perdure/error.h"
#include "store/layout.h"

namespace perdure::store {

Boundaries::Boundaries(std::vector<std::string> texts) : texts_(std::move(texts)) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "boundaries: " + why);
  };
  if (texts_.size() >= kPartitionsMax) {
    refuse(fmt::format("there are {}; {} partitions have {} at most", texts_.size(), kPartitionsMax,
                       kPartitionsMax - 1));
  }
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (texts_[i].empty()) refuse("one is empty: no key is less");
    if (i > 0 && texts_[i] <= texts_[i - 1]) {
      refuse(fmt::format("number {} is not greater than the one before", i));
    }
  }
  if (const uint64_t bytes = encode().size(); bytes > kBytesMax) {
    refuse(fmt::format("they take {} bytes; {} at most", bytes, kBytesMax));
  }
}

Boundaries Boundaries::of_sample(std::vector<std::string> keys, uint32_t partitions) {
  if (partitions == 0 || partitions > kPartitionsMax) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("boundaries: a store of {} partitions; 1 to {} can be", partitions,
                            kPartitionsMax));
  }
  std::ranges::sort(keys);
  std::vector<std::string> texts;
  size_t from = 0;  // of the keys, the first that no partition has yet
  for (uint32_t i = 1; i < partitions; ++i) {
    // The first of its kind at or behind the quantile, since equal keys cannot be told apart.
    size_t at = std::max(keys.size() * i / partitions, from + 1);
    while (at < keys.size() && keys[at] == keys[at - 1]) ++at;
    if (at >= keys.size()) break;
    // So many bytes that it is greater than the key before.
    const std::string& key = keys[at];
    const size_t same =
        static_cast<size_t>(std::ranges::mismatch(keys[at - 1], key).in2 - key.begin());
    texts.push_back(key.substr(0, same + 1));
    from = at;
  }
  return Boundaries(std::move(texts));
}

std::string Boundaries::encode() const {
  std::string bytes;
  for (const std::string& text : texts_) {
    const auto length = static_cast<uint32_t>(text.size());
    bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
    bytes += text;
  }
  return bytes;
}

bool Boundaries::decode(std::string_view bytes, Boundaries& out) {
  std::vector<std::string> texts;
  while (!bytes.empty()) {
    uint32_t length = 0;
    if (bytes.size() < sizeof length) return false;
    std::memcpy(&length, bytes.data(), sizeof length);
    bytes.remove_prefix(sizeof length);
    if (length > bytes.size()) return false;
    texts.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  try {
    out = Boundaries(std::move(texts));
  } catch (const Error&) {
    return false;
  }
  return true;
}

uint32_t Boundaries::partition_of(std::string_view key) const {
  return static_cast<uint32_t>(std::ranges::upper_bound(texts_, key, std::less<>()) -
                               texts_.begin());
}

}  // namespace perdure::store
