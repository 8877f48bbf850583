// Who reads the changes, and how far they have come: a list of blocks in the pool, of each consumer
// one.
//
// A position is one word; it becomes durable before the log lets go of what is before it. A crash
// in between keeps more than it must.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <unordered_set>

#include "pm/checksum.h"
#include "store/expiry_time.h"
#include "store/held_shards.h"
#include "store/store_impl.h"

namespace perdure::store {

uint64_t StoreImpl::checksum_of(const ConsumerBlock& consumer) const {
  return pm::checksum64(consumer.name, sizeof consumer.name, root_.salt);
}

void StoreImpl::read_consumers() {
  const auto damaged = [&](const std::string& what) {
    pool_.throw_corrupt(fmt::format("'{}': {}", config_.name, what));
  };
  consumers_.reserve(kConsumersMax);  // for good: who only reads the list sees none that moves
  std::unordered_set<uint64_t> met;
  for (uint64_t at = root_.consumers; at != 0; at = pool_.at<ConsumerBlock>(at)->next) {
    if (!pool_.leads_inside(at, consumer_bytes()) ||
        !pool_.heap().is_allocated(at, consumer_bytes()) || !met.insert(at).second) {
      damaged(fmt::format("the list of its consumers leads to {:#x}, which is none", at));
    }
    const auto& consumer = *pool_.at<ConsumerBlock>(at);
    if (consumer.checksum != checksum_of(consumer)) damaged("the name of a consumer is damaged");
    for (uint32_t i = 0; i < root_.partitions; ++i) {
      uint64_t position = 0;
      if (!pm::unseal_word(positions_of(at)[i], kPositionSalt + i, position)) {
        damaged(fmt::format("the position of consumer '{}' in partition {} is damaged",
                            consumer.name, i));
      }
    }
    if (consumers_.size() == kConsumersMax) damaged("it has more consumers than it may");
    consumers_.push_back(at);
  }
  if (!pool_.read_only() && !consumers_.empty()) {
    // A process that died in acknowledge() may have left a position in the caches only: durable
    // before the log lets go of what it speaks of.
    for (const uint64_t at : consumers_) {
      pool_.memory().flush(pool_.at<ConsumerBlock>(at), consumer_bytes());
    }
    fence();
  }
  for (uint32_t i = 0; i < root_.partitions; ++i) tell_unread(i, shards_[i]->partition);
}

std::vector<uint64_t> StoreImpl::consumer_blocks() const {
  const std::lock_guard lock(consumers_mutex_);
  return consumers_;
}

// By whom works on the partition, so that what is told last is what is so.
void StoreImpl::tell_unread(uint32_t partition, Partition& to) const {
  const std::lock_guard lock(consumers_mutex_);
  uint64_t lowest = ~uint64_t{0};
  for (const uint64_t consumer : consumers_) {
    uint64_t position = 0;
    pm::unseal_word(positions_of(consumer)[partition], kPositionSalt + partition, position);
    lowest = std::min(lowest, position);
  }
  to.set_unread(lowest);
}

// Its block. Throws kNoSuchName.
uint64_t StoreImpl::find_consumer(const std::string& name) const {
  const auto found = std::ranges::find_if(
      consumers_, [&](uint64_t at) { return pool_.at<ConsumerBlock>(at)->name == name; });
  if (found != consumers_.end()) return *found;
  throw Error(ErrorCode::kNoSuchName, fmt::format("{}: '{}' has no consumer '{}'",
                                                  pool_.mapping().path(), config_.name, name));
}

void StoreImpl::add_consumer(const std::string& name) {
  pool_.require_writable();
  if (name.empty() || name.size() >= ConsumerBlock::kNameBytes ||
      name.find('\0') != std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a consumer's name has 1 to {} bytes, none of them zero, and not {}",
                            ConsumerBlock::kNameBytes - 1, name.size()));
  }
  end_own_batch();
  const std::lock_guard change(consumers_change_);
  if (std::ranges::any_of(consumers_,
                          [&](uint64_t at) { return pool_.at<ConsumerBlock>(at)->name == name; })) {
    throw Error(ErrorCode::kNameExists,
                fmt::format("'{}' has a consumer '{}' already", config_.name, name));
  }
  if (consumers_.size() == kConsumersMax) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' has {} consumers; remove one", config_.name, kConsumersMax));
  }
  std::vector<uint32_t> all(root_.partitions);
  std::iota(all.begin(), all.end(), 0);
  const HeldShards held(*this, std::move(all));
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t at = txn.allocate(consumer_bytes());
  auto* consumer = pool_.at<ConsumerBlock>(at);
  *consumer = {};
  std::memcpy(consumer->name, name.data(), name.size());
  consumer->checksum = checksum_of(*consumer);
  for (uint32_t i = 0; i < root_.partitions; ++i) {
    positions_of(at)[i] = pm::seal_word(shards_[i]->partition.next_change(), kPositionSalt + i);
  }
  pool_.memory().flush(consumer, consumer_bytes());
  // The block and the intent, before the link.
  uint64_t* link = consumers_.empty() ? &pool_.at<Root>(pool_.offset_of(&root_))->consumers
                                      : &pool_.at<ConsumerBlock>(consumers_.back())->next;
  txn.publish(at, *link);
  {
    const std::lock_guard lock(consumers_mutex_);
    consumers_.push_back(at);
  }
  for (uint32_t i = 0; i < root_.partitions; ++i) tell_unread(i, shards_[i]->partition);
}

