// Making, opening and closing a table.
#include "index/plush/core.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <new>

#include "index/structure.h"
#include "pm/checksum.h"

namespace perdure::index::plush {

namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
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

Shape make_shape(const PlushOptions& options) {
  Shape shape{};
  shape.preallocated_levels = options.preallocated_levels.value_or(0);
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
  if (options.key_min) require_same(pool, name, "key_min", *options.key_min, shape.key_min);
  if (options.key_max) require_same(pool, name, "key_max", *options.key_max, shape.key_max);
}

void require_valid_filter_levels(const PlushOptions& options) {
  if (options.filter_levels > Mirror::kLevelsMax) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("filter_levels is {}; it must be 0 to {}", options.filter_levels,
                            Mirror::kLevelsMax));
  }
}

uint32_t log2_floor(uint64_t value) {
  return value == 0 ? 0 : static_cast<uint32_t>(std::bit_width(value)) - 1;
}

}  // namespace

Key Core::key_of(std::string_view bytes) const {
  if (ordered_) return {position_of(word_of(bytes)), bytes};
  return {pm::checksum64(bytes.data(), bytes.size()), bytes};
}

Core::Core(pm::PoolImpl& pool, Root& root, Kind key_kind, Kind value_kind, uint32_t filter_levels)
    : pool_(pool),
      root_(root),
      memory_(pool.memory()),
      kernels_(kernels()),
      key_kind_(key_kind),
      value_kind_(value_kind),
      out_of_place_(key_kind != Kind::kU64 || value_kind != Kind::kU64),
      ordered_(root.shape.ordered != 0),
      order_shift_(ordered_ ? static_cast<uint32_t>(
                                  std::countl_zero(root.shape.key_max - root.shape.key_min))
                            : 0),
      key_min_(ordered_ ? root.shape.key_min : 0),
      key_max_(ordered_ ? root.shape.key_max : ~uint64_t{0}),
      level1_(pool.at<Entry>(root.level1)),
      partition_count_(1U << root.partition_bits) {
  for (uint32_t level = 1; level <= kLevelsMax; ++level) {
    index_shifts_[level] = static_cast<uint8_t>(64 - level_bits(level));
  }
  for (uint32_t level = 2; level <= kLevelsMax; ++level) {
    if (root.tables[level] != 0) tables_[level] = pool.at<uint32_t>(root.tables[level]);
  }
  map_dram();
  mirror_ = std::make_unique<Mirror>(filter_levels, rows(), fanout());
  partitions_ = static_cast<Partition*>(
      ::operator new(sizeof(Partition) * partition_count_, std::align_val_t{alignof(Partition)}));
  char* log = pool.at<char>(root.log);
  const uint64_t log_bytes = root.log_chunk_bytes * root.log_chunks;
  for (uint32_t i = 0; i < partition_count_; ++i) {
    new (&partitions_[i])
        Partition(memory_, log + i * log_bytes, root.log_chunk_bytes, root.log_chunks);
  }
  if (!out_of_place_ && !ordered_ && filter_levels == 2) {
    quick_ = {.copies = {&mirror_->at(1, 0), &mirror_->at(2, 0)},
              .shifts = {index_shifts_[1], index_shifts_[2]},
              .wide = kernels_.wide,
              .base = pool.base()};
  }
  if (out_of_place_) payload_ = std::make_unique<PayloadLog>(pool, root, partition_count_);
}

Core::~Core() {
  if (recovered_ && !pool_.read_only()) {
    try {
      close();
    } catch (const Error&) {  // the log still holds everything
    }
  }
  payload_.reset();
  for (uint32_t i = 0; i < partition_count_; ++i) partitions_[i].~Partition();
  ::operator delete(partitions_, std::align_val_t{alignof(Partition)});
  ::munmap(rows_map_, dram_bytes_ + kHugePageBytes);
}

