#include "lab/crash/recorder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <set>
#include <utility>

#include "lab/seam/runtime.h"
#include "perdure/error.h"

namespace perdure::lab::crash {
namespace {

// Regions beyond this size are copied only as far as they are in memory.
constexpr uint64_t kCopyWholeBytesMax = uint64_t{64} << 20;
constexpr uint64_t kCopyPages = 64;  // at a time

bool all_zero(const unsigned char* bytes, uint64_t count) {
  uint64_t any = 0;
  for (; count >= 8; bytes += 8, count -= 8) {
    uint64_t word = 0;
    __builtin_memcpy(&word, bytes, sizeof word);
    any |= word;
  }
  while (count-- > 0) any |= *bytes++;
  return any == 0;
}

// Memory of this process, read without a fault.
class ReadableMemory {
 public:
  ReadableMemory()
      : file_(open("/proc/self/mem", O_RDONLY | O_CLOEXEC)),
        content_(kCopyPages * kImagePageBytes) {
    if (file_ >= 0) return;
    throw Error(ErrorCode::kIo, "/proc/self/mem: cannot read this process's memory");
  }
  ~ReadableMemory() { close(file_); }
  ReadableMemory(const ReadableMemory&) = delete;
  ReadableMemory& operator=(const ReadableMemory&) = delete;

  // The content of up to kCopyPages pages, until the next call, and how much of it can be read.
  std::pair<const unsigned char*, uint64_t> read(const unsigned char* from, uint64_t bytes) const {
    if (bytes == 0) return {from, 0};
#ifdef MADV_POPULATE_READ
    // Where the kernel can say that no load will fault, they are read where they are.
    const auto address = reinterpret_cast<uintptr_t>(from);
    if (address % kImagePageBytes == 0 &&
        madvise(const_cast<unsigned char*>(from), bytes, MADV_POPULATE_READ) == 0) {
      return {from, bytes};
    }
#endif
    const ssize_t got =
        pread(file_, content_.data(), bytes, static_cast<off_t>(reinterpret_cast<uintptr_t>(from)));
    return {content_.data(), static_cast<uint64_t>(std::max<ssize_t>(got, 0))};
  }

 private:
  int file_;
  mutable std::vector<unsigned char> content_;
};

// Visits the pages of a region that can be read, those that are in memory if it is large. Others
// are passed over: a mapping may reach beyond the end of its file, where a load would fault.
template <typename Visit>
void for_each_page(const unsigned char* base, uint64_t bytes, const Visit& visit) {
  const uint64_t pages = (bytes + kImagePageBytes - 1) / kImagePageBytes;
  std::vector<unsigned char> resident(pages, 1);
  if (bytes > kCopyWholeBytesMax) {
    mincore(const_cast<unsigned char*>(base), bytes, resident.data());
  }
  const ReadableMemory memory;
  for (uint64_t page = 0; page < pages;) {
    uint64_t count = 0;
    while (count < kCopyPages && page + count < pages && (resident[page + count] & 1) != 0) ++count;
    const uint64_t begin = page * kImagePageBytes;
    const uint64_t wanted = std::min(count * kImagePageBytes, bytes - begin);
    const auto [content, readable] = memory.read(base + begin, wanted);
    for (uint64_t at = 0; at < readable; at += kImagePageBytes) {
      visit(page + at / kImagePageBytes, content + at, std::min(kImagePageBytes, readable - at));
    }
    // A page that cannot be read, or need not, is passed over.
    page += std::max<uint64_t>((readable + kImagePageBytes - 1) / kImagePageBytes, 1);
  }
}

std::map<uint64_t, std::vector<unsigned char>> copy_region(const unsigned char* base,
                                                           uint64_t bytes) {
  std::map<uint64_t, std::vector<unsigned char>> copied;
  for_each_page(base, bytes, [&](uint64_t page, const unsigned char* content, uint64_t count) {
    if (all_zero(content, count)) return;
    copied.emplace_hint(copied.end(), page, std::vector(content, content + count));
  });
  return copied;
}

std::string program_path() {
  char path[PATH_MAX] = {};
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  return length > 0 ? path : "";
}

// Where the program itself (not its libraries) was loaded.
uint64_t load_address() {
  uint64_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        *static_cast<uint64_t*>(result) = info->dlpi_addr;
        return 1;  // the program comes first
      },
      &address);
  return address;
}

}  // namespace

Recorder::Recorder(uint64_t events_max) : events_max_(events_max) {
  const Quiet quiet;
  trace_.program = program_path();
  trace_.load_address = load_address();
}

void Recorder::on_region(void* base, uint64_t bytes, const char* name) {
  if (base_ != nullptr || ended_) return;
  base_ = static_cast<const unsigned char*>(base);
  trace_.region_name = name;
  trace_.region_bytes = bytes;
  trace_.base = copy_region(base_, bytes);
}

void Recorder::on_region_end(void* base) {
  if (base_ == base) end();
}

void Recorder::read_pending(ThreadState& thread) {
  if (!thread.pending) return;
  thread.pending = false;
  TraceEvent& event = trace_.events[thread.pending_event];
  event.data = trace_.data.size();
  trace_.data.insert(trace_.data.end(), base_ + event.offset, base_ + event.offset + event.bytes);
}