void StoreImpl::remove_consumer(const std::string& name) {
  pool_.require_writable();
  end_own_batch();
  {
    const std::lock_guard change(consumers_change_);
    const std::lock_guard lock(consumers_mutex_);
    const uint64_t at = find_consumer(name);
    const auto place = std::ranges::find(consumers_, at);
    uint64_t* link = place == consumers_.begin()
                         ? &pool_.at<Root>(pool_.offset_of(&root_))->consumers
                         : &pool_.at<ConsumerBlock>(*std::prev(place))->next;
    pm::Heap::Txn txn(pool_.heap(), true);
    txn.retire(at, *link, pool_.at<ConsumerBlock>(at)->next);
    consumers_.erase(place);
  }
  // Without consumers_change_: a worker that is waited for here may be waiting for it. All of them
  // are told: the consumer is gone, and one that cannot be read must not keep the others' logs.
  std::exception_ptr failure;
  for (uint32_t i = 0; i < root_.partitions; ++i) {
    try {
      with(i, true, [&](Partition& partition) { tell_unread(i, partition); });
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

std::vector<std::string> StoreImpl::consumers() const {
  const std::lock_guard lock(consumers_mutex_);
  std::vector<std::string> names;
  for (const uint64_t at : consumers_) names.emplace_back(pool_.at<ConsumerBlock>(at)->name);
  return names;
}

uint64_t StoreImpl::consumer_position(const std::string& name, uint32_t partition) const {
  require_partition(partition);
  const std::lock_guard lock(consumers_mutex_);
  uint64_t position = 0;
  pm::unseal_word(positions_of(find_consumer(name))[partition], kPositionSalt + partition,
                  position);
  return position;
}

void StoreImpl::acknowledge(const std::string& name, uint32_t partition, uint64_t position) {
  pool_.require_writable();
  require_partition(partition);
  const uint64_t next = kept_changes(partition).next;
  {
    const std::lock_guard lock(consumers_mutex_);
    uint64_t* word = &positions_of(find_consumer(name))[partition];
    uint64_t before = 0;
    pm::unseal_word(*word, kPositionSalt + partition, before);
    if (position < before || position > next) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format(
              "'{}', partition {}: consumer '{}' is at {}, and the next write at {}: it cannot "
              "acknowledge {}",
              config_.name, partition, name, before, next, position));
    }
    pm::store_release(*word, pm::seal_word(position, kPositionSalt + partition));
    pool_.memory().flush(word, sizeof *word);
    fence();  // before the log lets go of what it speaks of
  }
  with(partition, true, [&](Partition& one) { tell_unread(partition, one); });
}

void StoreImpl::require_partition(uint32_t partition) const {
  if (partition < root_.partitions) return;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("there is no partition {}: '{}' has {}",
                                                       partition, config_.name, root_.partitions));
}