void Core::map_dram() {
  const uint64_t records_bytes = rows() * sizeof(Bucket);
  dram_bytes_ = (records_bytes + rows() * sizeof(Row) + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  rows_map_ = ::mmap(nullptr, dram_bytes_ + kHugePageBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (rows_map_ == MAP_FAILED) throw std::bad_alloc();
  const auto aligned =
      (reinterpret_cast<uintptr_t>(rows_map_) + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  ::madvise(reinterpret_cast<void*>(aligned), dram_bytes_, MADV_HUGEPAGE);
  row_records_ = reinterpret_cast<Bucket*>(aligned);
  rows_ = reinterpret_cast<Row*>(aligned + records_bytes);
}

Root Core::make_root(pm::PoolImpl& pool, const PlushOptions& options, bool out_of_place) {
  require_valid_filter_levels(options);
  const uint64_t capacity = pool.header().capacity_bytes;
  Root root{};
  root.magic = kRootMagic;
  if (options.directory_bits > 24) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("directory_bits is {}; it must be 1 to 24", options.directory_bits));
  }
  // One row for 96 to 192 KiB of capacity: the entries of level 2 are then well filled, neither half
  // empty nor overflowing to level 3, when the records fill a fifth to two fifths of the capacity.
  root.directory_bits = options.directory_bits != 0
                            ? options.directory_bits
                            : std::clamp(log2_floor(capacity / 98304), 6U, 20U);
  root.fanout_bits = options.fanout != 0 ? checked_log2("fanout", options.fanout, kFanoutMax) : 4;
  if (root.fanout_bits == 0) {
    throw Error(ErrorCode::kInvalidArgument, "fanout is 1; it must be 2, 4, 8 or 16");
  }
  if (options.partitions != 0) {
    const uint64_t most = std::min<uint64_t>(1024, uint64_t{1} << root.directory_bits);
    root.partition_bits = checked_log2("partitions", options.partitions, most);
  } else {
    root.partition_bits = root.directory_bits >= 16 ? 8
                          : root.directory_bits < 3 ? 0
                                                    : std::min(6U, root.directory_bits - 3);
    // Each partition of a payload log has a chunk of its own to append to.
    if (out_of_place)
      root.partition_bits = std::min(root.partition_bits, log2_floor(capacity >> 20));
  }
  const uint32_t percent = options.log_percent != 0 ? options.log_percent : 300;
  if (percent < 300 || percent > 10000) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("log_percent is {}; it must be 300 to 10000", percent));
  }
  root.log_chunks = percent / 100;
  const uint64_t rows_per_partition = uint64_t{1} << (root.directory_bits - root.partition_bits);
  const uint64_t chunk_records = rows_per_partition * kSlots + kSlots;
  root.log_chunk_bytes = pm::RedoLog::chunk_bytes_for(chunk_records);
  // Each time a row moves down, at least one record of it was logged. An epoch must not come round
  // again while a record of its first time is in the log.
  if (root.log_chunks * chunk_records >= LineState::kEpochMask) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a log of {} records in each partition is too long; use more "
                            "partitions, or a smaller log_percent",
                            root.log_chunks * chunk_records));
  }
  root.checksum = root_checksum(root);
  root.shape = make_shape(options);
  return root;
}

