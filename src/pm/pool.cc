#include "perdure/pool.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <string_view>
#include <utility>

#include "pm/backup.h"
#include "pm/copy_limit.h"
#include "pm/drop.h"
#include "pm/header.h"
#include "pm/inspect.h"
#include "pm/live.h"
#include "pm/pool_impl.h"
#include "pm/system_error.h"
#include "pm/transaction_log.h"

namespace perdure {

const char* to_string(Domain domain) noexcept {
  switch (domain) {
    case Domain::kPage:
      return "page";
    case Domain::kLine:
      return "line";
    case Domain::kByte:
      return "byte";
  }
  return "unknown";
}

const char* to_string(Durability durability) noexcept {
  switch (durability) {
    case Durability::kBest:
      return "best";
    case Durability::kProcess:
      return "process";
    case Durability::kPower:
      return "power";
  }
  return "unknown";
}

const char* to_string(Medium medium) noexcept {
  switch (medium) {
    case Medium::kFile:
      return "file";
    case Medium::kDax:
      return "dax";
    case Medium::kDaxEadr:
      return "dax-eadr";
    case Medium::kTmpfs:
      return "tmpfs";
    case Medium::kHugetlbfs:
      return "hugetlbfs";
    case Medium::kAnonymous:
      return "anonymous";
  }
  return "unknown";
}

const char* to_string(PoolEventKind kind) noexcept {
  switch (kind) {
    case PoolEventKind::kOpened:
      return "opened";
    case PoolEventKind::kRecovered:
      return "recovered";
    case PoolEventKind::kGrown:
      return "grown";
    case PoolEventKind::kNearlyFull:
      return "nearly-full";
    case PoolEventKind::kDamaged:
      return "damaged";
  }
  return "unknown";
}

Domain parse_domain(std::string_view text) {
  for (const Domain domain : {Domain::kPage, Domain::kLine, Domain::kByte}) {
    if (text == to_string(domain)) return domain;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is not a domain; use page, line or byte", text));
}

Durability parse_durability(std::string_view text) {
  for (const Durability one : {Durability::kBest, Durability::kProcess, Durability::kPower}) {
    if (text == to_string(one)) return one;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is not a durability; use best, process or power", text));
}

Pool::Pool(std::unique_ptr<pm::PoolImpl> impl) : impl_(std::move(impl)) {}
Pool::Pool(Pool&&) noexcept = default;
Pool& Pool::operator=(Pool&& other) noexcept {
  if (this == &other) return *this;
  if (impl_) impl_->abandon();
  impl_ = std::move(other.impl_);
  return *this;
}

Pool::~Pool() {
  if (impl_) impl_->abandon();
}

Pool Pool::create(const std::string& path, const PoolOptions& options) {
  if (options.read_only) {
    throw Error(ErrorCode::kInvalidArgument, "a new pool cannot be read-only");
  }
  if (options.capacity_bytes < kMinCapacityBytes || options.capacity_bytes > kMaxCapacityBytes) {
    throw Error(ErrorCode::kCapacity,
                fmt::format("{}: a capacity of {} bytes is outside {} to {}", path,
                            options.capacity_bytes, kMinCapacityBytes, kMaxCapacityBytes));
  }
  return Pool(pm::PoolImpl::create(pm::Mapping::create_file(path), options));
}

Pool Pool::open(const std::string& path, const PoolOptions& options) try {
  const auto open_backup = [&] {
    return Pool(pm::PoolImpl::open(pm::open_backup(path, options.verify), options));
  };
  if (options.read_only && pm::is_backup_file(path)) return open_backup();
  try {
    return Pool(pm::PoolImpl::open(pm::Mapping::open_file(path, options.read_only), options));
  } catch (const Error& error) {
    if (!options.read_only || error.code() != ErrorCode::kForeign || !pm::is_backup_file(path))
      throw;
  }
  return open_backup();  // which has come to be there meanwhile
} catch (const Error& error) {
  if (options.on_event &&
      (error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kTruncated)) {
    try {
      options.on_event({PoolEventKind::kDamaged, path, error.what(), 0, 0, 0});
    } catch (...) {  // as PoolOptions says
    }
  }
  throw;
}

Pool Pool::anonymous(const PoolOptions& options) {
  if (options.capacity_bytes < kMinCapacityBytes || options.capacity_bytes > kMaxCapacityBytes) {
    throw Error(ErrorCode::kCapacity,
                fmt::format("a capacity of {} bytes is outside {} to {}", options.capacity_bytes,
                            kMinCapacityBytes, kMaxCapacityBytes));
  }
  return Pool(pm::PoolImpl::create(pm::Mapping::anonymous(), options));
}

void Pool::close() {
  if (impl_) impl_->close();
  impl_.reset();
}

pm::PoolImpl& Pool::impl() const {
  if (!impl_) throw Error(ErrorCode::kInUse, "the pool was closed or moved from; open it again");
  return *impl_;
}

pm::PoolImpl& pm::impl_of(const Pool& pool) { return pool.impl(); }

void Pool::sync() { impl().sync(); }
PoolInfo Pool::info() const { return impl().info(); }
std::vector<StructureInfo> Pool::structures() const { return impl().structures(); }
uint64_t Pool::shrink() { return impl().shrink(); }
void Pool::rename(const std::string& from, const std::string& to) { impl().rename(from, to); }
BackupReport Pool::backup(const std::string& path, const BackupOptions& options) const {
  return pm::write_backup(impl(), path, options);
}
BackupReport Pool::backup_live(const std::string& pool, const std::string& path,
                               const BackupOptions& options) {
  return pm::ask_for_backup(pool, path, options);
}
PoolInspection Pool::inspect(const std::string& path) { return pm::inspect(path); }
void Pool::restore(const std::string& backup, const std::string& path,
                   const std::vector<std::string>& bases) {
  pm::restore_backup(backup, path, bases);
}
uint64_t Pool::check(const std::function<void(const std::string&)>& report) const {
  return impl().check(report);
}

namespace pm {

namespace {

// What a pool of this capacity is to be opened with. Throws kCapacity, kInvalidArgument.
uint64_t wanted_capacity(const PoolHeader& header, uint64_t capacity_bytes, const Mapping& mapping,
                         const PoolOptions& options) {
  const uint64_t wanted = options.capacity_at_least_bytes / kSegmentBytes * kSegmentBytes;
  if (wanted <= capacity_bytes) return capacity_bytes;
  if (options.capacity_at_least_bytes > Pool::kMaxCapacityBytes) {
    throw Error(ErrorCode::kCapacity,
                fmt::format("{}: a capacity of {} bytes is more than {}", mapping.path(),
                            options.capacity_at_least_bytes, Pool::kMaxCapacityBytes));
  }
  if (options.read_only) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the capacity of a pool that is opened read-only cannot be raised",
                            mapping.path()));
  }
  const uint64_t data = header.data_offset / kSegmentBytes;
  const SegmentMap map(header);
  const SegmentMap::Extent extent = map.extent_of(wanted / kSegmentBytes - data - 1);
  if (wanted / kSegmentBytes - data > extent.data) return wanted;
  throw Error(ErrorCode::kCapacity,
              fmt::format("{}: of a capacity of {} bytes all that is new would go into the "
                          "descriptors of segments; ask for {} at least",
                          mapping.path(), wanted, (extent.data + data + 1) * kSegmentBytes));
}

[[noreturn]] void throw_written_meanwhile(const Mapping& mapping) {
  throw Error(ErrorCode::kLocked,
              fmt::format("{}: the pool was opened for writing while it was read; try again",
                          mapping.path()));
}

// Who may not lock a pool has a copy of it, and finds out whether a writer came meanwhile: that
// writer is there still, or its generation is another one. What it does before it begins a
// generation is to complete what a crash has left, which may be seen half done and completed again:
// lanes are read first.
void freeze(Mapping& mapping, const PoolHeader& header, const PoolHeader& stored,
            uint64_t segments) {
  const SegmentMap map(header);
  mapping.freeze(header.lanes_offset, header.descriptors_offset - header.lanes_offset);
  mapping.freeze(0, header.lanes_offset);
  map.for_each_piece(0, segments, [&](uint64_t first, uint64_t last) {
    mapping.freeze(map.descriptor_offset(first), (last - first) * sizeof(SegmentDescriptor));
    mapping.freeze(header.data_offset + first * kSegmentBytes, (last - first) * kSegmentBytes);
  });
  mapping.require_frozen();
  PoolHeader after;
  const uint64_t bytes = mapping.read_at(0, &after, sizeof after);
  const auto bytes_of = [](const void* bytes_at) {
    return std::string_view(static_cast<const char*>(bytes_at), sizeof(PoolHeader));
  };
  const auto is_same = [&](const void* other) { return bytes_of(other) == bytes_of(&stored); };
  if (bytes == sizeof after && is_same(&after) && is_same(mapping.base())) return;
  throw_written_meanwhile(mapping);
}

}  // namespace

PoolImpl::PoolImpl(Mapping mapping, Domain domain, Durability durability,
                   const PoolOptions& options)
    : mapping_(std::move(mapping)),
      memory_(domain, &failed_),
      durability_(durability),
      verify_payload_(options.verify_payload),
      seal_on_close_(options.seal_on_close),
      lenient_(options.lenient),
      on_event_(options.on_event) {
  if (options.nearly_full_percent > 100) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("nearly_full_percent is {}; it must be 1 to 100, or 0 for never",
                            options.nearly_full_percent));
  }
}

