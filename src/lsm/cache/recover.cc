// Making, opening and verifying block caches.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <unordered_set>

#include "lsm/cache/core.h"
#include "pm/thread.h"

namespace perdure::block_cache {
namespace {

constexpr uint64_t kPage = 4096;

uint64_t segment_bytes_for(const BlockCacheOptions& options, uint64_t capacity_bytes) {
  if (options.segment_bytes == 0) {
    const uint64_t eighth = capacity_bytes / 8 / kPage * kPage;
    return std::clamp(eighth, kSegmentBytesMin, uint64_t{1} << 20);
  }
  if (options.segment_bytes % kPage != 0 || options.segment_bytes > kSegmentBytesMax) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("segment_bytes is {}; it must be a multiple of {}, at most {}",
                            options.segment_bytes, kPage, kSegmentBytesMax));
  }
  return options.segment_bytes;
}

Root make_root(const pm::PoolImpl& pool, const BlockCacheOptions& options) {
  Root root{};
  root.seal.magic = kRootMagic;
  root.salt = std::random_device{}() | uint64_t{std::random_device{}()} << 32;
  const uint64_t capacity =
      options.capacity_bytes != 0 ? options.capacity_bytes : pool.capacity_bytes() / 4;
  root.segment_bytes = segment_bytes_for(options, capacity);
  root.segments_max = capacity / root.segment_bytes;
  if (root.segments_max < 2 || root.segments_max > kSegmentsMax) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("capacity_bytes is {}; it must be of 2 to {} segments of {} bytes",
                            capacity, kSegmentsMax, root.segment_bytes));
  }
  return root;
}

}  // namespace

std::shared_ptr<Core> Core::create(pm::PoolImpl& pool, const std::string& name,
                                   const BlockCacheOptions& options) {
  pool.require_writable();
  Root root = make_root(pool, options);
  const uint64_t table_bytes = root.segments_max * sizeof(uint64_t);
  const index::NewBlock table{table_bytes, offsetof(Root, table), [&](char* block) {
                                std::memset(block, 0, table_bytes);
                                pool.memory().flush(block, table_bytes);
                              }};
  index::make_structure(pool, name, BlockCache::kTypeName, Kind::kBytes, Kind::kBytes, &root,
                        sizeof root, kSealedBytes, {&table, 1});
  return open(pool, name, options);
}

std::shared_ptr<Core> Core::open(pm::PoolImpl& pool, const std::string& name,
                                 const BlockCacheOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t root = index::find_structure(pool, name, BlockCache::kTypeName, Kind::kBytes,
                                              Kind::kBytes, kRootMagic, sizeof(Root), kSealedBytes);
  std::shared_ptr<Core> core(new Core(pool, name, root));
  const BlockCacheOptions have = core->options();
  index::require_same(pool, name, "segment_bytes", options.segment_bytes, have.segment_bytes);
  index::require_same(pool, name, "capacity_bytes",
                      options.capacity_bytes / have.segment_bytes * have.segment_bytes,
                      have.capacity_bytes);
  core->is_wanted_ = options.is_wanted;
  core->read_table();
  core->recover(options.threads);
  core->opening_ns_ = static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  return core;
}

Core::Core(pm::PoolImpl& pool, const std::string& name, uint64_t root)
    : pool_(pool),
      open_(pool, name, root),
      memory_(pool.memory()),
      name_(name),
      root_(*pool.at<Root>(root)),
      lines_max_(root_.segment_bytes / pm::kLineBytes),
      stripes_(std::make_unique<Stripe[]>(kStripes)) {}

