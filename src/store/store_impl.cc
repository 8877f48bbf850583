#include "store/store_impl.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <random>
#include <system_error>
#include <thread>

#include "index/participant.h"
#include "pm/checksum.h"
#include "pm/live.h"
#include "pm/transaction_log.h"
#include "store/cursor.h"
#include "store/hash.h"
#include "store/held_shards.h"
#include "store/modify.h"
#include "store/snapshot.h"

namespace perdure::store {

namespace {

constexpr uint64_t kGarbagePercentMax = 400;

// A scan looks at all partitions that are cut by hash: there are fewer where there is an order.
uint32_t default_partitions(uint64_t capacity_bytes, bool ordered) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(capacity_bytes >> 22, 1, ordered ? 16 : 64));
}

// Each partition holds a few blocks that are not full: together at most a few percent of the pool.
uint32_t default_block_bytes(uint64_t capacity_bytes, uint32_t partitions) {
  return static_cast<uint32_t>(std::clamp(std::bit_floor(capacity_bytes / partitions / 128),
                                          uint64_t{4} << 10, kBlockBytesMax));
}

}  // namespace

StoreImpl::StoreImpl(Pool& its_pool, const std::string& name, uint64_t root, StoreIndex index,
                     const StoreOptions& options)
    : pool_(pm::impl_of(its_pool)), use_(pool_, name, root), root_(*pool_.at<Root>(root)) {
  pm::PoolImpl& pool = pool_;
  config_ = {.name = name,
             .salt = root_.salt,
             .block_bytes = root_.block_bytes,
             .garbage_percent = options.garbage_percent,
             .partitions = root_.partitions,
             .ordered = index == StoreIndex::kOrdered,
             .snapshot_percent = options.index_snapshot_percent,
             .snapshots = &snapshots_};
  // Whole blocks; what was given is for all partitions together.
  const auto share = [&](uint64_t bytes) {
    const uint64_t one = bytes / root_.partitions;
    return one > ~uint64_t{0} / 2 ? one : round_up(one, root_.block_bytes);
  };
  config_.changes_bytes = share(options.changes_bytes);
  config_.unread_bytes =
      share(options.unread_bytes != 0 ? options.unread_bytes : pool.capacity_bytes() / 4);
  config_.evicts = options.evict;
  config_.may_evict = options.may_evict;
  config_.evicted = options.evicted;
  uint64_t bytes_max = options.bytes_max;
  // An index in PM needs some of the rest.
  if (bytes_max == 0 && options.evict) {
    bytes_max = pool.capacity_bytes() / 8 * (index == StoreIndex::kPm ? 4 : 7);
  }
  if (bytes_max != 0) {
    config_.snapshot_percent = 0;
    constexpr uint64_t kBlocksMin = 12;  // heads, spares, and some to choose from
    config_.bytes_max = bytes_max / root_.partitions;
    if (config_.bytes_max < kBlocksMin * root_.block_bytes) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format(
              "{}: '{}' cannot be bounded by {} bytes: {} partitions of {} blocks of {} bytes "
              "take more",
              pool.mapping().path(), name, bytes_max, root_.partitions, kBlocksMin,
              root_.block_bytes));
    }
  }
  read_boundaries();
  if (index == StoreIndex::kPm) {
    const PmIndex::Structure structure(options.index_structure);
    if (!pool.heap().is_allocated(root_.pm_index, sizeof(pm::DirectoryEntry))) {
      pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
    }
    pm_index_ = std::make_unique<PmIndex>(its_pool, root_.pm_index, root_.salt, root, structure);
    config_.pm = pm_index_.get();
  }
  auto* roots =
      pool.follow<PartitionRoot>(root_.partition_roots, root_.partitions * sizeof(PartitionRoot));
  shards_.reserve(root_.partitions);
  for (uint32_t i = 0; i < root_.partitions; ++i) {
    shards_.push_back(std::make_unique<Shard>(pool, roots[i], i, config_));
  }
  read_consumers();
  runs_ = std::make_unique<Runs>(pool_, roots[0].runs, roots[0].runs_seen, root_.salt,
                                 root_.partitions);
}

void StoreImpl::read_boundaries() {
  const uint64_t bytes = root_.boundary_bytes;
  if (bytes == 0) return;
  const bool there =
      bytes <= Boundaries::kBytesMax && pool_.heap().is_allocated(root_.boundaries, bytes);
  const auto text = [&] { return std::string_view(pool_.at<char>(root_.boundaries), bytes); };
  if (!there || pm::checksum64(text().data(), bytes, root_.salt) != root_.boundary_checksum ||
      !Boundaries::decode(text(), boundaries_) || boundaries_.partitions() != root_.partitions) {
    pool_.throw_corrupt(fmt::format("the boundaries of '{}' are damaged", config_.name));
  }
}

