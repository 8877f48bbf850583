// Backups of a store that goes on, and stores made of them.
//
// A whole backup is a snapshot: the state at one moment, batches wholly. One that goes on from
// another is what the log has from that one's moment to its own, read partition by partition; since
// both moments lie between writes, all that a batch wrote is in it or nothing.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "pm/live.h"
#include "pm/unfinished_file.h"
#include "store/backup_file.h"
#include "store/snapshot.h"
#include "store/store_impl.h"

namespace perdure::store {

namespace {

// About so much is copied while a partition is stopped.
constexpr size_t kCopies = 256;
constexpr uint64_t kCopyBytes = 1 << 20;

}  // namespace

void StoreImpl::copy_some(uint32_t number, const StoreSnapshot* snapshot, CopyPlace& place,
                          std::vector<RecordCopy>& out) const {
  out.clear();
  uint64_t bytes = 0;
  const auto copy = [&](std::string_view key, const Partition::Found& found) {
    out.push_back({std::string(key), std::string(found.value), found.expiry_ms});
    bytes += key.size() + found.value.size();
    return out.size() < kCopies && bytes < kCopyBytes;
  };
  if (config_.ordered) {
    scan(number,
         {.key = place.after,
          .whole = !place.has_begun,
          .beyond = place.has_begun,
          .expected = kCopies},
         snapshot, copy);
    place.has_begun = true;
    place.has_ended = out.empty();
    if (!out.empty()) place.after = out.back().key;
    return;
  }
  if (!place.has_begun) {
    // Cut by tags: so that a part has about as many records, and bytes, as may be copied at a time.
    const auto [records, live_bytes] = with(number, false, [](Partition& partition) {
      const PartitionFigures figures = partition.statistics();
      return std::pair(figures.records, figures.live_bytes);
    });
    const uint64_t parts = std::max(records / kCopies, live_bytes / kCopyBytes) * 2 + 1;
    place.step = std::max<uint64_t>(HashIndex::kTags / std::bit_ceil(parts), 1);
    place.has_begun = true;
  }
  with(number, false, [&](Partition& partition) {
    const uint64_t end = place.tag + place.step;
    if (snapshot == nullptr) return partition.for_tags(place.tag, end, now_ms(), copy);
    partition.for_tags_at(snapshot->version(number), place.tag, end, snapshot->time_ms(), copy);
  });
  place.tag += place.step;
  place.has_ended = place.tag >= HashIndex::kTags;
}

// All records of a partition as the snapshot sees them, in copies, a part at a time.
void StoreImpl::copy_records(uint32_t number, const StoreSnapshot& snapshot, const BackupWay& way,
                             const std::function<void(const BackupEntry& entry)>& visit) const {
  std::vector<RecordCopy> copies;
  for (CopyPlace place; !place.has_ended;) {
    {
      const auto alone = way.alone();
      copy_some(number, &snapshot, place, copies);
    }
    for (const RecordCopy& copy : copies) {
      visit(
          {.partition = number, .expiry_ms = copy.expiry_ms, .key = copy.key, .value = copy.value});
    }
  }
}

namespace {

// Where a backup is made, by whoever asks for it.
class BackupPlace {
 public:
  // `mode`: of the pool's file; a backup of what others may not read is not theirs to read either.
  BackupPlace(const std::string& file, const std::string& since, mode_t mode)
      : path_(file), mode_(mode), replaces_(is_replaceable(file)) {
    std::error_code none;
    if (!since.empty() && std::filesystem::equivalent(file, since, none)) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format(
              "{} is the backup that this one goes on from, and is needed to restore it: give "
              "this one another name",
              file));
    }
    if (!since.empty()) since_.emplace(since);
    if (since_ && replaces_) require_no_ancestor();
    out_ = std::make_unique<pm::UnfinishedFile>(file, mode_);
  }
  const BackupReader* since() const { return since_ ? &*since_ : nullptr; }
  int file() const { return out_->file(); }
  const std::string& name() const { return out_->name(); }
  // What was passed to another user can still be written to by that one: another file with the same
  // takes its place.
  void take_back() {
    auto own = std::make_unique<pm::UnfinishedFile>(path_, mode_);
    own->copy_from(*out_);
    out_ = std::move(own);
  }
  // On the medium, under its name, which may have been another backup's before.
  void finish() { out_->finish(replaces_); }

 private:
  void require_no_ancestor() const;

  std::string path_;
  mode_t mode_;
  bool replaces_;
  std::optional<BackupReader> since_;
  std::unique_ptr<pm::UnfinishedFile> out_;
};

