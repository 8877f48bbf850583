#include "pm/inspect.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "pm/header.h"
#include "pm/heap_blocks.h"
#include "pm/pool_impl.h"
#include "pm/segments.h"

namespace perdure::pm {

namespace {

// A writer that changes names and sizes without a pause for so long is reported.
constexpr std::chrono::seconds kPatience{5};

// What is in use, by the descriptors.
struct Use {
  uint64_t allocated_bytes = 0;
  uint64_t end = 0;  // behind the last segment in use

  bool operator==(const Use&) const = default;
};

// What was read does not fit together: a writer was at work between two reads, or the pool is
// damaged.
struct Unfit {
  Error error;
};

bool is_same(const PoolHeader& one, const PoolHeader& other) {
  return std::memcmp(static_cast<const void*>(&one), static_cast<const void*>(&other),
                     sizeof(PoolHeader)) == 0;
}

class Inspector {
 public:
  explicit Inspector(const std::string& path) : file_(Mapping::look_at_file(path)) {}

  PoolInspection run();

 private:
  // All that a change of structures or sizes touches. Throws Unfit, Error.
  PoolInspection look();
  PoolHeader header_twice();
  std::vector<DirectoryEntry> directory(const PoolHeader& header, uint64_t end) const;
  Use use(const PoolHeader& header, uint64_t segments) const;
  void describe(const PoolHeader& header, uint64_t segments, uint64_t generation,
                PoolInfo& info) const;
  [[noreturn]] void throw_unfit(const std::string& what) const {
    throw Unfit{corrupt_header(file_.path(), what)};
  }