namespace {

const char* type_of(StoreIndex index) {
  if (index == StoreIndex::kPm) return kPmTypeName;
  return index == StoreIndex::kOrdered ? kOrderedTypeName : kTypeName;
}

}  // namespace

std::unique_ptr<StoreImpl> StoreImpl::create(Pool& its_pool, const std::string& name,
                                             const StoreOptions& options) {
  pm::PoolImpl& pool = pm::impl_of(its_pool);
  index::require_range("partitions", options.partitions, 1, kPartitionsMax);
  index::require_range("block_bytes", options.block_bytes, kBlockBytesMin, kBlockBytesMax);
  index::require_range("garbage_percent", options.garbage_percent, 5, kGarbagePercentMax);
  index::require_range("index_snapshot_percent", options.index_snapshot_percent, 5,
                       kGarbagePercentMax);
  if (!std::has_single_bit(options.block_bytes) && options.block_bytes != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("block_bytes is {}; it must be a power of two", options.block_bytes));
  }
  const Boundaries boundaries(options.boundaries);
  if (!boundaries.empty() && options.partitions != 0 &&
      options.partitions != boundaries.partitions()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} boundaries make {} partitions, not {}", boundaries.partitions() - 1,
                            boundaries.partitions(), options.partitions));
  }
  const StoreIndex index =
      options.index == StoreIndex::kAsCreated ? StoreIndex::kHash : options.index;
  const bool ordered = index == StoreIndex::kOrdered;
  const uint64_t capacity_bytes = pool.capacity_bytes();
  Root root{};
  root.seal.magic = kRootMagic;
  root.salt = std::random_device{}() | uint64_t{std::random_device{}()} << 32;
  if (!boundaries.empty()) {
    root.partitions = boundaries.partitions();
  } else if (options.partitions != 0) {
    root.partitions = options.partitions;
  } else {
    root.partitions = default_partitions(capacity_bytes, ordered);
  }
  const std::string boundary_text = boundaries.encode();
  root.boundary_bytes = boundary_text.size();
  root.boundary_checksum = pm::checksum64(boundary_text.data(), boundary_text.size(), root.salt);
  root.block_bytes = options.block_bytes != 0
                         ? options.block_bytes
                         : default_block_bytes(capacity_bytes, root.partitions);
  const uint64_t roots_bytes = root.partitions * sizeof(PartitionRoot);
  const auto fill_roots = [&](char* block) {
    auto* all = reinterpret_cast<PartitionRoot*>(block);
    for (uint32_t i = 0; i < root.partitions; ++i) {
      all[i] = {};
      all[i].version_floor = pm::seal_word(1, kVersionSalt);
      all[i].incarnation_floor = pm::seal_word(1, kIncarnationSalt);
    }
    pool.memory().flush(block, roots_bytes);
  };
  const auto fill_boundaries = [&](char* block) {
    std::ranges::copy(boundary_text, block);
    pool.memory().flush(block, boundary_text.size());
  };
  std::vector<index::NewBlock> blocks = {
      {roots_bytes, offsetof(Root, partition_roots), fill_roots}};
  if (!boundaries.empty()) {
    blocks.push_back({boundary_text.size(), offsetof(Root, boundaries), fill_boundaries});
  }
  const auto fill_index = [&](char* block) {
    const pm::DirectoryEntry entry = pm::PoolImpl::free_annex();
    std::memcpy(block, &entry, sizeof entry);
    pool.memory().flush(block, sizeof entry);
  };
  if (index == StoreIndex::kPm) {
    const PmIndex::Structure is_there(options.index_structure);  // else nothing is made
    blocks.push_back({sizeof(pm::DirectoryEntry), offsetof(Root, pm_index), fill_index});
  } else if (!options.index_structure.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "a structure was named for the index, which is not one in PM (StoreIndex::kPm)");
  }
  const uint64_t at = index::make_structure(pool, name, type_of(index), Kind::kBytes, Kind::kBytes,
                                            &root, sizeof root, kSealedBytes, blocks);
  return finish_opening(
      its_pool, std::unique_ptr<StoreImpl>(new StoreImpl(its_pool, name, at, index, options)),
      options);
}

