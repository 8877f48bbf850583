#include "index/plush/root.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <span>
#include <vector>

#include "index/plush/directory_cache.h"
#include "index/plush/geometry.h"
#include "index/plush/levels.h"
#include "index/plush/partition.h"
#include "index/plush/payload_log.h"
#include "index/structure.h"
#include "pm/checksum.h"
#include "pm/torn_bit_log.h"

namespace perdure::index::plush {

namespace {

// Of tables that grow: rows to begin with, and records of a log's chunk at least.
constexpr uint32_t kFirstBits = 7;
constexpr uint64_t kChunkRecordsMin = 128;
constexpr uint64_t kManyPartitionsBytes = uint64_t{6} << 30;

uint64_t root_checksum(const Root& root) { return pm::checksum64(&root, offsetof(Root, checksum)); }

uint32_t checked_log2(const char* name, uint64_t value, uint64_t most) {
  if (!std::has_single_bit(value) || value > most) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}; it must be a power of two, at most {}", name, value, most));
  }
  return static_cast<uint32_t>(std::countr_zero(value));
}

uint64_t shape_checksum(const Shape& shape) {
  return pm::checksum64(&shape, offsetof(Shape, checksum));
}

bool is_sound(const Shape& shape) {
  static constexpr Shape kNone{};
  return std::memcmp(&shape, &kNone, sizeof shape) == 0 || shape.checksum == shape_checksum(shape);
}

const char* type_of(bool ordered) { return ordered ? "plush+range" : "plush"; }

Shape make_shape(const PlushOptions& options, uint32_t directory_bits_max) {
  Shape shape{};
  shape.preallocated_levels = options.preallocated_levels.value_or(0);
  shape.directory_bits_max = directory_bits_max;
  if (shape.preallocated_levels > 2) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("preallocated_levels is {}; it must be 0 to 2", shape.preallocated_levels));
  }
  if (options.order == PlushOrder::kRange) {
    shape.ordered = 1;
    shape.key_min = options.key_min.value_or(0);
    shape.key_max = options.key_max.value_or(~uint64_t{0});
    if (shape.key_min >= shape.key_max) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("key_min is {} and key_max {}; key_max must be the larger one",
                              shape.key_min, shape.key_max));
    }
  }
  shape.checksum = shape_checksum(shape);
  return shape;
}

// Throws unless options that were given are those that the table was made with.
void require_same_shape(const pm::PoolImpl& pool, const std::string& name, const Shape& shape,
                        const PlushOptions& options) {
  if (options.preallocated_levels) {
    require_same(pool, name, "preallocated_levels", *options.preallocated_levels,
                 shape.preallocated_levels);
  }
  if (options.directory_bits_max != 0) {
    require_same(pool, name, "directory_bits_max", options.directory_bits_max,
                 shape.directory_bits_max);
  }
  if (options.key_min) require_same(pool, name, "key_min", *options.key_min, shape.key_min);
  if (options.key_max) require_same(pool, name, "key_max", *options.key_max, shape.key_max);
}

// Of those that are not kept.
void require_valid(const PlushOptions& options) {
  if (options.garbage_percent < 10 || options.garbage_percent > 10000) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("garbage_percent is {}; it must be 10 to 10000", options.garbage_percent));
  }
  if (options.filter_levels > DirectoryCache::kFilterLevelsMax) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("filter_levels is {}; it must be 0 to {}", options.filter_levels,
                            DirectoryCache::kFilterLevelsMax));
  }
}

uint64_t blocks_checksum(const Root& root) {
  return pm::checksum64(&root.log, offsetof(Root, shape) - offsetof(Root, log));
}

bool are_places_sound(const pm::PoolImpl& pool, const Root& root) {
  const uint64_t pages = PayloadLog::place_pages(pool, root);
  if (!pool.heap().is_allocated(root.payload_places, pages * sizeof(uint64_t))) return false;
  const std::span links(pool.at<uint64_t>(root.payload_places), pages);
  return std::ranges::all_of(links, [&](uint64_t page) {
    return page == 0 || pool.heap().is_allocated(page, sizeof(PlacePage));
  });
}