void PoolImpl::know_size(uint64_t segments) {
  end_offset_.store(data_offset_ + segments * kSegmentBytes, std::memory_order_release);
  segments_.store(segments, std::memory_order_release);
}

void PoolImpl::throw_corrupt(std::string_view what) const {
  throw damaged(Error(ErrorCode::kCorrupt,
                      fmt::format("{}: {}; the file was damaged: restore it from a backup",
                                  mapping_.path(), what)));
}

Error PoolImpl::damaged(Error error) const {
  if (ready_) tell(PoolEventKind::kDamaged, error.what());
  return error;
}

void PoolImpl::tell(PoolEventKind kind, std::string_view message) const noexcept {
  if (!on_event_) return;
  try {
    on_event_({.kind = kind,
               .path = mapping_.path(),
               .message = message,
               .size_bytes = end_offset(),
               .used_bytes = end_offset() - (heap_ ? heap_->free_segments() : 0) * kSegmentBytes,
               .capacity_bytes = capacity_bytes()});
  } catch (...) {  // an observer does not decide what becomes of an operation
  }
}

void PoolImpl::note_use(uint64_t segments) noexcept {
  if (!ready_ || nearly_full_segments_ == 0) return;
  if (segments >= nearly_full_segments_) {
    if (std::exchange(nearly_full_, true)) return;
    tell(PoolEventKind::kNearlyFull,
         "the pool is nearly full; delete records, or open it with a larger capacity");
  } else if (segments + segments_max() / 20 < nearly_full_segments_) {
    nearly_full_ = false;
  }
}

