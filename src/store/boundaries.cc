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