// What is replaced must not be what the new one rests on, however many others lie in between. Of
// those only the ids of neighbours are known; but what a backup goes on from is of the same store,
// and from before.
void BackupPlace::require_no_ancestor() const {
  const BackupHeader& since = since_->header();
  std::optional<BackupReader> replaced;
  try {
    replaced.emplace(path_);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo || error.code() == ErrorCode::kPermission) throw;
    return;  // damaged: nobody can rest on it
  }
  const BackupHeader& other = replaced->header();
  if (other.id != since.id && other.id != since.parent) {
    if (since.parent == 0 || other.store != since.store || other.end.size() != since.begin.size())
      return;
    for (size_t i = 0; i < other.end.size(); ++i) {
      if (other.end[i] > since.begin[i]) return;
    }
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{} may be what {} rests on, and needed to restore this backup: give this one "
                  "another name, or remove that file if it is not needed",
                  path_, since_->path()));
}

}  // namespace

StoreBackup StoreImpl::backup(const std::string& file, const std::string& since) const {
  // What a process that was killed has stored, and not fenced, counts once an opening to write has
  // made it durable.
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
  BackupPlace place(file, since, pm::mode_of(pool_.mapping().file()));
  StoreBackup made =
      backup_to({.file = place.file(), .name = place.name(), .since = place.since()});
  place.finish();
  return made;
}

void StoreImpl::require_own_base(const BackupReader* since) const {
  if (since == nullptr) return;
  const BackupHeader& earlier = since->header();
  if (earlier.store == root_.salt && earlier.end.size() == root_.partitions) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} is a backup of another store than '{}' in {}", since->path(),
                          config_.name, pool_.mapping().path()));
}

void StoreImpl::require_own_history(const BackupReader& since) const {
  if (config_.evicts) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' evicts, of which its log does not tell: make a whole backup",
                            config_.name));
  }
  const BackupHeader& earlier = since.header();
  switch (judge_run(earlier.run, earlier.end)) {
    case Runs::Verdict::kGoesOn:
      return;
    case Runs::Verdict::kLost:
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{} has what '{}' in {} does not have (was the pool put back to an older "
                      "state?), or is too long ago; make a whole backup",
                      since.path(), config_.name, pool_.mapping().path()));
    case Runs::Verdict::kUnknown:
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("nobody can say whether '{}' in {} has all that {} has: a program wrote to "
                      "it that notes no runs, it evicted, an opening of it was not seen to its "
                      "end, or that backup was made of a pool that was open to read, or full; make "
                      "a whole backup",
                      config_.name, pool_.mapping().path(), since.path()));
  }
}

StoreBackup StoreImpl::backup_to(const BackupWay& way) const {
  BackupHeader header{.id = pm::random_number(way.name) | 1,
                      .store = root_.salt,
                      .ordered = root_of(pool_, config_.name).second == StoreIndex::kOrdered,
                      .begin = std::vector<uint64_t>(root_.partitions)};
  if (root_.boundary_bytes != 0) {
    header.boundaries.assign(pool_.at<char>(root_.boundaries), root_.boundary_bytes);
  }
  require_own_base(way.since);
  {
    const auto alone = way.alone();
    if (way.since != nullptr) require_own_history(*way.since);
    header.run = tell_run();
  }
  if (way.since != nullptr) {
    const BackupHeader& earlier = way.since->header();
    header.parent = earlier.id;
    header.begin = earlier.end;
  }
  // Made, and let go, between turns.
  struct Moment {
    Moment(const StoreImpl& store, const BackupWay& its_way) : way(its_way) {
      const auto alone = way.alone();
      snapshot.emplace(store);
    }
    ~Moment() {
      const auto alone = way.alone();
      snapshot.reset();
    }
    const BackupWay& way;
    std::optional<StoreSnapshot> snapshot;
  } const moment(*this, way);
  const StoreSnapshot& snapshot = *moment.snapshot;
  for (uint32_t i = 0; i < root_.partitions; ++i) {
    header.end.push_back(snapshot.position(i));
  }
  BackupWriter writer(way.file, way.name, header);
  const auto tell = [&](uint32_t partition) {
    if (way.progress) way.progress(partition, root_.partitions);
  };
  for (uint32_t i = 0; i < root_.partitions; ++i) {
    if (way.since == nullptr) {
      copy_records(i, snapshot, way, [&](const BackupEntry& entry) {
        writer.add(entry);
        tell(i);
      });
    } else {
      copy_changes(i, header.begin[i], header.end[i], way, [&](const BackupEntry& entry) {
        writer.add(entry);
        tell(i);
      });
    }
    tell(i + 1);
  }
  writer.finish();
  return {.entries = writer.entries(), .bytes = writer.bytes(), .positions = header.end};
}