void PoolImpl::now_ready(const PoolOptions& options, bool recovered) noexcept {
  ready_ = true;
  if (on_event_ && options.nearly_full_percent > 0) {
    nearly_full_segments_ =
        std::max<uint64_t>(1, (segments_max() * options.nearly_full_percent + 99) / 100);
  }
  if (recovered) {
    tell(PoolEventKind::kRecovered,
         "the pool was not closed; what a crash interrupted is completed or undone");
  }
  tell(PoolEventKind::kOpened, "the pool is open");
  note_use(segments() - heap_->free_segments());
}

void PoolImpl::throw_outside(uint64_t offset) const {
  throw_corrupt(fmt::format("the offset {:#x} leads to no place in the pool", offset));
}

PoolImpl::~PoolImpl() = default;

uint64_t PoolImpl::segments_max() const {
  return (capacity_bytes() - data_offset_) / kSegmentBytes;
}

uint64_t PoolImpl::run_bytes_max() const {
  uint64_t most = 0;
  map_.for_each_piece(0, segments_max(),
                      [&](uint64_t first, uint64_t last) { most = std::max(most, last - first); });
  return most * kSegmentBytes;
}

std::unique_ptr<PoolImpl> PoolImpl::create(Mapping mapping, const PoolOptions& options) {
  try {
    const uint64_t capacity = options.capacity_bytes / kSegmentBytes * kSegmentBytes;
    mapping.map(capacity, options.huge_pages);
    Durability durability = options.durability;
    const Domain needed = needed_domain(mapping.medium(), durability, mapping.path());
    const Domain domain = chosen_domain(needed, options, mapping.path());
    std::unique_ptr<PoolImpl> pool(new PoolImpl(std::move(mapping), domain, durability, options));
    try {
      pool->write_header(options, capacity);
      const uint64_t reserved = round_up(std::min(options.reserve_bytes, capacity), kSegmentBytes);
      if (reserved > pool->header().data_offset) {
        pool->grow_to((reserved - pool->header().data_offset) / kSegmentBytes);
      }
      pool->heap_ = std::make_unique<Heap>(*pool);
      pool->heap_->recover();
      pool->transactions_ = std::make_unique<TransactionLog>(*pool);
      pool->start_generation();
      pool->serve_backups(options);
      pool->now_ready(options, false);
    } catch (...) {
      pool->mapping_.remove_file();
      throw;
    }
    return pool;
  } catch (...) {
    mapping.remove_file();  // nothing, if the pool has taken it over
    throw;
  }
}

