// What checksums cost an update of a record in a page in PM: by the code that the database changes
// pages with, and beside it the same with checksums that are computed of all of the changed parts.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "buffer/btree/node.h"
#include "buffer/page.h"
#include "buffer/replay.h"
#include "common/permutation.h"
#include "common/ticks.h"
#include "lab/study/buffer/parts.h"
#include "pm/system_error.h"

namespace perdure::lab::study::buffer_pool {
namespace {

using buffer::LogRecord;
using buffer::Node;
using buffer::NodeContent;
using buffer::PageFormat;

// A file of pages, mapped.
class PagesInPm {
 public:
  PagesInPm(const std::string& path, uint64_t bytes, const PageFormat& format,
            uint64_t value_bytes);
  ~PagesInPm() { ::munmap(area_, bytes_); }
  PagesInPm(const PagesInPm&) = delete;
  PagesInPm& operator=(const PagesInPm&) = delete;

  const PageFormat& format() const { return format_; }
  uint64_t count() const { return bytes_ / format_.page_bytes(); }
  uint32_t records() const { return records_; }
  char* at(uint64_t page) const { return area_ + page * format_.page_bytes(); }

 private:
  PageFormat format_;
  uint64_t bytes_;
  uint32_t records_ = 0;  // in each page
  char* area_ = nullptr;
};

PagesInPm::PagesInPm(const std::string& path, uint64_t bytes, const PageFormat& format,
                     uint64_t value_bytes)
    : format_(format), bytes_(bytes / format.page_bytes() * format.page_bytes()) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) pm::throw_errno("open", path, errno);
  ::unlink(path.c_str());
  const int full = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes_));
  void* area =
      full != 0 ? MAP_FAILED
                : ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  const int reason = full != 0 ? full : errno;
  ::close(fd);
  if (area == MAP_FAILED) pm::throw_errno("map", path, reason);
  area_ = static_cast<char*>(area);
  ::madvise(area, bytes_, MADV_HUGEPAGE);
  // A leaf as full as it gets, and copies of it.
  const auto leaf = std::make_unique<char[]>(format.page_bytes());
  std::vector<NodeContent::Record> content;
  const uint64_t room = format.body_bytes() - sizeof(buffer::NodeHeader);
  records_ = static_cast<uint32_t>(room / (sizeof(buffer::Slot) + 8 + value_bytes));
  for (uint64_t i = 0; i < records_; ++i) {
    std::string key(8, '\0');
    const uint64_t ordered = __builtin_bswap64((i + 1) << 40 | mix_word(i) >> 24);
    std::memcpy(key.data(), &ordered, sizeof ordered);
    content.push_back({key, std::string(value_bytes, 'v'), 0});
  }
  Node(format_, leaf.get()).build(0, 0, content, 0, content.size());
  buffer::PageHeader& header = buffer::header_of(leaf.get());
  header.type = buffer::PageType::kNode;
  header.parts = static_cast<uint16_t>(format.parts());
  for (uint64_t page = 0; page < count(); ++page) {
    header.id = page + 1;
    format_.seal(leaf.get(), format_.all_parts());
    std::memcpy(at(page), leaf.get(), format.page_bytes());
  }
}

enum class How : uint8_t { kNone, kCopy, kKept, kComputed };

struct Variant {
  const char* name;
  uint32_t parts;
  How how;
};
constexpr std::array<Variant, 8> kVariants = {{{"no checksum", 1, How::kNone},
                                               {"copy to DRAM", 1, How::kCopy},
                                               {"checksum", 1, How::kKept},
                                               {"8 checksums", 8, How::kKept},
                                               {"32 checksums", 32, How::kKept},
                                               {"checksum, computed", 1, How::kComputed},
                                               {"8 checksums, computed", 8, How::kComputed},
                                               {"32 checksums, computed", 32, How::kComputed}}};