void Recorder::on_pause() {
  for (ThreadState& thread : threads_) read_pending(thread);
}

void Recorder::on(const Event& event) {
  if (base_ == nullptr || ended_) return;
  if (event.thread >= threads_.size()) threads_.resize(event.thread + 1);
  ThreadState& thread = threads_[event.thread];
  read_pending(thread);
  if (event.kind == EventKind::kAllocate || event.kind == EventKind::kLoad) return;
  if (trace_.events.size() >= events_max_) {
    overflown_ = true;
    return;
  }
  const auto base = reinterpret_cast<uint64_t>(base_);
  TraceEvent entry{.pc = event.pc,
                   .bytes = event.bytes,
                   .thread = event.thread,
                   .kind = event.kind,
                   .flush = event.flush};
  if (is_store(event.kind) || event.kind == EventKind::kFlush || event.kind == EventKind::kSync) {
    if (event.address < base || event.address >= base + trace_.region_bytes) {
      if (event.kind != EventKind::kUpdate) return;  // of another region
      entry.kind = EventKind::kLocked;
      entry.bytes = 0;
    } else {
      entry.offset = event.address - base;
      entry.bytes = std::min(event.bytes, trace_.region_bytes - entry.offset);
    }
  }
  if (event.kind == EventKind::kBegin) {
    entry.data = event.address;
    ++thread.operation;
    thread.in_operation = true;
  }
  entry.operation = thread.in_operation ? thread.operation : 0;
  if (event.kind == EventKind::kEnd) thread.in_operation = false;
  if (is_store(entry.kind)) {
    thread.pending = true;
    thread.pending_event = static_cast<uint32_t>(trace_.events.size());
  }
  trace_.events.push_back(entry);
}

std::string Recorder::first_unseen() const {
  // What the stores that were seen make of the pages that they went to; the others are as they
  // were.
  std::map<uint64_t, std::vector<unsigned char>> replayed;
  const auto page_of = [&](uint64_t number) -> std::vector<unsigned char>& {
    const auto [page, fresh] = replayed.try_emplace(number);
    if (!fresh) return page->second;
    const auto before = trace_.base.find(number);
    if (before != trace_.base.end()) page->second = before->second;
    page->second.resize(kImagePageBytes);
    return page->second;
  };
  for (const TraceEvent& event : trace_.events) {
    if (!is_store(event.kind)) continue;
    const unsigned char* bytes = trace_.stored(event);
    for (uint64_t done = 0; done < event.bytes;) {
      const uint64_t at = event.offset + done;
      const uint64_t within = at % kImagePageBytes;
      const uint64_t count = std::min(event.bytes - done, kImagePageBytes - within);
      std::copy_n(bytes + done, count, page_of(at / kImagePageBytes).data() + within);
      done += count;
    }
  }
  const std::vector<unsigned char> zeros(kImagePageBytes);
  const auto expected = [&](uint64_t number) -> const std::vector<unsigned char>& {
    if (const auto page = replayed.find(number); page != replayed.end()) return page->second;
    const auto page = trace_.base.find(number);
    return page == trace_.base.end() ? zeros : page->second;
  };
  std::string text;
  std::set<uint64_t> seen;
  const auto compare = [&](uint64_t number, const unsigned char* memory, uint64_t count) {
    const std::vector<unsigned char>& wanted = expected(number);
    count = std::min<uint64_t>(count, wanted.size());
    if (!text.empty() || std::memcmp(memory, wanted.data(), count) == 0) return;
    const uint64_t at =
        number * kImagePageBytes +
        static_cast<uint64_t>(std::mismatch(memory, memory + count, wanted.data()).first - memory);
    text = fmt::format(
        "the recording is incomplete: the byte at offset {:#x} of {} changed without a store that "
        "was seen (inline assembly or a masked vector store, or code that was not built observed)",
        at, trace_.region_name);
  };
  for_each_page(base_, trace_.region_bytes,
                [&](uint64_t number, const unsigned char* memory, uint64_t count) {
                  seen.insert(seen.end(), number);
                  compare(number, memory, count);
                });
  // Pages that cannot be read any more, or are no longer in memory, count as zeros.
  const auto compare_absent = [&](const auto& pages) {
    for (const auto& [number, page] : pages) {
      if (!seen.contains(number)) compare(number, zeros.data(), kImagePageBytes);
    }
  };
  compare_absent(replayed);
  compare_absent(trace_.base);
  return text;
}

void Recorder::end() {
  if (ended_) return;
  for (ThreadState& thread : threads_) read_pending(thread);
  ended_ = true;
  unseen_ = first_unseen();
}

Trace Recorder::finish() {
  const Quiet quiet;
  if (base_ == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "nothing was recorded: the program registered no region of persistent memory");
  }
  end();
  if (overflown_) {
    throw Error(ErrorCode::kTooLarge,
                fmt::format("the recording was cut off after {} events; record fewer operations",
                            events_max_));
  }
  if (!unseen_.empty()) throw Error(ErrorCode::kCorrupt, unseen_);
  trace_.operation_types.assign(1, "outside");
  for (uint64_t type = 1;; ++type) {
    std::string name = operation_name(type);
    if (name == "outside") break;
    trace_.operation_types.push_back(std::move(name));
  }
  return std::move(trace_);
}

}  // namespace perdure::lab::crash