void PoolImpl::write_header(const PoolOptions& options, uint64_t capacity_bytes) {
  PoolHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.format_version = kFirstFormat;
  header.header_bytes = kHeaderBytes;
  header.layout_hash = layout_hash();
  if (::getrandom(header.uuid, sizeof header.uuid, 0) != sizeof header.uuid) {
    throw_errno("getrandom", mapping_.path(), errno);
  }
  header.capacity_bytes = capacity_bytes;
  header.growth_bytes = round_up(std::max(options.growth_bytes, kSegmentBytes), kSegmentBytes);
  place_tables(header);
  header.created_unix_s = static_cast<uint64_t>(std::time(nullptr));
  header.checksum = header_checksum(header);
  header.segments_word = seal_word(0, kSegmentsSalt);
  header.generation_word = generation_word(0, CloseMark::kClean);
  mapping_.reserve(0, header.descriptors_offset);
  auto* target = at<PoolHeader>(0);
  std::memcpy(target, &header, sizeof header);
  std::memset(target->magic, 0, sizeof kMagic);
  data_offset_ = header.data_offset;
  capacity_bytes_ = capacity_bytes;
  map_ = SegmentMap(header);
  know_size(0);
  write_empty_tables();
  memory_.persist(target, sizeof header);  // everything, before the magic that makes it a pool
  std::memcpy(target->magic, kMagic, sizeof kMagic);
  memory_.persist(target->magic, sizeof kMagic);  // the pool exists from here on
  if (durability_ == Durability::kPower) mapping_.sync_metadata(true);
}