  Mapping file_;
};

PoolHeader Inspector::header_twice() {
  const auto read = [&] {
    try {
      return read_header(file_, false);
    } catch (const Error& error) {
      throw Unfit{error};
    }
  };
  const PoolHeader first = read();
  const PoolHeader second = read();
  if (!is_same(first, second)) throw_unfit("the header changes");
  return first;
}

// Entries in use, of the fixed part and of the blocks.
std::vector<DirectoryEntry> Inspector::directory(const PoolHeader& header, uint64_t end) const {
  std::vector<DirectoryEntry> used;
  const auto take = [&](const DirectoryEntry* entries, uint32_t count, uint32_t number) {
    for (uint32_t i = 0; i < count; ++i) {
      if (!is_sound_entry(entries[i], number + i)) {
        throw_unfit(fmt::format("entry {} of the root directory is damaged", number + i));
      }
      if (entries[i].in_use == kEntryInUse) used.push_back(entries[i]);
    }
  };
  std::vector<DirectoryEntry> fixed(kDirectoryEntries);
  file_.read_at(header.directory_offset, fixed.data(), fixed.size() * sizeof fixed[0]);
  take(fixed.data(), kDirectoryEntries, 0);
  // Blocks are never given back, so that a chain only becomes longer.
  uint64_t word = header.directory_word;
  std::vector<char> content(sizeof(DirectoryBlock));
  for (uint32_t number = 0; word != 0; ++number) {
    uint64_t offset = 0;
    const bool leads = number < kDirectoryBlocks && unseal_word(word, kDirectorySalt, offset) &&
                       offset >= header.data_offset && offset + sizeof(DirectoryBlock) <= end;
    const bool whole =
        leads && file_.read_at(offset, content.data(), content.size()) == content.size();
    const auto* block = reinterpret_cast<const DirectoryBlock*>(content.data());
    if (!whole || block->magic != kDirectoryBlockMagic || block->number != number ||
        block->checksum != block_checksum(*block)) {
      throw_unfit(fmt::format("block {} of the root directory is damaged", number));
    }
    take(block->entries, kDirectoryBlockEntries,
         kDirectoryEntries + number * kDirectoryBlockEntries);
    word = block->next;
  }
  return used;
}

Use Inspector::use(const PoolHeader& header, uint64_t segments) const {
  constexpr uint64_t kAtOnce = 4096;
  const SegmentMap map(header);
  std::vector<SegmentDescriptor> table(std::min(kAtOnce, std::max<uint64_t>(segments, 1)));
  Use use;
  map.for_each_piece(0, segments, [&](uint64_t first, uint64_t last) {
    for (uint64_t i = first, run_end = first; i < last; ++i) {
      const uint64_t place = (i - first) % kAtOnce;
      if (place == 0) {
        const uint64_t count = std::min(kAtOnce, last - i);
        file_.read_at(map.descriptor_offset(i), table.data(), count * sizeof table[0]);
      }
      if (i < run_end) continue;
      const SegmentDescriptor& descriptor = table[place];
      Segments::Content content;
      if (!Segments::parse(descriptor.word, i, last, content)) {
        throw_unfit(fmt::format("the descriptor of segment {} is damaged", i));
      }
      run_end = i + content.segments;
      if (content.kind == SegmentKind::kFree) continue;
      use.end = run_end;
      if (content.kind == SegmentKind::kRun) {
        use.allocated_bytes += content.segments * kSegmentBytes;
        continue;
      }
      uint64_t blocks = 0;
      for (const uint64_t bits : descriptor.bitmap)
        blocks += static_cast<uint64_t>(std::popcount(bits));
      use.allocated_bytes += std::min<uint64_t>(blocks, HeapBlocks::blocks_in(content.size_class)) *
                             HeapBlocks::class_bytes(content.size_class);
    }
  });
  return use;
}

void Inspector::describe(const PoolHeader& header, uint64_t segments, uint64_t generation,
                         PoolInfo& info) const {
  info.path = file_.path();
  for (const uint8_t byte : header.uuid) info.uuid += fmt::format("{:02x}", byte);
  info.format_version = header.format_version;
  info.capacity_bytes = capacity_of(header, file_, false);
  info.size_bytes = file_.occupied_bytes();
  info.generation = generation >> 2;
  const auto mark = static_cast<CloseMark>(generation & 3);
  info.clean = mark != CloseMark::kOpen;
  info.sealed = mark == CloseMark::kSealed;
  info.read_only = true;
  info.medium = file_.medium();
  info.durability = Durability::kBest;
  info.domain = needed_domain(info.medium, info.durability, info.path);
  info.high_water_bytes = header.data_offset + segments * kSegmentBytes;
}

PoolInspection Inspector::look() {
  PoolInspection found{};
  found.open_to_write = file_.has_writer();
  const PoolHeader header = header_twice();
  uint64_t segments = 0;
  uint64_t generation = 0;
  if (!unseal_word(header.segments_word, kSegmentsSalt, segments) ||
      !unseal_word(header.generation_word, kGenerationSalt, generation)) {
    throw_unfit("a word of the header is damaged");
  }
  const SegmentMap map(header);
  PoolInfo& info = found.info;
  try {
    describe(header, segments, generation, info);
  } catch (const Error& error) {
    throw Unfit{error};
  }
  // By the number first: of a damaged one the bytes might be few again.
  if (segments > info.capacity_bytes / kSegmentBytes ||
      header.data_offset + segments * kSegmentBytes > info.capacity_bytes ||
      map.end_at(segments) != segments) {
    throw_unfit("the pool's size is none that its capacity allows");
  }
  const uint64_t end = header.data_offset + segments * kSegmentBytes;
  const uint64_t file_bytes = file_.file_bytes();
  if (file_bytes < (segments == 0 ? header.descriptors_offset : end)) {
    throw Unfit{Error(ErrorCode::kTruncated,
                      fmt::format("{}: has {} bytes, but its header says {}; the file was cut off: "
                                  "restore it from a backup",
                                  info.path, file_bytes, end))};
  }
  const auto names = directory(header, end);
  const Use used = use(header, segments);
  found.exact = use(header, segments) == used;
  info.allocated_bytes = used.allocated_bytes;
  info.free_bytes = map.count(0, segments) * kSegmentBytes - used.allocated_bytes;
  info.high_water_bytes = header.data_offset + used.end * kSegmentBytes;
  // The same names once more, and the same sizes: they were so at one moment.
  const auto again = directory(header, end);
  const PoolHeader after = header_twice();
  if (!is_same(header, after) || names.size() != again.size() ||
      (!names.empty() &&
       std::memcmp(names.data(), again.data(), names.size() * sizeof names[0]) != 0)) {
    throw_unfit("the root directory changes");
  }
  std::set<std::string> met;
  for (const DirectoryEntry& entry : names) {
    if (!met.insert(entry.name).second) {
      throw_unfit(fmt::format("root directory: '{}' is there twice", entry.name));
    }
    found.structures.push_back(
        {entry.name, entry.type, kind_name(entry.key_kind), kind_name(entry.value_kind)});
  }
  found.open_to_write = found.open_to_write || file_.has_writer();
  return found;
}

PoolInspection Inspector::run() {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (int attempt = 0;; ++attempt) {
    try {
      return look();
    } catch (const Unfit& unfit) {
      const bool writer = file_.has_writer();
      // A writer may have come and gone, so once more without one.
      if (!writer && attempt >= 3)
        throw unfit.error;  // NOLINT(misc-throw-by-value-catch-by-reference)
      if (std::chrono::steady_clock::now() > until) {
        throw Error(ErrorCode::kLocked,
                    fmt::format("{}: a process that has the pool open changes what is looked at "
                                "all the time ({}); try again",
                                file_.path(), unfit.error.what()));
      }
      PoolImpl::pause();
    }
  }
}

}  // namespace

PoolInspection inspect(const std::string& path) { return Inspector(path).run(); }

}  // namespace perdure::pm
