// Backups of a store that goes on, and stores made of them.
//
// A whole backup is a snapshot: the state at one moment, batches wholly. One that goes on from another is what the
// log has from that one's moment to its own, read partition by partition; since both moments lie between writes,
// all that a batch wrote is in it or nothing.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "store/backup_file.h"
#include "store/snapshot.h"
#include "store/store_impl.h"

namespace perdure::store {

namespace {

uint64_t random_id() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

struct RecordCopy {
  std::string key;
  std::string value;
  uint64_t expiry_ms;
};

// About so much is copied while a partition is stopped.
constexpr size_t kCopies = 256;
constexpr uint64_t kCopyBytes = 1 << 20;

}  // namespace

// All records of a partition as the snapshot sees them, in copies, a part at a time.
void StoreImpl::copy_records(uint32_t number, const StoreSnapshot& snapshot,
                             const std::function<void(const BackupEntry& entry)>& visit) const {
  std::vector<RecordCopy> copies;
  const auto give = [&] {
    for (const RecordCopy& copy : copies) {
      visit(
          {.partition = number, .expiry_ms = copy.expiry_ms, .key = copy.key, .value = copy.value});
    }
  };
  if (config_.ordered) {
    std::string from;
    for (bool whole = true;; whole = false) {
      copies.clear();
      uint64_t bytes = 0;
      scan(number, {.key = from, .whole = whole, .beyond = !whole, .expected = kCopies}, &snapshot,
           [&](std::string_view key, const Partition::Found& found) {
             copies.push_back({std::string(key), std::string(found.value), found.expiry_ms});
             bytes += key.size() + found.value.size();
             return copies.size() < kCopies && bytes < kCopyBytes;
           });
      if (copies.empty()) return;
      give();
      from = std::move(copies.back().key);
    }
  }
  // Cut by tags: so that a part has about as many records, and bytes, as may be copied at a time.
  const auto [records, bytes] = with(number, false, [](Partition& partition) {
    const PartitionFigures figures = partition.statistics();
    return std::pair(figures.records, figures.live_bytes);
  });
  const uint64_t parts = std::max(records / kCopies, bytes / kCopyBytes) * 2 + 1;
  const uint64_t step = std::max<uint64_t>(HashIndex::kTags / std::bit_ceil(parts), 1);
  for (uint64_t first = 0; first < HashIndex::kTags; first += step) {
    copies.clear();
    with(number, false, [&](Partition& partition) {
      partition.for_tags_at(
          snapshot.version(number), first, first + step, snapshot.time_ms(),
          [&](std::string_view key, const Partition::Found& found) {
            copies.push_back({std::string(key), std::string(found.value), found.expiry_ms});
          });
    });
    give();
  }
}

StoreBackup StoreImpl::backup(const std::string& file, const std::string& since) const {
  BackupHeader header{.id = random_id(),
                      .store = root_.salt,
                      .ordered = root_of(pool_, config_.name).second == StoreIndex::kOrdered,
                      .begin = std::vector<uint64_t>(root_.partitions)};
  if (root_.boundary_bytes != 0) {
    header.boundaries.assign(pool_.at<char>(root_.boundaries), root_.boundary_bytes);
  }
  // What a process that was killed has stored, and not fenced, counts once an opening to write has made it durable.
  if (pool_.read_only() && !std::ranges::all_of(shards_, [](const auto& shard) {
        return shard->partition.was_closed();
      })) {
    throw Error(
        ErrorCode::kReadOnly,
        fmt::format(
            "{}: '{}' was not closed, so what it has is not sure to be durable: open the pool to "
            "write, which sees to that, for a backup",
            pool_.mapping().path(), config_.name));
  }
  if (!since.empty()) {
    std::error_code none;
    if (std::filesystem::equivalent(file, since, none)) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format(
              "{} is the backup that this one goes on from, and is needed to restore it: give "
              "this one another name",
              file));
    }
    const BackupReader earlier(since);
    if (earlier.header().store != root_.salt || earlier.header().end.size() != root_.partitions) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} is a backup of another store than '{}' in {}", since,
                              config_.name, pool_.mapping().path()));
    }
    header.parent = earlier.header().id;
    header.begin = earlier.header().end;
  }
  const StoreSnapshot snapshot(*this);
  for (uint32_t i = 0; i < root_.partitions; ++i) {
    header.end.push_back(snapshot.position(i));
    if (header.begin[i] > header.end[i]) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} was made when '{}' had come further than it is now", since,
                              config_.name));
    }
  }
  BackupWriter writer(file, header);
  for (uint32_t i = 0; i < root_.partitions; ++i) {
    if (since.empty()) {
      copy_records(i, snapshot, [&](const BackupEntry& entry) { writer.add(entry); });
      continue;
    }
    Partition::LogPlace hint;
    std::vector<Store::Change> changes;
    for (uint64_t from = header.begin[i]; from < header.end[i];) {
      changes.clear();
      this->changes(i, from, hint, kCopyBytes, changes);
      if (changes.empty()) break;
      for (const Store::Change& change : changes) {
        if (change.version >= header.end[i]) break;
        using Kind = Store::Change::Kind;
        writer.add({.kind = change.kind == Kind::kPut      ? BackupEntry::Kind::kPut
                            : change.kind == Kind::kRemove ? BackupEntry::Kind::kRemove
                                                           : BackupEntry::Kind::kRemovePrefix,
                    .partition = i,
                    .expiry_ms = expiry_of(change.expires),
                    .key = change.key,
                    .value = change.value});
      }
    }
  }
  writer.finish();
  return {.entries = writer.entries(), .bytes = writer.bytes(), .positions = header.end};
}