std::unique_ptr<PoolImpl> PoolImpl::open(Mapping mapping, const PoolOptions& options) {
  const bool lenient = options.lenient;
  if (lenient && !options.read_only) {
    throw Error(ErrorCode::kInvalidArgument,
                "a pool is opened lenient only if it is opened read-only");
  }
  PoolHeader stored{};
  mapping.read_at(0, &stored, sizeof stored);
  const PoolHeader header = read_header(mapping, lenient);
  const uint64_t capacity = capacity_of(header, mapping, lenient);
  const uint64_t wanted = wanted_capacity(header, capacity, mapping, options);
  uint64_t segments = 0;
  uint64_t generation = 0;
  const bool size_known = unseal_word(header.segments_word, kSegmentsSalt, segments);
  if (!size_known && !lenient) {
    throw corrupt_header(mapping.path(), "the pool's size in the header is damaged");
  }
  const bool generation_known = unseal_word(header.generation_word, kGenerationSalt, generation);
  if (!generation_known && !lenient) {
    throw corrupt_header(mapping.path(), "the pool's generation in the header is damaged");
  }
  const uint64_t most = (capacity - header.data_offset) / kSegmentBytes;
  if (lenient) {
    const uint64_t bytes = mapping.file_bytes();
    const uint64_t there =
        bytes < header.data_offset ? 0 : (bytes - header.data_offset) / kSegmentBytes;
    segments = SegmentMap(header).end_at(std::min({size_known ? segments : most, most, there}));
  }
  if (segments > most || SegmentMap(header).end_at(segments) != segments) {
    throw corrupt_header(mapping.path(), "the pool's size is none that its capacity allows");
  }
  const uint64_t end = header.data_offset + segments * kSegmentBytes;
  if (mapping.file_bytes() < (segments == 0 ? header.descriptors_offset : end)) {
    // Also of a lenient opening: there are no names.
    throw Error(ErrorCode::kTruncated,
                fmt::format("{}: has {} bytes, but its header says {}; the file was cut off: "
                            "restore it from a backup",
                            mapping.path(), mapping.file_bytes(), end));
  }
  mapping.map(wanted, options.huge_pages);
  if (mapping.is_unlocked()) {
    require_memory_for_copy(end, options.copy_bytes_max, mapping.path());
    freeze(mapping, header, stored, segments);
  }
  Durability durability = options.durability;
  const Domain needed = needed_domain(mapping.medium(), durability, mapping.path());
  const Domain domain = chosen_domain(needed, options, mapping.path());
  std::unique_ptr<PoolImpl> pool(new PoolImpl(std::move(mapping), domain, durability, options));
  pool->data_offset_ = header.data_offset;
  // What a lenient opening has mended is so in its private copy.
  constexpr size_t kFixedBytes = offsetof(PoolHeader, segments_word);
  if (lenient) std::memcpy(pool->at<PoolHeader>(0), &header, kFixedBytes);
  pool->capacity_bytes_ = capacity;
  pool->map_ = SegmentMap(header);
  pool->know_size(segments);
  pool->generation_ = pool->sealed_generation_ = generation >> 2;
  // What a damaged word says may be one less than the last generation, and a lock word that a dead
  // process has left in a node would never be free: far from what it can have been.
  if (!generation_known) pool->generation_ ^= uint64_t{1} << 31;
  pool->closed_before_ = static_cast<CloseMark>(generation & 3);
  pool->may_be_unflushed_ = domain == Domain::kLine && pool->closed_before_ != CloseMark::kSealed;
  // A process that died may have left stores that it never synced. They are in the kernel's pages,
  // and all that is judged from here on takes them to be durable: a power failure must not undo
  // them later.
  if (domain == Domain::kPage && pool->closed_before_ == CloseMark::kOpen && !pool->read_only()) {
    pool->sync();
  }
  // Whatever the mark says: the capacity is raised before the mark is changed. And recovery may
  // make the pool grow.
  if (!pool->read_only()) pool->persist_sizes();
  pool->heap_ = std::make_unique<Heap>(*pool);
  if (options.verify) {
    pool->check_seals([&](const std::string& what) { pool->throw_corrupt(what); });
  }
  pool->heap_->recover();
  // Before the transactions, whose ends may need the room.
  if (wanted > capacity) pool->raise_capacity(wanted);
  pool->transactions_ = std::make_unique<TransactionLog>(*pool);
  if (!lenient) {
    pool->check_directory();
    pool->index_names();
    pool->transactions_->open();
    Drop::finish_interrupted(*pool);
  } else {
    pool->index_names();
    try {
      pool->transactions_->open();
    } catch (
        const Error&) {  // NOLINT(bugprone-empty-catch): what stands in damaged records is lost
    }
  }
  pool->start_generation();
  if (!lenient) pool->transactions_->forget_dropped();
  // A crash may have come between a word and the version.
  if (is_extended(pool->header())) pool->extend_format();
  pool->serve_backups(options);
  pool->now_ready(options, pool->closed_before_ == CloseMark::kOpen);
  return pool;
}

void PoolImpl::serve_backups(const PoolOptions& options) {
  if (!options.serve_backups || read_only() || mapping_.file() < 0) return;
  live_ = std::make_unique<LiveService>(*this, mapping_.file());
}

void PoolImpl::start_generation() {
  ++generation_;
  open_ = true;
  auto* header = at<PoolHeader>(0);
  store_release(header->generation_word, generation_word(generation_, CloseMark::kOpen));
  memory_.persist(&header->generation_word, sizeof(uint64_t));  // before any change voids a seal
}

// Of a process that died, they may be in the caches only: segments that the one counts are about to
// be used, and the pool may grow to what the other says.
void PoolImpl::persist_sizes() {
  auto* header = at<PoolHeader>(0);
  memory_.flush(&header->capacity_word, sizeof(uint64_t));
  memory_.persist(&header->segments_word, sizeof(uint64_t));
}