// Whether the blocks that a root leads to are allocated. Its parameters are as they were made.
bool has_sound_blocks(const pm::PoolImpl& pool, const Root& root, bool out_of_place) {
  const pm::Heap& heap = pool.heap();
  const uint64_t partitions = uint64_t{1} << root.partition_bits;
  if (root.blocks_checksum != blocks_checksum(root) ||
      !heap.is_allocated(root.log, root.log_chunk_bytes * root.log_chunks * partitions) ||
      !heap.is_allocated(root.level1, sizeof(Entry) << root.directory_bits)) {
    return false;
  }
  if (out_of_place && (!heap.is_allocated(root.payload_heads, partitions * sizeof(PayloadHead)) ||
                       !are_places_sound(pool, root))) {
    return false;
  }
  bool ended = false;
  for (uint32_t level = 2; level <= kLevelsMax; ++level) {
    const uint64_t table = root.tables[level];
    const uint32_t bits = root.directory_bits + (level - 2) * root.fanout_bits;
    if (table != 0 && (ended || bits > Geometry::kDeepestBits ||
                       !heap.is_allocated(table, sizeof(uint32_t) << bits)))
      return false;
    ended = ended || table == 0;
  }
  return true;
}

uint32_t log2_floor(uint64_t value) {
  return value == 0 ? 0 : static_cast<uint32_t>(std::bit_width(value)) - 1;
}

// Each time a row is flushed, at least one record of it was logged. An epoch must not come round
// again while a record of its first time is in the log.
bool is_log_too_long(const Root& root, uint32_t directory_bits) {
  const uint64_t rows = uint64_t{1} << (directory_bits - root.partition_bits);
  const uint64_t records = std::max(rows * kSlots + kSlots, kChunkRecordsMin);
  return root.log_chunks * (records + pm::TornBitLog::kUnitBytes) >= LineState::kEpochMask;
}

Root make_root(pm::PoolImpl& pool, const PlushOptions& options, bool out_of_place) {
  require_valid(options);
  const uint64_t capacity = pool.capacity_bytes();
  Root root{};
  root.magic = kRootMagic;
  if (std::max(options.directory_bits, options.directory_bits_max) > 24) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("directory_bits is {} and directory_bits_max {}; each must be 1 to 24",
                            options.directory_bits, options.directory_bits_max));
  }
  // Where many threads may want to write. Each partition has a recovery log; with byte strings also
  // a chunk to append payload to, which in many partitions is more than a small table's records.
  uint32_t partition_bits = capacity >= kManyPartitionsBytes && !out_of_place
                                ? 8
                                : std::min(6U, log2_floor(capacity >> 20));
  const bool grows = options.directory_bits == 0 && options.preallocated_levels.value_or(0) == 0;
  if (options.directory_bits != 0) {
    root.directory_bits = options.directory_bits;
  } else if (grows) {
    if (options.partitions != 0) partition_bits = log2_floor(options.partitions);
    root.directory_bits = partition_bits < kFirstBits ? kFirstBits : partition_bits + 2;
    if (options.directory_bits_max != 0) {
      root.directory_bits = std::min(root.directory_bits, options.directory_bits_max);
    }
  } else {
    // One row for 96 to 192 KiB of capacity: the entries of level 2 are then well filled.
    root.directory_bits = std::clamp(log2_floor(capacity / 98304), 6U, 20U);
  }
  uint32_t directory_bits_max = options.directory_bits_max;
  if (directory_bits_max == 0) {
    directory_bits_max = grows ? std::max(20U, root.directory_bits) : root.directory_bits;
  }
  if (directory_bits_max < root.directory_bits ||
      (directory_bits_max > root.directory_bits && options.preallocated_levels.value_or(0) != 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("directory_bits_max is {} and directory_bits {}; it must not be less, "
                            "nor more where levels are preallocated",
                            directory_bits_max, root.directory_bits));
  }
  root.fanout_bits = options.fanout != 0 ? checked_log2("fanout", options.fanout, kFanoutMax) : 3;
  if (root.fanout_bits == 0) {
    throw Error(ErrorCode::kInvalidArgument, "fanout is 1; it must be 2, 4, 8 or 16");
  }
  if (options.partitions != 0) {
    const uint64_t most = std::min<uint64_t>(1024, uint64_t{1} << root.directory_bits);
    root.partition_bits = checked_log2("partitions", options.partitions, most);
  } else if (grows) {
    root.partition_bits = std::min(partition_bits, root.directory_bits);
  } else {
    root.partition_bits = root.directory_bits >= 16 ? 8
                          : root.directory_bits < 3 ? 0
                                                    : std::min(6U, root.directory_bits - 3);
    if (out_of_place)
      root.partition_bits = std::min(root.partition_bits, log2_floor(capacity >> 20));
  }
  const uint32_t percent = options.log_percent != 0 ? options.log_percent : 300;
  if (percent < 300 || percent > 10000) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("log_percent is {}; it must be 300 to 10000", percent));
  }
  root.log_chunks = percent / 100;
  if (is_log_too_long(root, root.directory_bits)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a log for {} rows in each partition is too long; use more "
                            "partitions, or a smaller log_percent",
                            1U << (root.directory_bits - root.partition_bits)));
  }
  const uint64_t rows = uint64_t{1} << (root.directory_bits - root.partition_bits);
  const uint64_t records = rows * kSlots + kSlots;
  root.log_chunk_bytes =
      pm::TornBitLog::chunk_bytes_for(grows ? std::max(records, kChunkRecordsMin) : records);
  root.checksum = root_checksum(root);
  root.shape = make_shape(options, directory_bits_max);
  return root;
}