std::unique_ptr<StoreImpl> StoreImpl::restore(Pool& pool, const std::string& name,
                                              std::span<const std::string> files,
                                              const StoreOptions& options) {
  if (files.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "there is no backup to make a store of");
  }
  // All of it is verified before anything is written.
  uint64_t id = 0;
  BackupHeader first;
  for (const std::string& file : files) {
    BackupReader reader(file);
    if (reader.header().parent != id) {
      throw Error(ErrorCode::kInvalidArgument,
                  id == 0 ? fmt::format("{} is not a whole backup, but goes on from another one; "
                                        "give that one before it",
                                        file)
                          : fmt::format("{} does not go on from the backup given before it", file));
    }
    if (first.id == 0) first = reader.header();
    if (reader.header().store != first.store || reader.header().end.size() != first.end.size() ||
        reader.header().boundaries != first.boundaries) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} is a backup of another store than {}", file, files[0]));
    }
    reader.read({});
    id = reader.header().id;
  }
  StoreOptions made = options;
  if (made.index == StoreIndex::kAsCreated && first.ordered) made.index = StoreIndex::kOrdered;
  if (!first.boundaries.empty()) {
    Boundaries boundaries;
    if (!Boundaries::decode(first.boundaries, boundaries)) {
      throw Error(ErrorCode::kCorrupt, fmt::format("{}: its boundaries are damaged", files[0]));
    }
    made.boundaries = boundaries.texts();
  }
  const auto partitions = static_cast<uint32_t>(first.end.size());
  if (made.partitions != 0 && made.partitions != partitions) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the backup has {} partitions, and so has what is made of it, not {}",
                            partitions, made.partitions));
  }
  made.partitions = partitions;
  std::unique_ptr<StoreImpl> store = create(pool, name, made);
  // Puts together, as far as nothing else comes between.
  std::vector<RecordCopy> puts;
  uint64_t bytes = 0;
  const auto write_puts = [&] {
    std::vector<WriteRequest> requests;
    requests.reserve(puts.size());
    for (const RecordCopy& put : puts) {
      requests.push_back({.key = put.key, .value = put.value, .expiry_ms = put.expiry_ms});
    }
    store->multi_write(requests, {});
    puts.clear();
    bytes = 0;
  };
  for (const std::string& file : files) {
    BackupReader reader(file);
    reader.read([&](const BackupEntry& entry) {
      if (entry.kind == BackupEntry::Kind::kPut) {
        puts.push_back({std::string(entry.key), std::string(entry.value), entry.expiry_ms});
        bytes += entry.key.size() + entry.value.size();
        if (puts.size() >= kCopies || bytes >= kCopyBytes) write_puts();
        return;
      }
      write_puts();
      if (entry.kind == BackupEntry::Kind::kRemove) {
        store->remove(entry.key);
      } else {
        store->remove_prefix(entry.key, {entry.partition});
      }
    });
    write_puts();
  }
  return store;
}

}  // namespace perdure::store