// Nothing lies behind the former capacity yet: the table of the next extent gets its blocks, and is
// written, when the pool grows into it. So the word alone raises the capacity, and a crash leaves
// the one or the other.
void PoolImpl::raise_capacity(uint64_t bytes) {
  auto* header = at<PoolHeader>(0);
  store_release(header->capacity_word, seal_word(bytes / kSegmentBytes, kCapacitySalt));
  memory_.persist(&header->capacity_word, sizeof(uint64_t));  // before a segment beyond counts
  capacity_bytes_ = bytes;
}

// After the word: with the version alone the header would be damaged. Builds that know only the
// first version refuse the word as well, in words that fit less.
void PoolImpl::extend_format() {
  if (read_only() || format_version_of(header()) == kExtendedFormat) return;
  auto* word = at<uint64_t>(offsetof(PoolHeader, format_version));  // with header_bytes: one store
  store_release(*word, (load_acquire(*word) & ~uint64_t{0xffffffff}) | kExtendedFormat);
  memory_.persist(word, sizeof *word);  // before the pool is used: it may be closed in a moment
}

uint64_t PoolImpl::stepped_end(uint64_t segments) const {
  if (segments == 0 || header().growth_bytes < kHugePageBytes) return segments;
  // To the end of a huge page: the next growth begins one, which reserve() can then make whole.
  const uint64_t end = header().data_offset + segments * kSegmentBytes;
  // Not into a table.
  return map_.end_at(segments + (round_up(end, kHugePageBytes) - end) / kSegmentBytes);
}

void PoolImpl::grow_to(uint64_t least) {
  // A private copy of a file ends where the file does, but for what is to be finished there.
  if (read_only() && !FinishingScope::is_active())
    throw Error(ErrorCode::kPoolFull, "the pool was opened read-only");
  if (failed()) require_writable();  // throws
  const uint64_t before = segments();
  const uint64_t most = segments_max();
  if (before == most) throw Error(ErrorCode::kPoolFull, "at capacity");
  least = std::min(least, most);
  const uint64_t step = header().growth_bytes / kSegmentBytes;
  // A step that ends in a table ends before it, or, if it begins there, behind it with what is
  // needed.
  uint64_t end = std::max(least, map_.end_at(stepped_end(std::max(least, before + step))));
  end = std::min(most, end);
  const auto reserve = [&](uint64_t to) {
    map_.for_each_piece(before, to, [&](uint64_t first, uint64_t last) {
      mapping_.reserve(map_.descriptor_offset(first), (last - first) * sizeof(SegmentDescriptor));
      mapping_.reserve(data_offset_ + first * kSegmentBytes, (last - first) * kSegmentBytes);
    });
  };
  try {
    reserve(end);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNoSpace || end <= least) throw;
    end = least;  // what is needed may fit where a whole step does not
    reserve(end);
  }
  // The file system's own records of the new blocks, before the word that relies on them.
  if (durability_ == Durability::kPower) {
    try {
      mapping_.sync_metadata(false);
    } catch (const Error& error) {
      failed_.store(true, std::memory_order_relaxed);  // it may have met pages that others wrote
      throw Error(ErrorCode::kIo, error.what());       // never kNoSpace, whatever the reason
    }
  }
  map_.for_each_piece(before, end, [&](uint64_t first, uint64_t last) {
    for (uint64_t i = first; i < last; ++i) Heap::write_free(*this, i);
  });
  memory_.fence();  // the descriptors, before the word that counts them; the blocks are zero-filled
  auto* header = at<PoolHeader>(0);
  store_release(header->segments_word, seal_word(end, kSegmentsSalt));
  memory_.persist(&header->segments_word, sizeof(uint64_t));  // before a segment beyond is used
  know_size(end);
}

uint64_t PoolImpl::shrink() {
  require_writable();
  require_no_backup_of_thread("shrinking a pool");
  const std::lock_guard size(size_mutex_);
  // No structure is opened meanwhile, whose readers might look at blocks that are free by now.
  const std::lock_guard lock(uses_mutex_);
  require_unused();
  return heap_->shrink();
}

