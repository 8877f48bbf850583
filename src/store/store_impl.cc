#include "store/store_impl.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <random>
#include <system_error>
#include <thread>

#include "store/hash.h"

namespace perdure::store {

namespace {

constexpr uint64_t kGarbagePercentMax = 400;

uint32_t default_partitions(uint64_t capacity_bytes) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(capacity_bytes >> 22, 1, 64));
}

// Each partition holds a few blocks that are not full: together at most a few percent of the pool.
uint32_t default_block_bytes(uint64_t capacity_bytes, uint32_t partitions) {
  return static_cast<uint32_t>(std::clamp(std::bit_floor(capacity_bytes / partitions / 128),
                                          uint64_t{4} << 10, kBlockBytesMax));
}

}  // namespace

// Latches of some partitions, held together. Always taken in ascending order: nobody waits in a circle.
class StoreImpl::HeldShards {
 public:
  HeldShards(const StoreImpl& store, std::vector<uint32_t> numbers) : store_(store) {
    std::ranges::sort(numbers);
    numbers.erase(std::ranges::unique(numbers).begin(), numbers.end());
    numbers_ = std::move(numbers);
    for (const uint32_t number : numbers_) store_.shards_[number]->latch.lock();
  }
  ~HeldShards() {
    for (const uint32_t number : numbers_) store_.shards_[number]->latch.unlock();
  }
  HeldShards(const HeldShards&) = delete;
  HeldShards& operator=(const HeldShards&) = delete;

  // Makes durable what `work` writes, by one fence; also if it fails then: readers may see it.
  template <typename Work>
  void write(Work work) {
    try {
      work();
    } catch (...) {
      try {
        persist();
      } catch (const std::exception&) {
        // The pool has failed: nothing of it is told any more.
      }
      throw;
    }
    persist();
  }

 private:
  void persist() {
    bool wanted = false;
    for (const uint32_t number : numbers_) {
      store_.shards_[number]->partition.before_fence();
      wanted = wanted || store_.shards_[number]->partition.wants_fence();
    }
    if (wanted) store_.fence();
    for (const uint32_t number : numbers_) store_.shards_[number]->partition.after_fence();
  }

  const StoreImpl& store_;
  std::vector<uint32_t> numbers_;
};

StoreImpl::StoreImpl(pm::PoolImpl& pool, const std::string& name, uint64_t root,
                     const StoreOptions& options)
    : pool_(pool), use_(pool, name), root_(*pool.at<Root>(root)) {
  config_ = {.name = name,
             .salt = root_.salt,
             .block_bytes = root_.block_bytes,
             .garbage_percent = options.garbage_percent};
  auto* roots =
      pool.follow<PartitionRoot>(root_.partition_roots, root_.partitions * sizeof(PartitionRoot));
  shards_.reserve(root_.partitions);
  for (uint32_t i = 0; i < root_.partitions; ++i) {
    shards_.push_back(std::make_unique<Shard>(pool, roots[i], i, config_));
  }
}

std::unique_ptr<StoreImpl> StoreImpl::create(pm::PoolImpl& pool, const std::string& name,
                                             const StoreOptions& options) {
  index::require_range("partitions", options.partitions, 1, kPartitionsMax);
  index::require_range("block_bytes", options.block_bytes, kBlockBytesMin, kBlockBytesMax);
  index::require_range("garbage_percent", options.garbage_percent, 5, kGarbagePercentMax);
  if (!std::has_single_bit(options.block_bytes) && options.block_bytes != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("block_bytes is {}; it must be a power of two", options.block_bytes));
  }
  const uint64_t capacity_bytes = pool.header().capacity_bytes;
  Root root{};
  root.seal.magic = kRootMagic;
  root.salt = std::random_device{}() | uint64_t{std::random_device{}()} << 32;
  root.partitions =
      options.partitions != 0 ? options.partitions : default_partitions(capacity_bytes);
  root.block_bytes = options.block_bytes != 0
                         ? options.block_bytes
                         : default_block_bytes(capacity_bytes, root.partitions);
  const uint64_t roots_bytes = root.partitions * sizeof(PartitionRoot);
  const index::NewBlock roots = {roots_bytes, offsetof(Root, partition_roots), [&](char* block) {
                                   auto* all = reinterpret_cast<PartitionRoot*>(block);
                                   for (uint32_t i = 0; i < root.partitions; ++i) {
                                     all[i] = {};
                                     all[i].version_floor = pm::seal_word(1, kVersionSalt);
                                     all[i].incarnation_floor = pm::seal_word(1, kIncarnationSalt);
                                   }
                                   pool.memory().flush(block, roots_bytes);
                                 }};
  const uint64_t at = index::make_structure(pool, name, kTypeName, Kind::kBytes, Kind::kBytes,
                                            &root, sizeof root, kSealedBytes, {&roots, 1});
  std::unique_ptr<StoreImpl> store(new StoreImpl(pool, name, at, options));
  store->recover(options.recovery_threads);
  store->start_workers(options);
  return store;
}