// Whether each partition says how often it has grown, and where its log is.
bool are_heads_sound(const pm::PoolImpl& pool, const Root& root) {
  const uint64_t partitions = uint64_t{1} << root.partition_bits;
  if (!pool.heap().is_allocated(root.heads, partitions * sizeof(PartitionHead))) return false;
  const std::span heads(pool.at<PartitionHead>(root.heads), partitions);
  return std::ranges::all_of(heads, [&](const PartitionHead& head) {
    if (head.grown == 0) return head.log == 0;
    return head.grown < top_max_of(root) &&
           pool.heap().is_allocated(
               head.log, Partitions::log_bytes_of(root, static_cast<uint32_t>(head.grown + 1)));
  });
}

}  // namespace

uint32_t top_max_of(const Root& root) {
  uint32_t top = 1;
  for (uint32_t bits = root.directory_bits + root.fanout_bits;
       bits <= root.shape.directory_bits_max && !is_log_too_long(root, bits);
       bits += root.fanout_bits) {
    ++top;
  }
  return top;
}

Root& make_table(pm::PoolImpl& pool, const std::string& name, Kind key_kind, Kind value_kind,
                 const PlushOptions& options) {
  const bool out_of_place = key_kind != Kind::kU64 || value_kind != Kind::kU64;
  Root image = make_root(pool, options, out_of_place);
  const bool ordered = image.shape.ordered != 0;
  if (ordered && key_kind != Kind::kU64) {
    throw Error(ErrorCode::kWrongType, "plush+range has an order for u64 keys only");
  }
  const uint32_t partitions = 1U << image.partition_bits;
  const uint64_t log_bytes = image.log_chunk_bytes * image.log_chunks;
  const uint64_t level1_bytes = (uint64_t{1} << image.directory_bits) * sizeof(Entry);
  Levels::require_room(pool, image, log_bytes * partitions + level1_bytes);
  const pm::Memory& memory = pool.memory();
  std::vector<NewBlock> blocks;
  const auto zeroed = [&](uint64_t bytes, uint64_t link_at) {
    blocks.push_back({bytes, link_at, [&memory, bytes](char* block) {
                        std::memset(block, 0, bytes);
                        memory.flush(block, bytes);
                      }});
  };
  blocks.push_back({log_bytes * partitions, offsetof(Root, log), [&](char* block) {
                      std::memset(block, 0, log_bytes * partitions);
                      memory.flush(block, log_bytes * partitions);
                      for (uint32_t i = 0; i < partitions; ++i) {
                        pm::TornBitLog(memory, block + i * log_bytes, image.log_chunk_bytes,
                                       image.log_chunks)
                            .format();
                      }
                    }});
  zeroed(level1_bytes, offsetof(Root, level1));
  zeroed(partitions * sizeof(PartitionHead), offsetof(Root, heads));
  if (out_of_place) {
    zeroed(partitions * sizeof(PayloadHead), offsetof(Root, payload_heads));
    zeroed(PayloadLog::place_pages(pool) * sizeof(uint64_t), offsetof(Root, payload_places));
    image.places_word = PayloadLog::places_word(pool);
  }
  const auto seal = [](void* root) {
    auto* own = static_cast<Root*>(root);
    own->blocks_checksum = blocks_checksum(*own);
  };
  const uint64_t root = make_structure(pool, name, type_of(ordered), key_kind, value_kind, &image,
                                       sizeof image, seal, blocks);
  return *pool.at<Root>(root);
}