void PoolImpl::count_fewer(uint64_t segments) {
  // Whether persisting leaves something to sync().
  const bool syncs = memory_.domain() != Domain::kLine || mapping_.medium() == Medium::kFile;
  if (syncs) sync();  // all that is there, before the count that could outlive it
  auto* header = at<PoolHeader>(0);
  store_release(header->segments_word, seal_word(segments, kSegmentsSalt));
  memory_.persist(&header->segments_word, sizeof(uint64_t));  // before the file is cut
  if (syncs) sync();
  know_size(segments);
}

uint64_t PoolImpl::give_back(uint64_t before) {
  const uint64_t after = segments();
  const uint64_t data = header().data_offset;
  const bool anonymous = mapping_.medium() == perdure::Medium::kAnonymous;
  if (!anonymous && mapping_.file_bytes() > data) {  // also what a crash has left uncut
    before = std::max(before, (mapping_.file_bytes() - data) / kSegmentBytes);
    before = std::min(before, segments_max());
  }
  map_.for_each_piece(after, before, [&](uint64_t first, uint64_t last) {
    const uint64_t count = last - first;
    if (anonymous) mapping_.give_back(data + first * kSegmentBytes, count * kSegmentBytes);
    mapping_.give_back(map_.descriptor_offset(first), count * sizeof(SegmentDescriptor));
  });
  if (anonymous) return (before - after) * kSegmentBytes;
  // Without segments too it ends behind the descriptors: others may be looking at them.
  return mapping_.cut(data + after * kSegmentBytes);
}

void PoolImpl::note_growth() const noexcept {
  if (ready_ && !read_only()) tell(PoolEventKind::kGrown, "the pool has grown");
}

void PoolImpl::require_writable() const {
  if (failed_.load(std::memory_order_relaxed)) [[unlikely]] {
    throw Error(
        ErrorCode::kIo,
        fmt::format("{}: the medium has refused a write; close the pool, mend the medium and "
                    "open it again",
                    mapping_.path()));
  }
  if (abandoned_.load(std::memory_order_relaxed)) [[unlikely]] {
    throw Error(ErrorCode::kInUse,
                fmt::format("{}: the Pool object was destroyed while structures of it were open; "
                            "close structures before their pool",
                            mapping_.path()));
  }
  if (!read_only()) [[likely]]
    return;
  if (FinishingScope::is_active()) return;
  throw Error(ErrorCode::kReadOnly, fmt::format("{}: the pool is open read-only", mapping_.path()));
}

bool PoolImpl::on_huge_pages() const {
  const uint64_t end = end_offset();
  if (end - header().data_offset < kHugePageBytes) return false;
  const uint64_t seen = huge_pages_seen_.load(std::memory_order_relaxed);
  const uint64_t seen_end = seen & ~uint64_t{1};
  if (seen != 0 && (end > seen_end ? end - seen_end : seen_end - end) < kHugePageBytes) {
    return (seen & 1) != 0;
  }
  const bool huge = mapping_.on_huge_pages(header().data_offset, end);
  huge_pages_seen_.store(end | (huge ? 1 : 0), std::memory_order_relaxed);
  return huge;
}

PoolInfo PoolImpl::info() const {
  const std::shared_lock lock(size_mutex_);
  const Heap::Usage usage = heap_->usage();
  PoolInfo info{};
  info.path = mapping_.path();
  for (const uint8_t byte : header().uuid) info.uuid += fmt::format("{:02x}", byte);
  info.format_version = format_version_of(header());
  info.capacity_bytes = capacity_bytes();
  info.size_bytes = mapping_.occupied_bytes();
  info.allocated_bytes = usage.allocated_bytes;
  info.free_bytes = usage.free_bytes;
  info.high_water_bytes = header().data_offset + usage.high_water_segments * kSegmentBytes;
  info.generation = generation_;
  info.clean = closed_before_ != CloseMark::kOpen;
  info.sealed = closed_before_ == CloseMark::kSealed;
  info.huge_pages = on_huge_pages();
  info.read_only = read_only();
  info.medium = mapping_.medium();
  info.domain = memory_.domain();
  info.durability = durability_;
  info.serves_backups = live_ != nullptr && live_->is_answering();
  return info;
}