void StoreImpl::copy_changes(uint32_t number, uint64_t from, uint64_t end, const BackupWay& way,
                             const std::function<void(const BackupEntry& entry)>& visit) const {
  Partition::LogPlace hint;
  std::vector<Store::Change> changes;
  while (from < end) {
    changes.clear();
    {
      const auto alone = way.alone();
      this->changes(number, from, hint, kCopyBytes, changes);
    }
    if (changes.empty()) break;
    for (const Store::Change& change : changes) {
      if (change.version >= end) break;
      using Kind = Store::Change::Kind;
      visit({.kind = change.kind == Kind::kPut      ? BackupEntry::Kind::kPut
                     : change.kind == Kind::kRemove ? BackupEntry::Kind::kRemove
                                                    : BackupEntry::Kind::kRemovePrefix,
             .partition = number,
             .expiry_ms = expiry_of(change.expires),
             .key = change.key,
             .value = change.value});
    }
  }
}

// ---- for other processes

void StoreImpl::answer_backups(std::mutex* turns) {
  if (pool_.live() == nullptr) return;
  pool_.live()->add(config_.name,
                    [this, turns](const pm::LiveRequest& request, const BackupProgress& progress) {
                      return answer(request, progress, turns);
                    });
}

std::vector<uint64_t> StoreImpl::answer(const pm::LiveRequest& request,
                                        const BackupProgress& progress, std::mutex* turns) {
  // Nobody who holds `turns` waits for an opening.
  for (uint32_t i = 0; i < root_.partitions; ++i) {
    if (is_opening(i)) {
      throw Error(ErrorCode::kInUse,
                  fmt::format("{}: '{}' is still being opened; ask again when it is ready",
                              pool_.mapping().path(), config_.name));
    }
  }
  std::unique_ptr<BackupReader> since;
  if (request.base >= 0) since = std::make_unique<BackupReader>(request.base, request.base_name);
  const BackupWay way{request.file, request.file_name, since.get(), turns, progress};
  if (request.what == pm::kLiveStore) {
    require_own_base(way.since);
    bool is_new = false;
    if (!request.option.empty()) {
      const auto alone = way.alone();
      is_new = std::ranges::count(consumers(), request.option) == 0;
      if (is_new) add_consumer(request.option);
    }
    try {
      const StoreBackup made = backup_to(way);
      return {made.entries, made.bytes};
    } catch (...) {
      // Nobody who knows of it would move it on, and it would keep all of the log.
      const auto alone = way.alone();
      if (is_new) remove_consumer(request.option);
      throw;
    }
  }
  if (request.what != pm::kLiveKeep) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' knows nothing of '{}'", config_.name, request.what));
  }
  const BackupReader whole(request.file, request.file_name);
  if (whole.header().store != root_.salt || whole.header().end.size() != root_.partitions) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} is a backup of another store than '{}'", request.file_name, config_.name));
  }
  for (uint32_t i = 0; i < root_.partitions; ++i) {
    const auto alone = way.alone();
    // Another one may have moved it on meanwhile.
    acknowledge(request.option, i,
                std::max(consumer_position(request.option, i), whole.header().end[i]));
  }
  return {};
}

namespace {

// That what was written is what the answer says: all of it is read.
StoreBackup read_back(const std::string& pool, const BackupPlace& place,
                      const std::vector<uint64_t>& numbers) {
  const auto require = [&](bool holds) {
    if (holds) return;
    throw Error(ErrorCode::kIo,
                fmt::format("{}: the process that has the pool open says that {} is done, but has "
                            "not written what it says; ask again",
                            pool, place.name()));
  };
  require(numbers.size() == 2);
  uint64_t entries = 0;
  StoreBackup made{.entries = numbers[0], .bytes = numbers[1], .positions = {}};
  try {
    BackupReader written(place.file(), place.name());
    written.read([&](const BackupEntry&) { ++entries; });
    require(written.header().parent == (place.since() == nullptr ? 0 : place.since()->header().id));
    require(written.file_bytes() == made.bytes);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kIo);
    throw;
  }
  require(entries == made.entries);
  return made;
}

}  // namespace

StoreBackup StoreImpl::backup_live(const std::string& pool, const std::string& name,
                                   const std::string& file, const std::string& since,
                                   const std::string& consumer, const BackupProgress& progress) {
  BackupPlace place(file, since, pm::mode_of(pool));
  pm::LiveRequest request{.what = pm::kLiveStore,
                          .structure = name,
                          .option = consumer,
                          .file = place.file(),
                          .file_name = place.name()};
  if (place.since() != nullptr) {
    request.base = place.since()->file();
    request.base_name = since;
  }
  const pm::LiveAnswer answer = pm::ask_live(pool, request, progress);
  if (!answer.of_own_user) place.take_back();
  StoreBackup made = read_back(pool, place, answer.numbers);
  place.finish();
  // Only now that the backup is there.
  if (!consumer.empty()) {
    const BackupReader kept(file);  // open to read alone
    request.what = pm::kLiveKeep;
    request.file = kept.file();
    request.file_name = file;
    request.base = -1;
    request.base_name.clear();
    pm::ask_live(pool, request, nullptr);
  }
  return made;
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