std::unique_ptr<Core> Core::create(pm::PoolImpl& pool, const std::string& name, Kind key_kind,
                                   Kind value_kind, const PlushOptions& options) {
  const std::lock_guard lock(pool.directory_mutex());
  pm::DirectoryEntry* entry = pool.reserve_entry(name);
  const bool out_of_place = key_kind != Kind::kU64 || value_kind != Kind::kU64;
  Root image = make_root(pool, options, out_of_place);
  const bool ordered = image.shape.ordered != 0;
  if (ordered && key_kind != Kind::kU64) {
    throw Error(ErrorCode::kWrongType, "plush+range has an order for u64 keys only");
  }
  const uint32_t partitions = 1U << image.partition_bits;
  const uint64_t log_bytes = image.log_chunk_bytes * image.log_chunks;
  const pm::Memory& memory = pool.memory();
  require_room(pool, image,
               log_bytes * partitions + (uint64_t{1} << image.directory_bits) * sizeof(Entry));

  pm::Heap::Txn txn(pool.heap());
  const uint64_t root_at = txn.allocate(sizeof(Root));
  auto* root = pool.at<Root>(root_at);
  const auto zeroed = [&](uint64_t bytes, uint64_t& field, const uint64_t* link) {
    field = txn.allocate(bytes);
    std::memset(pool.at<char>(field), 0, bytes);
    memory.flush(pool.at<char>(field), bytes);
    txn.will_link(field, link, pm::Link::kOffset);
  };
  std::memset(root, 0, sizeof(Root));  // no stale word may seem to link a block before it does
  memory.persist(root, sizeof(Root));
  txn.will_link(root_at, &entry->root, pm::Link::kOffset);
  zeroed(log_bytes * partitions, image.log, &root->log);
  zeroed((uint64_t{1} << image.directory_bits) * sizeof(Entry), image.level1, &root->level1);
  if (out_of_place)
    zeroed(partitions * sizeof(PayloadHead), image.payload_heads, &root->payload_heads);
  for (uint32_t i = 0; i < partitions; ++i) {
    pm::RedoLog(memory, pool.at<char>(image.log) + i * log_bytes, image.log_chunk_bytes,
                image.log_chunks)
        .format();
  }
  const pm::DirectoryEntry named =
      pm::PoolImpl::make_entry(name, type_of(ordered), static_cast<uint8_t>(key_kind),
                               static_cast<uint8_t>(value_kind), root_at);
  txn.redo(root, &image, sizeof(Root));
  txn.redo(entry, &named, sizeof named);
  txn.prepare();
  memory.fence();  // empty log and directories and the intents, before the name that reveals them
  txn.apply();
  txn.settle();
  memory.fence();
  txn.finish();

  std::unique_ptr<Core> core(new Core(pool, *root, key_kind, value_kind, options.filter_levels));
  core->name_ = name;
  core->preallocate();
  core->recover(options.recovery_threads);
  return core;
}

std::unique_ptr<Core> Core::open(pm::PoolImpl& pool, const std::string& name, Kind key_kind,
                                 Kind value_kind, const PlushOptions& options) {
  const bool ordered = options.order == PlushOrder::kRange;
  const pm::DirectoryEntry& entry = pool.require(
      name, type_of(ordered), static_cast<uint8_t>(key_kind), static_cast<uint8_t>(value_kind));
  auto* root = pool.at<Root>(entry.root);
  if (pool.heap().is_allocated(entry.root, sizeof(Root)) && root->magic == kRootMagic1) {
    throw Error(
        ErrorCode::kWrongType,
        fmt::format("{}: '{}' has the layout of version 0.1.0; dump it with that version and "
                    "load it with this one",
                    pool.mapping().path(), name));
  }
  if (!pool.heap().is_allocated(entry.root, sizeof(Root)) || root->magic != kRootMagic ||
      root->checksum != root_checksum(*root) || !is_sound(root->shape) ||
      (root->shape.ordered != 0) != ordered) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}: the root of '{}' is damaged; restore the file from a backup",
                            pool.mapping().path(), name));
  }
  require_valid_filter_levels(options);
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
  std::unique_ptr<Core> core(new Core(pool, *root, key_kind, value_kind, options.filter_levels));
  core->name_ = name;
  core->recover(options.recovery_threads);
  return core;
}

void Core::close() {
  for (uint32_t i = 0; i < partition_count_; ++i) {
    const std::lock_guard lock(partitions_[i].lock);
    partitions_[i].unlogged ? log_all_rows(partitions_[i]) : compact_log(partitions_[i]);
  }
}

}  // namespace perdure::index::plush