void PoolImpl::sync() const {
  try {
    mapping_.sync(end_offset());
  } catch (const Error& error) {
    failed_.store(true, std::memory_order_relaxed);  // a second attempt would not write these pages
    throw Error(ErrorCode::kIo, error.what());
  }
}

void PoolImpl::close() {
  require_no_backup_of_thread("closing a pool");
  {
    const std::lock_guard lock(uses_mutex_);
    require_unused();
  }
  if (live_) live_->stop();
  close_medium();
}

void PoolImpl::close_medium() {
  if (!open_ || read_only() || failed()) return;
  open_ = false;
  memory_.fence();  // all that was flushed, before the seals and the mark
  if (seal_on_close_) {
    heap_->seal(generation_);
    memory_.fence();  // the seals and what they cover, before the word that makes them count
  }
  // And all the rest of a file, since who finds the word syncs nothing.
  if (mapping_.medium() == perdure::Medium::kFile) sync();
  auto* header = at<PoolHeader>(0);
  store_release(
      header->generation_word,
      generation_word(generation_, seal_on_close_ ? CloseMark::kSealed : CloseMark::kClean));
  memory_.persist(&header->generation_word, sizeof(uint64_t));  // the mark, last
  if (mapping_.medium() == perdure::Medium::kFile) sync();
}

void PoolImpl::abandon() noexcept {
  if (live_) live_->stop();
  const std::lock_guard lock(uses_mutex_);
  abandoned_.store(true, std::memory_order_relaxed);
  close_if_abandoned();
}

void PoolImpl::close_if_abandoned() noexcept {
  if (!abandoned_.load(std::memory_order_relaxed) || !uses_.empty()) return;
  try {
    close_medium();
  } catch (...) {  // the next open recovers
  }
}

uint64_t PoolImpl::check_seals(const std::function<void(const std::string&)>& report) const {
  if (closed_before_ != CloseMark::kSealed) return 0;
  if (!mapping_.is_unlocked()) return heap_->check_seals(sealed_generation_, report);
  // Seals are of what the file holds: of a file that a writer has come to since, nothing is said.
  std::vector<std::string> told;
  const uint64_t found = heap_->check_seals(
      sealed_generation_, [&](const std::string& sentence) { told.push_back(sentence); });
  if (found > 0) {
    mapping_.require_frozen();
    PoolHeader now{};
    mapping_.read_at(0, &now, sizeof now);
    uint64_t generation = 0;
    if (!unseal_word(now.generation_word, kGenerationSalt, generation) ||
        generation >> 2 != sealed_generation_) {
      throw_written_meanwhile(mapping_);
    }
  }
  for (const std::string& sentence : told) report(sentence);
  return found;
}

uint64_t PoolImpl::check(const std::function<void(const std::string&)>& report) const {
  uint64_t found = heap_->check(report) + check_tables(report);
  if (read_only()) found += check_seals(report);
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  bool is_whole = header_checksum(header()) == header().checksum;
  if (lenient_) {  // which has mended it in memory
    PoolHeader stored{};
    mapping_.read_at(0, &stored, sizeof stored);
    is_whole = header_checksum(stored) == stored.checksum;
  }
  if (!is_whole) fail("header: the checksum does not hold");
  if (format_version_of(header()) == kExtendedFormat && !is_extended(header()))
    fail("header: it has nothing that its format version is for; structures may be missing");
  uint64_t value = 0;
  if (!unseal_word(header().segments_word, kSegmentsSalt, value) || value != segments()) {
    fail("header: the pool's size is damaged");
  }
  std::unordered_set<std::string> names;
  for (uint32_t i = 0; i < entries(); ++i) {
    const DirectoryEntry& entry = entry_at(i);
    if (lenient() && !is_sound(i)) {
      fail(fmt::format("root directory: entry {} is damaged", i));
      continue;
    }
    if (entry.in_use == 0) continue;
    const std::string name(entry.name, ::strnlen(entry.name, sizeof entry.name));
    if (entry.root < header().data_offset || entry.root >= end_offset()) {
      fail(fmt::format("root directory: '{}' has its root outside the pool", name));
    }
    if (entry.in_use == kEntryInUse && !names.insert(name).second)
      fail(fmt::format("root directory: '{}' is there twice", name));
  }
  return found;
}

}  // namespace pm
}  // namespace perdure