std::unique_ptr<StoreImpl> StoreImpl::finish_opening(Pool& its_pool,
                                                     std::unique_ptr<StoreImpl> store,
                                                     const StoreOptions& options) {
  store->recover(its_pool, options.recovery_threads, options.serve_early);
  store->finish_transactions();
  store->start_workers(options);
  return store;
}

// What transactions of the pool have left (perdure/transaction.h). Before there are workers: one
// thread.
void StoreImpl::finish_transactions() {
  class Opened final : public index::Participant {
   public:
    Opened(StoreImpl& store, pm::PoolImpl& pool, const std::string& name)
        : Participant(pool, name), store_(store) {}
    Kind key_kind() const override { return Kind::kBytes; }
    Kind value_kind() const override { return Kind::kBytes; }
    bool lookup(Datum key, Value& out) const override {
      return store_.get(
          key.bytes(), [&](const Partition::Found& found) { out.set_bytes().assign(found.value); });
    }
    void upsert(Datum key, Datum value) override {
      store_.write({.key = key.bytes(), .value = value.bytes()});
    }
    bool remove(Datum key) override { return store_.remove(key.bytes()); }

   private:
    StoreImpl& store_;
  };
  if (!pool_.transactions().is_pending(pool_.find(config_.name)->root)) return;
  Opened opened(*this, pool_, config_.name);
  index::finish_transactions(opened);
}

std::pair<uint64_t, StoreIndex> StoreImpl::root_of(pm::PoolImpl& pool, const std::string& name) {
  const pm::DirectoryEntry* entry = pool.find(name);
  StoreIndex made = StoreIndex::kHash;
  for (const StoreIndex index : {StoreIndex::kOrdered, StoreIndex::kPm}) {
    const std::string_view there =
        entry == nullptr
            ? ""
            : std::string_view(entry->type, ::strnlen(entry->type, sizeof entry->type));
    if (there == type_of(index)) made = index;
  }
  const char* type = type_of(made);
  const uint64_t seal =
      index::find_structure(pool, name, type, Kind::kBytes, Kind::kBytes, sizeof(index::RootSeal));
  if (std::ranges::find(kRootMagicsBefore, pool.at<index::RootSeal>(seal)->magic) !=
      std::end(kRootMagicsBefore)) {
    throw Error(ErrorCode::kVersion,
                fmt::format("{}: '{}' has the format of stores of an earlier version, which this "
                            "one does not read: "
                            "dump it with that version, and load it with this one",
                            pool.mapping().path(), name));
  }
  const uint64_t at = index::find_structure(pool, name, type, Kind::kBytes, Kind::kBytes,
                                            kRootMagic, sizeof(Root), kSealedBytes);
  const Root& root = *pool.at<Root>(at);
  if (root.partitions == 0 || root.partitions > kPartitionsMax ||
      !std::has_single_bit(root.block_bytes) || root.block_bytes < kBlockBytesMin ||
      root.block_bytes > kBlockBytesMax ||
      !pool.heap().is_allocated(root.partition_roots, root.partitions * sizeof(PartitionRoot))) {
    pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  }
  return {at, made};
}

std::unique_ptr<StoreImpl> StoreImpl::open(Pool& its_pool, const std::string& name,
                                           const StoreOptions& options,
                                           std::span<const std::string> asked_first) {
  pm::PoolImpl& pool = pm::impl_of(its_pool);
  index::require_range("garbage_percent", options.garbage_percent, 5, kGarbagePercentMax);
  index::require_range("index_snapshot_percent", options.index_snapshot_percent, 5,
                       kGarbagePercentMax);
  const auto [at, made] = root_of(pool, name);
  const Root& root = *pool.at<Root>(at);
  index::require_same(pool, name, "partitions", options.partitions, root.partitions);
  index::require_same(pool, name, "block_bytes", options.block_bytes, root.block_bytes);
  const StoreIndex index = options.index == StoreIndex::kAsCreated ? made : options.index;
  if ((index == StoreIndex::kPm) != (made == StoreIndex::kPm)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: '{}' was made with an index in {}, which is fixed at creation",
                            pool.mapping().path(), name, made == StoreIndex::kPm ? "PM" : "DRAM"));
  }
  std::unique_ptr<StoreImpl> store(new StoreImpl(its_pool, name, at, index, options));
  if (!options.boundaries.empty() && Boundaries(options.boundaries) != store->boundaries_) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: '{}' was made with other boundaries, which are fixed at creation",
                            pool.mapping().path(), name));
  }
  store->open_first(asked_first);
  return finish_opening(its_pool, std::move(store), options);
}

