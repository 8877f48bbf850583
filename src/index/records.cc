#include "index/records.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

namespace perdure::index {

uint64_t Records::bytes(uint64_t record) const { return bytes_of(follow(record)); }

bool Records::sound(uint64_t record) const {
  return record % pm::kLineBytes == 0 && pool_.leads_inside(record, sizeof(Header)) &&
         pool_.leads_inside(record, bytes_of(pool_.at<Header>(record))) &&
         pool_.heap().is_allocated(record, bytes(record));
}

bool Records::intact(uint64_t record) const {
  if (!sound(record)) return false;
  const auto* header = pool_.at<Header>(record);
  return checksum_of(record, header) == header->checksum;
}

void Records::throw_damaged(uint64_t record) const {
  pool_.throw_corrupt(fmt::format("the checksum of the record at {:#x} does not hold", record));
}

void Records::require_fits(std::string_view key, std::string_view value,
                           uint64_t key_bytes_max) const {
  if (key.size() <= key_bytes_max && value.size() <= kPartBytesMax) [[likely]]
    return;
  throw Error(ErrorCode::kTooLarge,
              fmt::format("a key of {} bytes with a value of {}: a key may not exceed {} bytes, a "
                          "value {}",
                          key.size(), value.size(), key_bytes_max, kPartBytesMax));
}

uint64_t Records::make(pm::Heap::Txn& txn, std::string_view key, std::string_view value) const {
  const uint64_t bytes = sizeof(Header) + key.size() + value.size();
  const uint64_t record = txn.allocate(bytes);
  auto* header = pool_.at<Header>(record);
  *header = {0, static_cast<uint32_t>(key.size()), static_cast<uint32_t>(value.size())};
  auto* text = reinterpret_cast<char*>(header + 1);
  if (!key.empty()) std::memcpy(text, key.data(), key.size());
  if (!value.empty()) std::memcpy(text + key.size(), value.data(), value.size());
  header->checksum = checksum_of(record, header);
  pool_.memory().flush(header, bytes);  // durable with the intents, before the link
  return record;
}

void Records::retire(uint64_t record) {
  // Whatever its lengths say: the record has been unlinked, and nothing may go wrong any more.
  retired_.add(record, bytes_of(pool_.at<Header>(record)));
}

bool Records::reclaim() {
  retired_.flush();
  epochs_.collect();
  return true;
}

}  // namespace perdure::index