void extend_places(pm::PoolImpl& pool, Root& root, std::shared_mutex& places) {
  if (root.payload_places == 0 || pool.lenient()) return;
  const uint64_t before = PayloadLog::place_pages(pool, root);
  const uint64_t pages = PayloadLog::place_pages(pool);
  if (before >= pages) return;
  try {
    pm::Heap::Txn txn(pool.heap());
    const uint64_t bytes = pages * sizeof(uint64_t);
    const uint64_t block = txn.allocate(bytes);
    auto* links = pool.at<char>(block);
    std::memset(links, 0, bytes);
    std::memcpy(links, pool.at<char>(root.payload_places), before * sizeof(uint64_t));
    pool.memory().flush(links, bytes);
    txn.will_link(block, &root.payload_places, pm::Link::kOffset);
    txn.will_unlink(root.payload_places, &root.payload_places, pm::Link::kOffset);
    Root image = root;
    image.payload_places = block;
    image.places_word = PayloadLog::places_word(pages);
    image.blocks_checksum = blocks_checksum(image);
    for (const auto word : {&Root::payload_places, &Root::places_word, &Root::blocks_checksum}) {
      txn.redo(&(root.*word), &(image.*word), sizeof(uint64_t));
    }
    // The copy, before what leads to it. A crash finds the root with the old block or with the new
    // one. Who holds the lock waits for no lane of the heap, as others who have one wait for the
    // lock.
    txn.commit([&] {
      const std::lock_guard lock(places);
      txn.apply();
    });
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;  // else it can be used: who needs a page of them tries again
  }
}

Root& find_table(pm::PoolImpl& pool, const std::string& name, Kind key_kind, Kind value_kind,
                 const PlushOptions& options) {
  const bool ordered = options.order == PlushOrder::kRange;
  auto* root = pool.at<Root>(
      find_structure(pool, name, type_of(ordered), key_kind, value_kind, sizeof(Root)));
  // Who has it open may be changing it: extend_places().
  const pm::PoolImpl::Use use(pool, name, pool.offset_of(root));
  if (root->magic == kRootMagic1 || root->magic == kRootMagic2 || root->magic == kRootMagic3 ||
      root->magic == kRootMagic4) {
    throw Error(ErrorCode::kWrongType,
                fmt::format("{}: '{}' has the layout of an earlier version; dump it with the one "
                            "that made it and load it with this one",
                            pool.mapping().path(), name));
  }
  if (root->magic != kRootMagic || root->checksum != root_checksum(*root) ||
      !is_sound(root->shape) || (root->shape.ordered != 0) != ordered ||
      !are_heads_sound(pool, *root)) {
    pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  }
  if (!has_sound_blocks(pool, *root, key_kind != Kind::kU64 || value_kind != Kind::kU64)) {
    pool.throw_corrupt(fmt::format("the root of '{}' leads to blocks that are not its own", name));
  }
  require_valid(options);
  const auto conflicts = [](uint32_t wanted, uint32_t have) {
    return wanted != 0 && wanted != have;
  };
  if (conflicts(options.directory_bits, root->directory_bits) ||
      conflicts(options.fanout, 1U << root->fanout_bits) ||
      conflicts(options.partitions, 1U << root->partition_bits) ||
      conflicts(options.log_percent / 100, root->log_chunks)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: '{}' was made with directory_bits {}, fanout {}, partitions {}, "
                    "log_percent {}; these are fixed at creation",
                    pool.mapping().path(), name, root->directory_bits, 1U << root->fanout_bits,
                    1U << root->partition_bits, root->log_chunks * 100));
  }
  require_same_shape(pool, name, root->shape, options);
  return *root;
}

}  // namespace perdure::index::plush