void StoreImpl::start_workers(const StoreOptions& options) {
  if (options.workers == 0) return;
  touched_.resize(options.workers);
  for (auto& numbers : touched_) numbers.reserve(root_.partitions);
  runtime_ = std::make_unique<Runtime>(
      RuntimeOptions{
          .workers = options.workers, .partitions = root_.partitions, .balance = options.balance},
      *this);
}

// On the worker that owns the partition: takes its latch, and keeps it until the batch ends if it
// is written to. Others take latches only for what concerns several partitions (HeldShards); so a
// worker never waits for one while it has others.
void StoreImpl::enter(uint32_t number, bool writes) const {
  Shard& shard = *shards_[number];
  if (shard.touched) return;
  if (!shard.latch.try_lock()) {
    end_touched(Runtime::current_worker());
    shard.latch.lock();
  }
  if (!writes) return;
  shard.touched = true;
  touched_[Runtime::current_worker()].push_back(number);
}

void StoreImpl::leave(uint32_t number) const {
  Shard& shard = *shards_[number];
  if (!shard.touched) shard.latch.unlock();
}

// All that the batch wrote becomes durable by one fence. If that fails, so has the pool, and every
// write of the batch says so.
void StoreImpl::end_touched(uint32_t worker) const noexcept {
  auto& numbers = touched_[worker];
  if (numbers.empty()) return;
  try {
    bool wanted = false;
    for (const uint32_t number : numbers) {
      shards_[number]->partition.before_fence();
      wanted = wanted || shards_[number]->partition.wants_fence();
    }
    if (wanted) fence();
    for (const uint32_t number : numbers) shards_[number]->partition.after_fence();
  } catch (const std::exception&) {
    // The medium: require_durable() tells the callers.
  }
  for (const uint32_t number : numbers) {
    shards_[number]->touched = false;
    shards_[number]->latch.unlock();
  }
  numbers.clear();
}

StoreImpl::~StoreImpl() {
  if (pool_.live() != nullptr) pool_.live()->remove(config_.name);
  // Before reset(), which forgets the runtime and then ends it: its tasks still ask for it.
  if (runtime_ != nullptr) runtime_->wait_for_spawned();
  runtime_.reset();
  end_opening();
  if (pool_.is_dropped(&root_)) return;
  try {
    // One that is not ready stays as it was found: its last close still counts.
    for (const auto& shard : shards_) {
      if (shard->opening.load() == Opening::kReady) shard->partition.close();
    }
  } catch (const std::exception&) {
    // The medium fails: the next opening recovers, and misses nothing that was acknowledged.
  }
}

uint64_t StoreImpl::now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);  // some ms behind at most, at a quarter of the cost
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1'000'000;
}

uint64_t StoreImpl::expiry_of(const std::optional<Store::Time>& expires) {
  if (!expires) return kNoExpiry;
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(expires->time_since_epoch()).count();
  return ms <= 0 ? 1 : static_cast<uint64_t>(ms);
}

bool StoreImpl::write(const WriteRequest& request, uint64_t* version) {
  const Place place = place_of(request.key);
  return write_to(place.number, [&](Partition& partition) {
    return partition.put(place.hash, request, now_ms(), version);
  });
}

bool StoreImpl::remove(std::string_view key) {
  const Place place = place_of(key);
  return write_to(place.number, [&](Partition& partition) {
    return partition.remove(place.hash, key, now_ms());
  });
}

bool StoreImpl::compare_exchange(std::string_view key, std::string_view expected,
                                 std::string_view desired) {
  const auto [hash, number] = place_of(key);
  return write_to(number, [&](Partition& partition) {
    const uint64_t now = now_ms();
    Partition::Found found{};
    if (!partition.get(hash, key, now, found) || found.value != expected) return false;
    return partition.put(hash, {.key = key, .value = desired, .expiry_ms = found.expiry_ms}, now);
  });
}

bool StoreImpl::compare_remove(std::string_view key, std::string_view expected) {
  const auto [hash, number] = place_of(key);
  return write_to(number, [&](Partition& partition) {
    const uint64_t now = now_ms();
    Partition::Found found{};
    if (!partition.get(hash, key, now, found) || found.value != expected) return false;
    return partition.remove(hash, key, now);
  });
}

bool StoreImpl::compare_remove(std::string_view key, uint64_t version) {
  const auto [hash, number] = place_of(key);
  return write_to(
      number, [&](Partition& partition) { return compare_remove(partition, hash, key, version); });
}