StoreImpl::KeptChanges StoreImpl::kept_changes(uint32_t partition) const {
  require_partition(partition);
  return with(partition, false,
              [](Partition& one) { return KeptChanges{one.first_change(), one.next_change()}; });
}

void StoreImpl::changes(uint32_t partition, uint64_t& from, Partition::LogPlace& hint,
                        uint64_t bytes_max, std::vector<Store::Change>& out) const {
  require_partition(partition);
  uint64_t bytes = 0;
  std::vector<Store::Change> read;  // told once all of it is there, and durable
  Partition::LogPlace place = hint;
  const uint64_t end = with(partition, false, [&](Partition& one) {
    return one.changes(from, place, [&](const LoggedChange& logged) {
      using Kind = Store::Change::Kind;
      Store::Change& change = read.emplace_back();
      change.kind = logged.prefix    ? Kind::kRemovePrefix
                    : logged.removal ? Kind::kRemove
                                     : Kind::kPut;
      change.version = logged.version;
      change.key = logged.key;
      change.value = logged.value;
      if (logged.expiry_ms != kNoExpiry) {
        change.expires = time_of_expiry(logged.expiry_ms);
      }
      change.goes_on = logged.goes_on;
      change.batch_partition = static_cast<uint32_t>(logged.batch.partition);
      change.batch_version = logged.batch.version;
      bytes += change.key.size() + change.value.size() + sizeof change;
      return bytes < bytes_max;
    });
  });
  out = std::move(read);
  from = end;
  hint = place;
}

void StoreImpl::read_log(uint32_t partition, uint64_t& from, Partition::LogPlace& hint,
                         uint64_t bytes_max, std::vector<LogEntry>& out) const {
  require_partition(partition);
  uint64_t bytes = 0;
  std::vector<LogEntry> read;  // as above
  Partition::LogPlace place = hint;
  const auto copy = [&](const LoggedChange& logged) {
    using Kind = LogEntry::Kind;
    LogEntry& entry = read.emplace_back();
    entry.kind = logged.ends_batch ? Kind::kEndsBatch
                 : logged.prefix   ? Kind::kRemovePrefix
                 : logged.removal  ? Kind::kRemove
                                   : Kind::kPut;
    entry.version = logged.version;
    entry.goes_on = logged.goes_on;
    if (logged.ends_batch) {
      entry.parts.resize(logged.value.size() / sizeof(BatchPart));
      std::memcpy(entry.parts.data(), logged.value.data(), entry.parts.size() * sizeof(BatchPart));
    } else {
      entry.key = logged.key;
      entry.value = logged.value;
      entry.expiry_ms = logged.expiry_ms;
    }
    bytes += logged.key.size() + logged.value.size() + sizeof entry;
    return bytes < bytes_max;
  };
  const uint64_t end = with(partition, false, [&](Partition& one) {
    return from == one.next_change() ? from : one.changes(from, place, copy, true);
  });
  out = std::move(read);
  from = end;
  hint = place;
}

uint64_t StoreImpl::tell_run() const {
  end_own_batch();
  for (uint32_t i = 0; i < root_.partitions; ++i) require_ready(i);
  end_last_run();
  return runs_->tell();
}

Runs::Verdict StoreImpl::judge_run(uint64_t run, std::span<const uint64_t> positions) const {
  std::vector<uint64_t> next;
  for (uint32_t i = 0; i < root_.partitions; ++i) next.push_back(kept_changes(i).next);
  end_last_run();
  return runs_->judge(run, positions, next);
}

uint64_t StoreImpl::change_bytes(uint32_t partition, uint64_t from) const {
  require_partition(partition);
  return with(partition, false, [&](Partition& one) { return one.change_bytes(from); });
}

}  // namespace perdure::store