// Nanoseconds for each of `updates` updates of random records in random pages.
double time_updates(const PagesInPm& pages, How how, uint64_t value_bytes, uint64_t updates,
                    uint64_t seed, char* copy) {
  const PageFormat& format = pages.format();
  const std::string value(value_bytes, static_cast<char>('a' + seed % 26));
  LogRecord record{};
  record.header.op = static_cast<uint16_t>(buffer::Op::kReplace);
  record.header.value_bytes = static_cast<uint32_t>(value.size());
  record.value = value;
  const TickClock& clock = TickClock::get();
  uint64_t word = mix_word(seed);
  const uint64_t begin = clock.now();
  for (uint64_t i = 0; i < updates; ++i) {
    word = mix_word(word + i);
    const uint64_t number = (word >> 32) * pages.count() >> 32;
    char* page = pages.at(number);
    record.header.page = number + 1;
    record.header.slot = static_cast<uint16_t>((word & 0xffffffff) * pages.records() >> 32);
    if (how == How::kCopy) {
      std::memcpy(copy, page, format.page_bytes());
      page = copy;
    }
    const buffer::PartMask touched = buffer::apply_record(
        format, page, seed << 32 | i, record,
        how == How::kKept ? buffer::Checksums::kNow : buffer::Checksums::kLater);
    if (how == How::kKept || how == How::kComputed) format.seal(page, touched);
  }
  return static_cast<double>(clock.now() - begin) * clock.ns_per_tick() /
         static_cast<double>(updates);
}

double middle_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// All variants of one size of pages and of updates, in turns, so that what else the machine does
// hits them alike.
json measure_sizes(const Course& course, uint32_t page_bytes, uint64_t value_bytes) {
  constexpr uint64_t kRounds = 5;
  std::vector<std::unique_ptr<PagesInPm>> areas;
  for (const uint32_t parts : {1U, 8U, 32U}) {
    areas.push_back(std::make_unique<PagesInPm>(course.folder + "/pages",
                                                course.options.pages_bytes,
                                                PageFormat(page_bytes, parts), value_bytes));
  }
  const auto area_of = [&](const Variant& variant) -> PagesInPm& {
    return *areas[variant.parts == 1 ? 0 : variant.parts == 8 ? 1 : 2];
  };
  const auto copy = std::make_unique<char[]>(page_bytes);
  std::array<std::vector<double>, kVariants.size()> times;
  for (uint64_t round = 0; round < kRounds * course.options.repeats; ++round) {
    for (size_t i = 0; i < kVariants.size(); ++i) {
      const Variant& variant = kVariants[i];
      times[i].push_back(time_updates(area_of(variant), variant.how, value_bytes,
                                      course.options.updates / kRounds,
                                      course.options.seed * 1000 + round, copy.get()));
    }
  }
  json rows = json::array();
  const double none = middle_of(times[0]);
  for (size_t i = 0; i < kVariants.size(); ++i) {
    const Variant& variant = kVariants[i];
    uint64_t unsound = 0;
    for (uint64_t page = 0; variant.parts > 1 && page < area_of(variant).count(); ++page) {
      if (!area_of(variant).format().is_sound(area_of(variant).at(page), page + 1)) ++unsound;
    }
    rows.push_back({{"page_bytes", page_bytes},
                    {"update_bytes", value_bytes},
                    {"variant", variant.name},
                    {"ns", middle_of(times[i])},
                    {"ratio", middle_of(times[i]) / none},
                    {"unsound_pages", unsound}});
  }
  return rows;
}

}  // namespace

json measure_updates(const Course& course) {
  constexpr std::array<uint32_t, 4> kPages = {4096, 8192, 16384, 65536};
  constexpr std::array<uint64_t, 3> kUpdates = {8, 64, 512};
  json results = json::array();
  double done = 0;
  for (const uint32_t page_bytes : kPages) {
    for (const uint64_t value_bytes : kUpdates) {
      if (course.stop) return results;
      course.tell("updates of pages", done++ / (kPages.size() * kUpdates.size()));
      for (json& row : measure_sizes(course, page_bytes, value_bytes)) {
        results.push_back(std::move(row));
      }
    }
  }
  return results;
}

}  // namespace perdure::lab::study::buffer_pool