bool StoreImpl::compare_remove(Partition& partition, uint64_t hash, std::string_view key,
                               uint64_t version) {
  const uint64_t now = now_ms();
  Partition::Found found{};
  if (!partition.get(hash, key, now, found) || found.version != version) return false;
  return partition.remove(hash, key, now);
}

void StoreImpl::modify(
    std::string_view key,
    const std::function<std::optional<std::string>(const std::string_view*)>& change) {
  const auto [hash, number] = place_of(key);
  write_to(number,
           [&](Partition& partition) { store::modify(partition, hash, key, now_ms(), change); });
}

// With workers: has `work(Partition&, i, Sought&)` done for each key, all partitions at the same
// time; what fails first is thrown once all have ended.
template <typename KeyAt, typename Work>
void StoreImpl::in_parts(size_t count, bool writes, KeyAt key_at, Work work) const {
  struct Member {
    uint32_t number;
    uint32_t i;
    uint64_t hash;
  };
  std::vector<Member> members(count);
  for (uint32_t i = 0; i < count; ++i) {
    const auto [hash, number] = place_of(key_at(i));
    members[i] = {number, i, hash};
  }
  std::ranges::sort(members, {}, [](const Member& one) { return std::pair(one.number, one.i); });
  std::vector<Sought> keys(count);
  for (size_t m = 0; m < count; ++m) keys[m] = {members[m].hash, key_at(members[m].i)};
  struct Part {
    std::span<const Member> members;
    std::span<Sought> keys;
    Work& work;
    void operator()(Partition& partition) const {
      for (size_t m = 0; m < members.size(); ++m) work(partition, members[m].i, keys[m]);
    }
  };
  std::vector<Part> parts;
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    while (end < count && members[end].number == members[begin].number) ++end;
    parts.push_back({std::span(members).subspan(begin, end - begin),
                     std::span(keys).subspan(begin, end - begin), work});
  }
  std::deque<WorkRequest<Part>> requests;
  std::vector<Request*> sent;
  for (Part& part : parts) {
    sent.push_back(
        &requests.emplace_back(*this, part.members.front().number, writes, part, part.keys));
  }
  runtime_->call(sent);
  require_durable();  // reads may have met writes of the same batches
  for (const Request* request : sent) request->rethrow_error();
}

void StoreImpl::multi_get(std::span<const std::string_view> keys,
                          const std::function<void(size_t i, const Partition::Found&)>& use) const {
  if (!works_in_line()) {
    return in_parts(
        keys.size(), false, [&](size_t i) { return keys[i]; },
        [&](Partition& partition, size_t i, const Sought& sought) {
          Partition::Found found;
          if (partition.get_lazily(sought.hash, sought.key, now_ms, found, &sought)) use(i, found);
        });
  }
  end_own_batch();
  constexpr size_t kGroup = 32;
  Place places[kGroup];
  const uint64_t now = now_ms();
  for (size_t begin = 0; begin < keys.size(); begin += kGroup) {
    const size_t count = std::min(kGroup, keys.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      places[i] = place_of(keys[begin + i]);
      require_ready(places[i].number);
      Shard& shard = *shards_[places[i].number];
      const std::lock_guard held(shard.latch);
      Sought sought{places[i].hash, keys[begin + i]};
      shard.partition.prefetch(0, sought);
    }
    for (size_t i = 0; i < count; ++i) {
      Shard& shard = *shards_[places[i].number];
      const std::lock_guard held(shard.latch);
      // Anew: others may have changed an ordered index meanwhile, of which a step relies on the way
      // that the one before it has gone.
      Sought sought{places[i].hash, keys[begin + i]};
      shard.partition.prefetch(1, sought);
    }
    for (size_t i = 0; i < count; ++i) {
      Shard& shard = *shards_[places[i].number];
      const std::lock_guard held(shard.latch);
      Partition::Found found;
      const std::string_view key = keys[begin + i];
      if (shard.partition.get_lazily(places[i].hash, key, [now] { return now; }, found)) {
        use(begin + i, found);
      }
    }
  }
}