void Core::read_table() {
  const uint64_t table_bytes = root_.segments_max * sizeof(uint64_t);
  const auto require = [&](uint64_t offset, uint64_t bytes, const char* what) {
    if (pool_.leads_inside(offset, bytes) && offset % pm::kLineBytes == 0 &&
        pool_.heap().is_allocated(offset, bytes)) {
      return;
    }
    pool_.throw_corrupt(fmt::format("'{}': {} at {:#x} is not allocated", name_, what, offset));
  };
  if (root_.segment_bytes < kSegmentBytesMin || root_.segment_bytes > kSegmentBytesMax ||
      root_.segment_bytes % kPage != 0 || root_.segments_max < 2 ||
      root_.segments_max > kSegmentsMax) {
    pool_.throw_corrupt(fmt::format("the root of '{}' is damaged", name_));
  }
  require(root_.table, table_bytes, "the table of segments");
  const auto* table = pool_.at<uint64_t>(root_.table);
  segments_ = std::make_unique<Segment[]>(root_.segments_max);
  std::unordered_set<uint64_t> met;
  for (; taken_ < root_.segments_max && table[taken_] != 0; ++taken_) {
    uint64_t offset = 0;
    if (!pm::unseal_word(table[taken_], salt_of_link(root_, taken_), offset)) {
      pool_.throw_corrupt(fmt::format("'{}': the place of segment {} is damaged", name_, taken_));
    }
    require(offset, root_.segment_bytes, "a segment");
    if (!met.insert(offset).second) {
      pool_.throw_corrupt(fmt::format("'{}': a segment is in its table twice", name_));
    }
    segments_[taken_].offset = offset;
  }
  for (uint64_t i = taken_; i < root_.segments_max; ++i) {
    if (table[i] != 0)
      pool_.throw_corrupt(fmt::format("'{}': a segment is missing in its table", name_));
  }
}

// Of two records of a key, which only damage can leave, the newer one. The other one is erased:
// else it would be back when that is.
void Core::find(uint64_t hash, Where where) {
  const auto age = [this](Where each) {
    return std::pair(segments_[each.segment()].name.sequence, each.line());
  };
  Stripe& stripe = stripe_of(hash);
  const std::lock_guard lock(stripe.mutex);
  stripe.table.reserve_one();
  const Where* found = stripe.table.find(hash);
  if (found == nullptr) return stripe.table.put(hash, where);
  const bool is_newer = age(where) > age(*found);
  const Where loser = is_newer ? *found : where;
  if (is_newer) stripe.table.put(hash, where);
  if (pool_.read_only()) return;
  auto* check =
      reinterpret_cast<uint64_t*>(line_of(static_cast<uint32_t>(loser.segment()), loser.line()));
  pm::store_relaxed(*check, uint64_t{0});
  memory_.flush(check, sizeof *check);  // durable by the fence at the end of recover()'s threads
}

void Core::recover_segment(uint32_t number) {
  Segment& segment = segments_[number];
  const auto* header = reinterpret_cast<const SegmentHeader*>(line_of(number, 0));
  if (header->use.sequence == 0 || header->check != check_of(header->use, number, root_.salt))
    return;  // empty
  segment.lines = 1;
  for (uint64_t line = 1; line < lines_max_;) {
    const Where where = Where::of(number, 0, line);
    const char* record = line_of(number, line);
    RecordHead head;
    uint64_t hash = 0;
    if (!is_record(record, where, head, hash)) {
      // A process that died may have erased it in the caches only.
      if (head.check == 0 && head.block_bytes != 0 && !pool_.read_only()) memory_.flush(record, 1);
      ++line;
      continue;
    }
    find(hash, where);
    line += record_bytes(head.key_bytes, head.block_bytes) / pm::kLineBytes;
    segment.lines = static_cast<uint32_t>(line);
  }
}

void Core::recover(uint32_t threads) {
  // Names first: they decide between records.
  for (uint32_t i = 0; i < taken_; ++i) {
    const auto* header = reinterpret_cast<const SegmentHeader*>(line_of(i, 0));
    if (!pool_.read_only()) memory_.flush(header, sizeof *header);
    if (header->check != check_of(header->use, i, root_.salt)) continue;
    segments_[i].name = header->use;
    last_sequence_ = std::max(last_sequence_.load(), header->use.sequence);
  }
  constexpr uint32_t kSegmentsOfAThread = 16;
  if (threads == 0) threads = std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
  threads = std::clamp(taken_ / kSegmentsOfAThread, 1U, threads);
  std::atomic<uint32_t> next{0};
  pm::in_threads(threads, [&](uint32_t) {
    for (uint32_t i = next++; i < taken_; i = next++) recover_segment(i);
    // Headers (of the first thread) and erasures as they were found, before anything is written by
    // them: were they lost to a power failure after another record of a key was written, an earlier
    // one would be back.
    if (!pool_.read_only()) memory_.fence();
  });
  for (uint32_t i = 0; i < taken_; ++i) oldest_first_.push_back(i);
  std::ranges::sort(oldest_first_, {}, [this](uint32_t i) {  // empty ones have none
    return segments_[i].lines == 0 ? 0 : segments_[i].name.sequence;
  });
  for (size_t i = 0; i < kStripes; ++i) stripes_[i].recovered = stripes_[i].table.count();
  lanes_in_use_ = static_cast<uint32_t>(std::clamp<size_t>(taken_ / 4, 1, kLanes));
}

