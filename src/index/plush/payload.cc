#include "index/plush/payload.h"

#include <fmt/core.h>

namespace perdure::index::plush {

Payload::Payload(pm::PoolImpl& pool, Root& root, const std::string& name, const Keys& keys,
                 Kind key_kind, Kind value_kind, uint32_t partitions)
    : pool_(pool),
      name_(name),
      keys_(keys),
      key_kind_(key_kind),
      value_kind_(value_kind),
      used_(key_kind != Kind::kU64 || value_kind != Kind::kU64) {
  if (used_) log_ = std::make_unique<PayloadLog>(pool, root, partitions);
}

Payload::Match Payload::compare_bytes(uint64_t value, const Key& key) const {
  PayloadLog::View view;
  if (!log_->read(value, view)) return Match::kUnknown;
  if (view.key == key.bytes) [[likely]]
    return Match::kSame;
  return hash_in(view) == key.hash ? Match::kOther : Match::kUnknown;
}

uint64_t Payload::hash_in(const PayloadLog::View& payload) const {
  if (key_kind_ == Kind::kU64 && payload.key.size() != sizeof(uint64_t)) return ~uint64_t{0};
  return keys_.key_of(payload.key).hash;
}

PayloadLog::View Payload::view_of(uint64_t value) const {
  const PayloadLog::View view = log_->read_pinned(value);
  const auto fits = [](Kind kind, std::string_view part) {
    return kind != Kind::kU64 || part.size() == sizeof(uint64_t);
  };
  if (!fits(key_kind_, view.key) || !fits(value_kind_, view.value)) [[unlikely]]
    pool_.throw_corrupt(fmt::format("a payload of '{}' is damaged: it is no word", name_));
  return view;
}

bool Payload::is_same_key(uint64_t value, uint64_t other_value) const {
  PayloadLog::View one;
  PayloadLog::View other;
  // Damaged payload says nothing of its key: with all 63 bits equal it is taken to be the same. So
  // the newer record hides the older one, which would else seem to be the newest whole one.
  if (!log_->read(value, one) || !log_->read(other_value, other)) return true;
  return one.key == other.key || hash_in(one) != hash_in(other);
}

void Payload::account_garbage(std::span<const Record> dropped) const {
  if (!used_) return;
  for (const Record& one : dropped) {
    log_->note_garbage(one.value,
                       (one.tag & 1) != 0 ? PayloadLog::Part::kRest : PayloadLog::Part::kAll);
  }
}

}  // namespace perdure::index::plush