void StoreImpl::multi_write(std::span<const WriteRequest> requests, std::span<bool> done) {
  if (!works_in_line()) {
    try {
      in_parts(
          requests.size(), true, [&](size_t i) { return requests[i].key; },
          [&](Partition& partition, size_t i, const Sought& sought) {
            const bool written =
                partition.put(sought.hash, requests[i], now_ms(), nullptr, &sought);
            if (!done.empty()) done[i] = written;
          });
    } catch (...) {
      if (pool_.failed() && !done.empty()) std::ranges::fill(done, false);
      throw;
    }
    return;
  }
  constexpr size_t kGroup = 32;
  Place places[kGroup];
  Sought sought[kGroup];
  const uint64_t now = now_ms();
  const auto partition_at = [&](size_t i) -> Partition& {
    return shards_[places[i].number]->partition;
  };
  for (size_t begin = 0; begin < requests.size(); begin += kGroup) {
    const size_t count = std::min(kGroup, requests.size() - begin);
    std::vector<uint32_t> numbers(count);
    for (size_t i = 0; i < count; ++i) {
      places[i] = place_of(requests[begin + i].key);
      numbers[i] = places[i].number;
      sought[i] = {places[i].hash, requests[begin + i].key};
    }
    HeldShards held(*this, std::move(numbers));
    for (int step = 0; step < PartitionIndex::kAheadSteps; ++step) {
      for (size_t i = 0; i < count; ++i) partition_at(i).prefetch(step, sought[i]);
    }
    try {
      held.write([&] {
        for (size_t i = 0; i < count; ++i) {
          const bool written = partition_at(i).put(places[i].hash, requests[begin + i], now);
          if (!done.empty()) done[begin + i] = written;
        }
      });
    } catch (...) {
      if (pool_.failed() && !done.empty()) std::ranges::fill(done.subspan(begin, count), false);
      throw;
    }
  }
}

void StoreImpl::for_each(const Visit& visit, const StoreSnapshot* snapshot) const {
  if (config_.ordered) {
    StoreCursor cursor(*this, 64, snapshot);
    for (cursor.seek({.whole = true}); cursor.valid(); cursor.next()) {
      visit(cursor.key(), cursor.value());
    }
    return;
  }
  const uint64_t now = now_ms();
  std::vector<std::pair<std::string, std::string>> copies;
  const Partition::Visit copy = [&](std::string_view key, const Partition::Found& found) {
    copies.emplace_back(key, found.value);
  };
  for (uint32_t number = 0; number < root_.partitions; ++number) {
    // A part of the partition at a time, copied: `visit` may take long, and may use the store.
    const uint64_t records =
        with(number, false, [](Partition& partition) { return partition.records(); });
    const uint64_t parts = std::bit_ceil(records / 64 + 1);
    const uint64_t step = std::max<uint64_t>(HashIndex::kTags / parts, 1);
    for (uint64_t first = 0; first < HashIndex::kTags; first += step) {
      copies.clear();
      with(number, false, [&](Partition& partition) {
        if (snapshot == nullptr) return partition.for_tags(first, first + step, now, copy);
        partition.for_tags_at(snapshot->version(number), first, first + step, snapshot->time_ms(),
                              copy);
      });
      for (const auto& [key, value] : copies) visit(key, value);
    }
  }
}

void StoreImpl::scan(uint32_t number, const ScanFrom& from, const StoreSnapshot* snapshot,
                     const Partition::VisitUntil& visit) const {
  with(number, false, [&](Partition& partition) {
    if (snapshot == nullptr) return partition.scan(from, now_ms(), visit);
    partition.scan_at(snapshot->version(number), from, snapshot->time_ms(), visit);
  });
}

void StoreImpl::scan(std::string_view from, uint64_t limit,
                     const std::function<bool(std::string_view, std::string_view)>& visit,
                     const StoreSnapshot* snapshot) const {
  require_ordered();
  if (limit == 0) return;
  StoreCursor cursor(*this, limit, snapshot);
  for (cursor.seek({.key = from}); cursor.valid(); cursor.next()) {
    if (!visit(cursor.key(), cursor.value()) || --limit == 0) return;
  }
}

void StoreImpl::scan_back(
    std::optional<std::string_view> from, uint64_t limit,
    const std::function<bool(std::string_view, std::string_view)>& visit) const {
  require_ordered();
  if (limit == 0) return;
  StoreCursor cursor(*this, limit);
  cursor.seek({.key = from.value_or(std::string_view()), .whole = !from, .downwards = true});
  for (; cursor.valid(); cursor.previous()) {
    if (!visit(cursor.key(), cursor.value()) || --limit == 0) return;
  }
}

void StoreImpl::require_ordered() const {
  if (config_.ordered) return;
  throw Error(ErrorCode::kWrongType,
              fmt::format("{}: '{}' has an index by hash; open it with one in the order of keys "
                          "(StoreOptions::index, rstore+ordered) to scan it",
                          pool_.mapping().path(), config_.name));
}

