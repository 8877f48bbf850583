#include "perdure/pool.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <ctime>

#include "perdure/version.h"
#include "pm/checksum.h"
#include "pm/pool_impl.h"
#include "pm/system_error.h"

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
Pool& Pool::operator=(Pool&&) noexcept = default;

Pool::~Pool() {
  if (!impl_) return;
  try {
    impl_->close();
  } catch (const Error&) {  // the next open recovers
  }
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

Pool Pool::open(const std::string& path, const PoolOptions& options) {
  return Pool(pm::PoolImpl::open(pm::Mapping::open_file(path, options.read_only), options));
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

void Pool::sync() { impl_->sync(); }
PoolInfo Pool::info() const { return impl_->info(); }
std::vector<StructureInfo> Pool::structures() const { return impl_->structures(); }
uint64_t Pool::check(const std::function<void(const std::string&)>& report) const {
  return impl_->check(report);
}

namespace pm {

namespace {

// Of what the byte layout depends on besides the format version.
uint64_t layout_hash() {
  const uint64_t sizes[] = {sizeof(PoolHeader),
                            sizeof(DirectoryEntry),
                            sizeof(SegmentDescriptor),
                            sizeof(Lane),
                            kDirectoryEntries,
                            kLanes,
                            kIntentsPerLane,
                            kSegmentBytes,
                            std::endian::native == std::endian::little ? 1U : 2U};
  return checksum64(sizes, sizeof sizes);
}

uint64_t header_checksum(const PoolHeader& header) {
  return checksum64(&header, offsetof(PoolHeader, checksum));
}

Error corrupt_header(const std::string& path, const std::string& what) {
  return {ErrorCode::kCorrupt,
          fmt::format("{}: {}; the file was damaged: restore it from a backup", path, what)};
}

// The header page as it is on the medium, judged before anything is mapped.
PoolHeader read_header(const Mapping& mapping) {
  const std::string& path = mapping.path();
  alignas(PoolHeader) uint8_t page[kHeaderBytes] = {};
  const uint64_t bytes = mapping.read_at(0, page, sizeof page);
  if (bytes == 0) {
    throw Error(ErrorCode::kEmpty, fmt::format("{}: is empty, not a pool; make one with "
                                               "`perdure pool create`",
                                               path));
  }
  PoolHeader header;
  std::memcpy(&header, page, sizeof header);
  if (bytes < sizeof header.magic || std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) {
    throw Error(ErrorCode::kForeign, fmt::format("{}: is not a Perdure pool", path));
  }
  if (bytes < kHeaderBytes) {
    throw Error(ErrorCode::kTruncated,
                fmt::format("{}: has {} bytes, less than the header of a pool", path, bytes));
  }
  if (header.format_version > kFormatVersion) {
    throw Error(ErrorCode::kVersion,
                fmt::format("{}: has format version {}, this build knows up to {}; use a newer "
                            "release",
                            path, header.format_version, kFormatVersion));
  }
  if (header_checksum(header) != header.checksum) {
    throw corrupt_header(path, "the checksum of the header does not hold");
  }
  if (header.format_version != kFormatVersion || header.layout_hash != layout_hash() ||
      header.header_bytes != kHeaderBytes) {
    throw Error(ErrorCode::kVersion,
                fmt::format("{}: was written with another layout of format version {}", path,
                            header.format_version));
  }
  const auto is_zero = [](uint8_t byte) { return byte == 0; };
  if (!std::all_of(page + offsetof(PoolHeader, segments_word) + sizeof(uint64_t),
                   page + offsetof(PoolHeader, generation_word), is_zero) ||
      !std::all_of(page + offsetof(PoolHeader, generation_word) + sizeof(uint64_t),
                   page + kHeaderBytes, is_zero)) {
    throw corrupt_header(path, "unused bytes of the header are not zero");
  }
  return header;
}

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

uint64_t seal_word(uint64_t value, uint64_t salt) {
  return value | (checksum64(&value, sizeof value, salt) & 0xffff) << 48;
}

bool unseal_word(uint64_t word, uint64_t salt, uint64_t& value) {
  value = word & 0xffffffffffff;
  return seal_word(value, salt) == word;
}

PoolImpl::PoolImpl(Mapping mapping, Domain domain, Durability durability)
    : mapping_(std::move(mapping)), memory_(domain, &failed_), durability_(durability) {}

PoolImpl::~PoolImpl() = default;

uint64_t PoolImpl::segments_max() const {
  return (header().capacity_bytes - header().data_offset) / kSegmentBytes;
}

std::unique_ptr<PoolImpl> PoolImpl::create(Mapping mapping, const PoolOptions& options) {
  try {
    const uint64_t capacity = options.capacity_bytes / kSegmentBytes * kSegmentBytes;
    mapping.map(capacity);
    Durability durability = options.durability;
    const Domain needed = needed_domain(mapping.medium(), durability, mapping.path());
    const Domain domain = chosen_domain(needed, options, mapping.path());
    std::unique_ptr<PoolImpl> pool(new PoolImpl(std::move(mapping), domain, durability));
    try {
      pool->write_header(options, capacity);
      const uint64_t reserved = round_up(std::min(options.reserve_bytes, capacity), kSegmentBytes);
      if (reserved > pool->header().data_offset) {
        pool->grow((reserved - pool->header().data_offset) / kSegmentBytes);
      }
      pool->heap_ = std::make_unique<Heap>(*pool);
      pool->heap_->recover();
      pool->start_generation();
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
  header.format_version = kFormatVersion;
  header.header_bytes = kHeaderBytes;
  header.layout_hash = layout_hash();
  if (::getrandom(header.uuid, sizeof header.uuid, 0) != sizeof header.uuid) {
    throw_errno("getrandom", mapping_.path(), errno);
  }
  header.capacity_bytes = capacity_bytes;
  header.growth_bytes = round_up(std::max(options.growth_bytes, kSegmentBytes), kSegmentBytes);
  header.directory_offset = kHeaderBytes;
  header.lanes_offset = header.directory_offset + kDirectoryEntries * sizeof(DirectoryEntry);
  header.descriptors_offset = header.lanes_offset + kLanes * sizeof(Lane);
  // An upper bound: the descriptors themselves take from the capacity.
  const uint64_t segments = capacity_bytes / kSegmentBytes;
  header.data_offset =
      round_up(header.descriptors_offset + segments * sizeof(SegmentDescriptor), kSegmentBytes);
  header.created_unix_s = static_cast<uint64_t>(std::time(nullptr));
  header.checksum = header_checksum(header);
  header.segments_word = seal_word(0, kSegmentsSalt);
  header.generation_word = seal_word(1, kGenerationSalt);  // generation 0, clean
  mapping_.reserve(0, header.descriptors_offset);
  auto* target = at<PoolHeader>(0);
  std::memcpy(target, &header, sizeof header);
  std::memset(target->magic, 0, sizeof kMagic);
  memory_.persist(target, sizeof header);  // everything, before the magic that makes it a pool
  std::memcpy(target->magic, kMagic, sizeof kMagic);
  memory_.persist(target->magic, sizeof kMagic);
  if (durability_ == Durability::kPower) mapping_.sync_metadata(true);
}

std::unique_ptr<PoolImpl> PoolImpl::open(Mapping mapping, const PoolOptions& options) {
  const PoolHeader header = read_header(mapping);
  uint64_t segments = 0;
  uint64_t generation = 0;
  if (!unseal_word(header.segments_word, kSegmentsSalt, segments)) {
    throw corrupt_header(mapping.path(), "the pool's size in the header is damaged");
  }
  if (!unseal_word(header.generation_word, kGenerationSalt, generation)) {
    throw corrupt_header(mapping.path(), "the pool's generation in the header is damaged");
  }
  const uint64_t end = header.data_offset + segments * kSegmentBytes;
  if (end > header.capacity_bytes) {
    throw corrupt_header(mapping.path(), "the pool's size exceeds its capacity");
  }
  if (mapping.file_bytes() < (segments == 0 ? header.descriptors_offset : end)) {
    throw Error(ErrorCode::kTruncated,
                fmt::format("{}: has {} bytes, but its header says {}; the file was cut off: "
                            "restore it from a backup",
                            mapping.path(), mapping.file_bytes(), end));
  }
  mapping.map(header.capacity_bytes);
  Durability durability = options.durability;
  const Domain needed = needed_domain(mapping.medium(), durability, mapping.path());
  const Domain domain = chosen_domain(needed, options, mapping.path());
  std::unique_ptr<PoolImpl> pool(new PoolImpl(std::move(mapping), domain, durability));
  pool->segments_.store(segments, std::memory_order_release);
  pool->generation_ = generation >> 1;
  pool->clean_before_ = (generation & 1) != 0;
  pool->heap_ = std::make_unique<Heap>(*pool);
  pool->heap_->recover();
  pool->check_directory();
  pool->start_generation();
  return pool;
}

void PoolImpl::start_generation() {
  ++generation_;
  open_ = true;
  auto* header = at<PoolHeader>(0);
  store_release(header->generation_word, seal_word(generation_ << 1, kGenerationSalt));
  memory_.persist(&header->generation_word, sizeof(uint64_t));
}

void PoolImpl::grow(uint64_t segments) {
  const uint64_t before = this->segments();
  const uint64_t left = segments_max() - before;
  if (left == 0) throw Error(ErrorCode::kPoolFull, "at capacity");
  const uint64_t step = header().growth_bytes / kSegmentBytes;
  uint64_t count = std::max(segments, step);
  if (step * kSegmentBytes >= kHugePageBytes) {
    // To the end of a huge page: the next growth begins one, which reserve() can then make whole.
    const uint64_t end = header().data_offset + (before + count) * kSegmentBytes;
    count += (round_up(end, kHugePageBytes) - end) / kSegmentBytes;
  }
  count = std::min(left, count);
  const auto reserve = [&](uint64_t n) {
    mapping_.reserve(header().descriptors_offset + before * sizeof(SegmentDescriptor),
                     n * sizeof(SegmentDescriptor));
    mapping_.reserve(header().data_offset + before * kSegmentBytes, n * kSegmentBytes);
  };
  try {
    reserve(count);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNoSpace || count <= segments) throw;
    count = std::min(left, segments);  // what is needed may fit where a whole step does not
    reserve(count);
  }
  // The file system's own records of the new blocks, before the word that relies on them.
  if (durability_ == Durability::kPower) mapping_.sync_metadata(false);
  auto* header = at<PoolHeader>(0);
  // The blocks are there (zero-filled) before the word that counts them.
  store_release(header->segments_word, seal_word(before + count, kSegmentsSalt));
  memory_.persist(&header->segments_word, sizeof(uint64_t));
  segments_.store(before + count, std::memory_order_release);
}

void PoolImpl::require_writable() const {
  if (failed_.load(std::memory_order_relaxed)) [[unlikely]] {
    throw Error(
        ErrorCode::kIo,
        fmt::format("{}: the medium has refused a write; close the pool, mend the medium and "
                    "open it again",
                    mapping_.path()));
  }
  if (!read_only()) [[likely]]
    return;
  throw Error(ErrorCode::kReadOnly, fmt::format("{}: the pool is open read-only", mapping_.path()));
}

PoolInfo PoolImpl::info() const {
  const Heap::Usage usage = heap_->usage();
  PoolInfo info{};
  info.path = mapping_.path();
  for (const uint8_t byte : header().uuid) info.uuid += fmt::format("{:02x}", byte);
  info.format_version = header().format_version;
  info.capacity_bytes = header().capacity_bytes;
  info.size_bytes = mapping_.occupied_bytes();
  info.allocated_bytes = usage.allocated_bytes;
  info.free_bytes = usage.free_bytes;
  info.high_water_bytes = header().data_offset + usage.high_water_segments * kSegmentBytes;
  info.generation = generation_;
  info.clean = clean_before_;
  info.huge_pages = mapping_.on_huge_pages();
  info.read_only = read_only();
  info.medium = mapping_.medium();
  info.domain = memory_.domain();
  info.durability = durability_;
  return info;
}

void PoolImpl::sync() const { mapping_.sync(end_offset()); }

void PoolImpl::close() {
  if (!open_ || read_only() || failed_.load(std::memory_order_relaxed)) return;
  open_ = false;
  auto* header = at<PoolHeader>(0);
  memory_.fence();
  store_release(header->generation_word, seal_word(generation_ << 1 | 1, kGenerationSalt));
  memory_.persist(&header->generation_word, sizeof(uint64_t));
  if (mapping_.medium() == perdure::Medium::kFile) sync();
}

uint64_t PoolImpl::check(const std::function<void(const std::string&)>& report) const {
  uint64_t found = heap_->check(report);
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  if (header_checksum(header()) != header().checksum) fail("header: the checksum does not hold");
  uint64_t value = 0;
  if (!unseal_word(header().segments_word, kSegmentsSalt, value) || value != segments()) {
    fail("header: the pool's size is damaged");
  }
  for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
    const DirectoryEntry& entry = directory()[i];
    if (entry.in_use == 0) continue;
    const std::string name(entry.name, ::strnlen(entry.name, sizeof entry.name));
    if (entry.root < header().data_offset || entry.root >= end_offset()) {
      fail(fmt::format("root directory: '{}' has its root outside the pool", name));
    }
    for (uint32_t j = 0; j < i; ++j) {
      if (directory()[j].in_use != 0 && name == directory()[j].name) {
        fail(fmt::format("root directory: '{}' is there twice", name));
      }
    }
  }
  return found;
}

}  // namespace pm
}  // namespace perdure