void Core::visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const index::VisitBlock block(pool_, visit);
  block(pool_.find(name_)->root, sizeof(Root));
  block(root_.table, root_.segments_max * sizeof(uint64_t));
  const std::lock_guard lock(space_mutex_);
  for (uint32_t i = 0; i < taken_; ++i) block(segments_[i].offset.load(), root_.segment_bytes);
}

uint64_t Core::check(const std::function<void(const std::string&)>& report) const {
  uint64_t violations = 0;
  const auto fail_with = [&](const std::string& sentence) {
    ++violations;
    report(sentence);
  };
  index::BlockOwners owners(pool_, name_, fail_with);
  visit_blocks([&](uint64_t offset, uint64_t bytes) { owners.meet(offset, bytes); });
  const std::lock_guard lock(space_mutex_);
  const auto* table = pool_.at<uint64_t>(root_.table);
  for (uint32_t i = 0; i < taken_; ++i) {
    if (table[i] != pm::seal_word(segments_[i].offset.load(), salt_of_link(root_, i)))
      fail_with(fmt::format("'{}': segment {} is not in the table", name_, i));
    const auto* header = reinterpret_cast<const SegmentHeader*>(line_of(i, 0));
    if (segments_[i].lines != 0 && header->check != check_of(header->use, i, root_.salt))
      fail_with(fmt::format("'{}': the header of segment {} is damaged", name_, i));
  }
  return violations;
}

void Core::for_each(
    const std::function<void(std::string_view key, std::string_view block)>& visit) const {
  std::vector<uint32_t> order;
  {
    const std::lock_guard lock(space_mutex_);
    for (uint32_t i = 0; i < taken_; ++i) {
      if (segments_[i].lines != 0) order.push_back(i);
    }
  }
  std::ranges::sort(order, {}, [this](uint32_t i) { return segments_[i].name.sequence; });
  for (const uint32_t i : order) {
    const uint64_t use = segments_[i].use();
    walk(i, use, segments_[i].lines, [&](Where where, const RecordHead& head, uint64_t hash) {
      Stripe& stripe = stripe_of(hash);
      {
        const std::lock_guard lock(stripe.mutex);
        const Where* found = stripe.table.find(hash);
        if (found == nullptr || !found->same_place(where)) return;
      }
      const char* key = line_of(i, where.line()) + sizeof head;
      const std::string_view bytes(key + head.key_bytes, head.block_bytes);
      if (check_of_block(bytes) == head.block_check) visit({key, head.key_bytes}, bytes);
    });
  }
}

BlockCacheOptions Core::options() const {
  return {.capacity_bytes = root_.segments_max * root_.segment_bytes,
          .segment_bytes = root_.segment_bytes,
          .threads = 0,
          .is_wanted = nullptr};
}

BlockCacheStatistics Core::counters() const {
  BlockCacheStatistics all{};
  all.capacity_bytes = root_.segments_max * root_.segment_bytes;
  all.dram_bytes = kStripes * sizeof(Stripe) + root_.segments_max * sizeof(Segment) + sizeof *this;
  {
    const std::lock_guard lock(space_mutex_);
    all.pool_bytes = taken_ * root_.segment_bytes;
  }
  for (size_t i = 0; i < kStripes; ++i) {
    Stripe& stripe = stripes_[i];
    const std::lock_guard lock(stripe.mutex);
    all.dram_bytes += stripe.table.dram_bytes();
    all.blocks += stripe.table.count();
    all.hits += stripe.hits;
    all.misses += stripe.misses;
    all.inserts += stripe.inserts;
    all.evictions += stripe.evictions;
    all.reinserted += stripe.reinserted;
    all.damaged += stripe.damaged;
    all.recovered += stripe.recovered;
  }
  all.declined = declined_.load(std::memory_order_relaxed);
  all.opening_ns = opening_ns_;
  return all;
}

}  // namespace perdure::block_cache