namespace {

// Without workers nothing suspends a task.
void run_here(const Task<void>& task) { task.end().await_suspend(std::noop_coroutine()).resume(); }

}  // namespace

void StoreImpl::run(Task<void> task) const {
  if (runtime_ != nullptr && runtime_->is_worker()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: '{}': run() was called by a task, whose worker would wait for itself; "
                    "co_await the other task",
                    pool_.mapping().path(), config_.name));
  }
  if (runtime_ != nullptr) return runtime_->run(std::move(task));
  run_here(task);
  task.take_result();
}

void StoreImpl::spawn(Task<void> task) const {
  if (runtime_ != nullptr) return runtime_->spawn(std::move(task));
  run_here(task);
  task.take_result();
}

bool StoreImpl::make_all_room() const {
  const bool waited = wait_for_room();
  return give_up_snapshots() || waited;
}

bool StoreImpl::give_up_snapshots() const {
  if (snapshots_.load(std::memory_order_relaxed) == 0) return false;
  bool any = false;
  for (uint32_t number = 0; number < root_.partitions; ++number) {
    if (!is_ready(number)) continue;
    any |= with(number, true, [](Partition& partition) { return partition.give_up_snapshots(); });
  }
  return any;
}

uint64_t StoreImpl::size() const {
  uint64_t sum = 0;
  for (uint32_t number = 0; number < root_.partitions; ++number) {
    sum += with(number, false, [](Partition& partition) { return partition.records(); });
  }
  return sum;
}

uint64_t StoreImpl::check(const std::function<void(const std::string&)>& report) const {
  uint64_t violations = 0;
  for (uint32_t number = 0; number < root_.partitions; ++number) {
    violations +=
        with(number, false, [&](Partition& partition) { return partition.check(report); });
  }
  if (pm_index_ == nullptr) return violations;
  if (pm_index_->get() != nullptr) violations += check_index(report);
  if (pm_index_->is_lost()) {
    report("the index in PM is damaged; the records are read without it");
    ++violations;
  }
  return violations;
}

// Of an index in PM: the structure, and that each of its entries leads to a record. That each
// record has an entry each partition has seen to.
uint64_t StoreImpl::check_index(const std::function<void(const std::string&)>& report) const {
  const AnyIndex& index = *pm_index_->get();
  uint64_t violations = index.check(report);
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> entries(root_.partitions);
  try {
    index.for_each([&](Datum key, Datum value) {
      const uint64_t number = PmPartitionIndex::partition_of(key.word());
      if (number < root_.partitions) entries[number].emplace_back(key.word(), value.word());
    });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    ++violations;
    report(error.what());
  }
  for (uint32_t number = 0; number < root_.partitions; ++number) {
    violations += with(number, false, [&](Partition& partition) {
      return partition.check_entries(entries[number], report);
    });
  }
  return violations;
}

void StoreImpl::visit_blocks(const index::VisitOwned& visit) const {
  const index::VisitBlock meet(pool_, visit);
  meet(pool_.offset_of(&root_), sizeof(Root));
  meet(root_.partition_roots, root_.partitions * sizeof(PartitionRoot));
  if (root_.boundaries != 0) meet(root_.boundaries, root_.boundary_bytes);
  for (const uint64_t consumer : consumer_blocks()) meet(consumer, consumer_bytes());
  if (const Runs::Block list = runs_->block(); list.offset != 0) meet(list.offset, list.bytes);
  visit_index(visit);
  // Of a partition that is being recovered nobody knows yet what it has: each is waited for.
  for (uint32_t number = 0; number < root_.partitions; ++number) {
    with(number, false, [&](Partition& partition) { partition.visit_blocks(visit); });
  }
}

// Blocks of an index in PM.
void StoreImpl::visit_index(const index::VisitOwned& visit) const {
  if (pm_index_ == nullptr) return;
  const index::VisitBlock meet(pool_, visit);
  meet(root_.pm_index, sizeof(pm::DirectoryEntry));
  pm_index_->visit_blocks(visit);
}