std::unique_ptr<StoreImpl> StoreImpl::open(pm::PoolImpl& pool, const std::string& name,
                                           const StoreOptions& options) {
  index::require_range("garbage_percent", options.garbage_percent, 5, kGarbagePercentMax);
  const uint64_t at = index::find_structure(pool, name, kTypeName, Kind::kBytes, Kind::kBytes,
                                            kRootMagic, sizeof(Root), kSealedBytes);
  const Root& root = *pool.at<Root>(at);
  index::require_same(pool, name, "partitions", options.partitions, root.partitions);
  index::require_same(pool, name, "block_bytes", options.block_bytes, root.block_bytes);
  if (root.partitions == 0 || root.partitions > kPartitionsMax ||
      !std::has_single_bit(root.block_bytes) || root.block_bytes < kBlockBytesMin ||
      root.block_bytes > kBlockBytesMax ||
      !pool.heap().is_allocated(root.partition_roots, root.partitions * sizeof(PartitionRoot))) {
    pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  }
  std::unique_ptr<StoreImpl> store(new StoreImpl(pool, name, at, options));
  store->recover(options.recovery_threads);
  store->start_workers(options);
  return store;
}

// Partitions recover side by side.
void StoreImpl::recover(uint32_t threads) {
  if (threads == 0) threads = std::thread::hardware_concurrency();
  threads = std::clamp<uint32_t>(threads, 1, std::max<uint32_t>(1, root_.partitions / 4));
  std::atomic<uint32_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (uint32_t i = 0; (i = next.fetch_add(1)) < shards_.size();)
        shards_[i]->partition.recover();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next.store(root_.partitions);
    }
  };
  std::vector<std::thread> others;
  try {
    for (uint32_t i = 1; i < threads; ++i) others.emplace_back(work);
  } catch (const std::system_error&) {
    // Fewer will do.
  }
  work();
  for (std::thread& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
  recovered_ = true;
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

// On the worker that owns the partition.
void StoreImpl::note_touched(uint32_t number) const {
  Shard& shard = *shards_[number];
  if (shard.touched) return;
  shard.touched = true;
  touched_[Runtime::current_worker()].push_back(number);
}

// All that the batch wrote becomes durable by one fence. If that fails, so has the pool, and every write of
// the batch says so.
void StoreImpl::end_of_batch(uint32_t worker) noexcept {
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
  for (const uint32_t number : numbers) shards_[number]->touched = false;
  numbers.clear();
}

StoreImpl::~StoreImpl() {
  runtime_.reset();
  if (!recovered_) return;
  try {
    for (const auto& shard : shards_) shard->partition.close();
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

uint32_t StoreImpl::number_of(uint64_t hash) const { return partition_of(hash, root_.partitions); }

bool StoreImpl::write(const WriteRequest& request, uint64_t* version) {
  const uint64_t hash = hash_of(request.key);
  return with(number_of(hash), true, [&](Partition& partition) {
    return partition.put(hash, request, now_ms(), version);
  });
}

bool StoreImpl::remove(std::string_view key) {
  const uint64_t hash = hash_of(key);
  return with(number_of(hash), true,
              [&](Partition& partition) { return partition.remove(hash, key, now_ms()); });
}

void StoreImpl::modify(
    std::string_view key,
    const std::function<std::optional<std::string>(const std::string_view*)>& change) {
  const uint64_t hash = hash_of(key);
  with(number_of(hash), true, [&](Partition& partition) {
    const uint64_t now = now_ms();
    Partition::Found found{};
    const bool present = partition.get(hash, key, now, found);
    const std::optional<std::string> value = change(present ? &found.value : nullptr);
    if (!value) {
      if (present) partition.remove(hash, key, now);
      return;
    }
    const uint64_t expiry = present ? found.expiry_ms : kNoExpiry;
    partition.put(hash, {.key = key, .value = *value, .expiry_ms = expiry}, now);
  });
}

// With workers: has `work(Partition&, i)` done for each hash, all partitions at the same time; what fails
// first is thrown once all have ended.
template <typename Work>
void StoreImpl::in_parts(std::span<const uint64_t> hashes, bool writes, Work work) const {
  std::vector<std::pair<uint32_t, uint32_t>> order;  // partition, i
  order.reserve(hashes.size());
  for (uint32_t i = 0; i < hashes.size(); ++i) order.emplace_back(number_of(hashes[i]), i);
  std::ranges::sort(order);
  struct Part {
    std::span<const std::pair<uint32_t, uint32_t>> members;
    Work& work;
    void operator()(Partition& partition) const {
      for (const auto& [number, i] : members) work(partition, i);
    }
  };
  std::vector<Part> parts;
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && order[end].first == order[begin].first) ++end;
    parts.push_back({std::span(order).subspan(begin, end - begin), work});
  }
  std::deque<WorkRequest<Part>> requests;
  std::vector<Request*> sent;
  for (Part& part : parts) {
    sent.push_back(&requests.emplace_back(*this, part.members.front().first, writes, part));
  }
  runtime_->call(sent);
  if (writes) require_durable();
  for (const Request* request : sent) request->rethrow_error();
}

void StoreImpl::multi_get(std::span<const std::string_view> keys,
                          const std::function<void(size_t i, const Partition::Found&)>& use) const {
  if (runtime_ != nullptr) {
    std::vector<uint64_t> hashes(keys.size());
    std::ranges::transform(keys, hashes.begin(),
                           [&](std::string_view key) { return hash_of(key); });
    return in_parts(hashes, false, [&](Partition& partition, size_t i) {
      Partition::Found found;
      if (partition.get(hashes[i], keys[i], now_ms(), found)) use(i, found);
    });
  }
  constexpr size_t kGroup = 32;
  uint64_t hashes[kGroup];
  const uint64_t now = now_ms();
  for (size_t begin = 0; begin < keys.size(); begin += kGroup) {
    const size_t count = std::min(kGroup, keys.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      hashes[i] = hash_of(keys[begin + i]);
      Shard& shard = shard_of(hashes[i]);
      const std::lock_guard held(shard.latch);
      shard.partition.prefetch(hashes[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      Shard& shard = shard_of(hashes[i]);
      const std::lock_guard held(shard.latch);
      shard.partition.prefetch_record(hashes[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      Shard& shard = shard_of(hashes[i]);
      const std::lock_guard held(shard.latch);
      Partition::Found found;
      if (shard.partition.get(hashes[i], keys[begin + i], now, found)) use(begin + i, found);
    }
  }
}

void StoreImpl::multi_write(std::span<const WriteRequest> requests, std::span<bool> done) {
  if (runtime_ != nullptr) {
    std::vector<uint64_t> hashes(requests.size());
    std::ranges::transform(requests, hashes.begin(),
                           [&](const WriteRequest& request) { return hash_of(request.key); });
    try {
      in_parts(hashes, true, [&](Partition& partition, size_t i) {
        const bool written = partition.put(hashes[i], requests[i], now_ms());
        if (!done.empty()) done[i] = written;
      });
    } catch (...) {
      if (pool_.failed() && !done.empty()) std::ranges::fill(done, false);
      throw;
    }
    return;
  }
  constexpr size_t kGroup = 32;
  uint64_t hashes[kGroup];
  const uint64_t now = now_ms();
  for (size_t begin = 0; begin < requests.size(); begin += kGroup) {
    const size_t count = std::min(kGroup, requests.size() - begin);
    std::vector<uint32_t> numbers(count);
    for (size_t i = 0; i < count; ++i) {
      hashes[i] = hash_of(requests[begin + i].key);
      numbers[i] = number_of(hashes[i]);
    }
    HeldShards held(*this, std::move(numbers));
    for (size_t i = 0; i < count; ++i) shard_of(hashes[i]).partition.prefetch(hashes[i]);
    for (size_t i = 0; i < count; ++i) shard_of(hashes[i]).partition.prefetch_record(hashes[i]);
    try {
      held.write([&] {
        for (size_t i = 0; i < count; ++i) {
          const bool written =
              shard_of(hashes[i]).partition.put(hashes[i], requests[begin + i], now);
          if (!done.empty()) done[begin + i] = written;
        }
      });
    } catch (...) {
      if (pool_.failed() && !done.empty()) std::ranges::fill(done.subspan(begin, count), false);
      throw;
    }
  }
}

void StoreImpl::apply(const Store::Batch& batch) {
  const uint64_t now = now_ms();
  // By partition, each in the order of the batch.
  std::vector<std::pair<uint32_t, uint32_t>> order;
  order.reserve(batch.writes_.size());
  std::vector<uint32_t> numbers;
  for (const Store::Batch::Write& write : batch.writes_) {
    numbers.push_back(number_of(hash_of(write.key)));
    order.emplace_back(numbers.back(), order.size());
  }
  std::ranges::sort(order);
  std::vector<GroupWrite> writes;
  writes.reserve(order.size());
  for (const auto& [number, i] : order) {
    const Store::Batch::Write& write = batch.writes_[i];
    writes.emplace_back(hash_of(write.key), WriteRequest{.key = write.key,
                                                         .value = write.value,
                                                         .expiry_ms = write.expiry_ms,
                                                         .removal = write.removal});
  }
  const auto number = [&](const GroupWrite& write) { return number_of(write.first); };
  const auto for_groups = [&](auto work) {
    for (size_t begin = 0, end = 0; begin < writes.size(); begin = end) {
      while (end < writes.size() && number(writes[end]) == number(writes[begin])) ++end;
      work(number(writes[begin]), std::span(writes).subspan(begin, end - begin));
    }
  };
  if (runtime_ != nullptr) {
    return for_groups([&](uint32_t n, std::span<const GroupWrite> group) {
      with(n, true, [&](Partition& partition) {
        Partition::Group prepared = partition.prepare(group, now);
        partition.write_group(group, prepared);
      });
    });
  }
  HeldShards held(*this, std::move(numbers));
  for (const auto& [hash, request] : writes) shard_of(hash).partition.prefetch(hash);
  for (const auto& [hash, request] : writes) shard_of(hash).partition.prefetch_record(hash);
  held.write([&] {
    std::vector<std::pair<Partition*, Partition::Group>> prepared;
    try {
      for_groups([&](uint32_t n, std::span<const GroupWrite> group) {
        Partition& partition = shards_[n]->partition;
        prepared.reserve(prepared.size() + 1);
        prepared.emplace_back(&partition, partition.prepare(group, now));
      });
    } catch (...) {
      for (const auto& [partition, group] : prepared) partition->abandon(group);
      throw;
    }
    // From here on nothing throws.
    size_t i = 0;
    for_groups([&](uint32_t n, std::span<const GroupWrite> group) {
      shards_[n]->partition.write_group(group, prepared[i++].second);
    });
  });
}

void StoreImpl::for_each(
    const std::function<void(std::string_view, std::string_view)>& visit) const {
  const uint64_t now = now_ms();
  std::vector<std::pair<std::string, std::string>> copies;
  for (uint32_t number = 0; number < root_.partitions; ++number) {
    // A part of the partition at a time, copied: `visit` may take long, and may use the store.
    const uint64_t records =
        with(number, false, [](Partition& partition) { return partition.records(); });
    const uint64_t parts = std::bit_ceil(records / 64 + 1);
    const uint64_t step = std::max<uint64_t>(HashIndex::kTags / parts, 1);
    for (uint64_t first = 0; first < HashIndex::kTags; first += step) {
      copies.clear();
      with(number, false, [&](Partition& partition) {
        partition.for_tags(first, first + step, now,
                           [&](std::string_view key, const Partition::Found& found) {
                             copies.emplace_back(key, found.value);
                           });
      });
      for (const auto& [key, value] : copies) visit(key, value);
    }
  }
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
  return violations;
}

void StoreImpl::visit_blocks(const index::VisitOwned& visit) const {
  const index::VisitBlock meet(pool_, visit);
  meet(pool_.offset_of(&root_), sizeof(Root));
  meet(root_.partition_roots, root_.partitions * sizeof(PartitionRoot));
  for (const auto& shard : shards_) shard->partition.visit_blocks(visit);
}

std::vector<Statistic> StoreImpl::statistics() const {
  PartitionFigures sum;
  for (uint32_t number = 0; number < root_.partitions; ++number) {
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
    sum.damaged_blocks += one.damaged_blocks;
  }
  const index::VisitOwned add = [&](uint64_t, uint64_t bytes) { sum.pool_bytes += bytes; };
  const index::VisitBlock meet(pool_, add);
  meet(pool_.offset_of(&root_), sizeof(Root));
  meet(root_.partition_roots, root_.partitions * sizeof(PartitionRoot));
  index::StatisticList list;
  list.add("records", sum.records, "records");
  list.add("live_bytes", sum.live_bytes, "bytes");
  list.add("partitions", root_.partitions, "partitions");
  list.add("blocks", sum.blocks, "blocks");
  list.add("spare_blocks", sum.spare_blocks, "blocks");
  list.add("compacted_blocks", sum.compactions, "blocks");
  list.add("moved_bytes", sum.moved_bytes, "bytes");
  list.add("damaged_blocks", sum.damaged_blocks, "blocks");
  list.add("recovered_operations", sum.recovered_records, "operations");
  list.add("dram_bytes", sum.dram_bytes, "bytes");
  list.add("pool_bytes", sum.pool_bytes, "bytes");
  return list.take();
}

}  // namespace perdure::store