std::vector<Statistic> StoreImpl::statistics() const {
  PartitionFigures sum;
  const Progress opened = progress();
  for (uint32_t number = 0; number < root_.partitions; ++number) {
    if (!is_ready(number)) continue;
    const PartitionFigures one =
        with(number, false, [](Partition& partition) { return partition.statistics(); });
    sum.records += one.records;
    sum.live_bytes += one.live_bytes;
    sum.blocks += one.blocks;
    sum.spare_blocks += one.spare_blocks;
    sum.pool_bytes += one.pool_bytes;
    sum.dram_bytes += one.dram_bytes + sizeof(Shard);
    sum.compactions += one.compactions;
    sum.moved_bytes += one.moved_bytes;
    sum.recovered_records += one.recovered_records;
    sum.snapshots_read += one.snapshots_read;
    sum.snapshots_written += one.snapshots_written;
    sum.snapshot_bytes += one.snapshot_bytes;
    sum.checkpoints_read += one.checkpoints_read;
    sum.checkpoints += one.checkpoints;
    sum.damaged_blocks += one.damaged_blocks;
    sum.damaged_indexes += one.damaged_indexes;
    sum.log_kept_bytes += one.log_kept_bytes;
    sum.log_given_up_blocks += one.log_given_up_blocks;
    sum.hits += one.hits;
    sum.misses += one.misses;
    sum.evicted_records += one.evicted_records;
  }
  const index::VisitOwned add = [&](uint64_t, uint64_t bytes) { sum.pool_bytes += bytes; };
  const index::VisitBlock meet(pool_, add);
  meet(pool_.offset_of(&root_), sizeof(Root));
  meet(root_.partition_roots, root_.partitions * sizeof(PartitionRoot));
  if (root_.boundaries != 0) meet(root_.boundaries, root_.boundary_bytes);
  for (const uint64_t consumer : consumer_blocks()) meet(consumer, consumer_bytes());
  if (const Runs::Block list = runs_->block(); list.offset != 0) meet(list.offset, list.bytes);
  uint64_t index_bytes = 0;
  visit_index([&](uint64_t, uint64_t bytes) { index_bytes += bytes; });
  sum.pool_bytes += index_bytes;
  if (pm_index_ != nullptr && pm_index_->get() != nullptr) {
    for (const Statistic& one : pm_index_->get()->statistics()) {
      if (one.name == "dram_bytes") sum.dram_bytes += static_cast<uint64_t>(one.value);
    }
  }
  index::StatisticList list;
  list.add("records", sum.records, "records");
  list.add("live_bytes", sum.live_bytes, "bytes");
  list.add("partitions", root_.partitions, "partitions");
  list.add("partitions_ready", opened.ready, "partitions");
  list.add("partitions_failed", opened.failed, "partitions");
  list.add("blocks", sum.blocks, "blocks");
  list.add("spare_blocks", sum.spare_blocks, "blocks");
  list.add("compacted_blocks", sum.compactions, "blocks");
  list.add("moved_bytes", sum.moved_bytes, "bytes");
  list.add("damaged_blocks", sum.damaged_blocks, "blocks");
  if (pm_index_ != nullptr) list.add("damaged_indexes", sum.damaged_indexes, "partitions");
  list.add("changes_kept_bytes", sum.log_kept_bytes, "bytes");
  list.add("changes_given_up_blocks", sum.log_given_up_blocks, "blocks");
  list.add("consumers", consumers().size(), "consumers");
  if (runtime_ != nullptr) {
    uint64_t adopted = 0;
    for (const WorkerStatistics& one : runtime_->statistics().workers) adopted += one.adopted;
    list.add("moved_partitions", adopted, "partitions");
  }
  if (config_.evicts) {
    list.add("evicted_records", sum.evicted_records, "records");
    list.add("hits", sum.hits, "lookups");
    list.add("misses", sum.misses, "lookups");
    list.add_ratio("hit_ratio", sum.hits, sum.hits + sum.misses, "of lookups");
  }
  list.add("index_snapshots_read", sum.snapshots_read, "partitions");
  if (pm_index_ == nullptr) {
    list.add("index_snapshot_percent", config_.snapshot_percent, "percent");
    list.add("index_snapshots", sum.snapshots_written, "snapshots");
    list.add("index_snapshot_bytes", sum.snapshot_bytes, "bytes");
  }
  if (pm_index_ != nullptr) {
    list.add("index_bytes", index_bytes, "bytes");
    list.add("index_in_dram", pm_index_->is_in_dram() ? 1 : 0, "indexes");
    list.add("checkpoints", sum.checkpoints, "checkpoints");
    list.add("checkpoints_read", sum.checkpoints_read, "partitions");
  }
  list.add("recovered_operations", sum.recovered_records, "operations");
  list.add("dram_bytes", sum.dram_bytes, "bytes");
  list.add("pool_bytes", sum.pool_bytes, "bytes");
  return list.take();
}

}  // namespace perdure::store
