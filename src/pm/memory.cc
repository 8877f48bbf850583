#include "pm/memory.h"

#include <cpuid.h>
#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <vector>

#include "perdure/error.h"
#include "pm/emulated_media.h"

namespace perdure::pm {

namespace {

struct PageRange {
  const void* owner;  // tells the pools apart: each fence waits for its own pool's pages
  uintptr_t begin;
  uintptr_t end;
};

// Pages flushed by this thread and not fenced yet. Ranges of several pools may be in it.
thread_local std::vector<PageRange> pending_pages;

EmulatedMedia* media_in_use = nullptr;

}  // namespace

FlushKind detect_flush_kind() {
  static const FlushKind kind = [] {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    const bool leaf = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0;
    const bool clwb = leaf && (ebx & (1U << 24)) != 0;
    const bool clflushopt = leaf && (ebx & (1U << 23)) != 0;
    const char* text = std::getenv("PERDURE_FLUSH");
    const std::string_view wish = text != nullptr ? text : "";
    // Told to a model, no instruction is carried out: the processor need not have it.
    if (observe::kEnabled && wish.empty()) return FlushKind::kClwb;
    if (wish == "clflush") return FlushKind::kClflush;
    if (wish == "clflushopt" && clflushopt) return FlushKind::kClflushopt;
    if (clwb) return FlushKind::kClwb;
    return clflushopt ? FlushKind::kClflushopt : FlushKind::kClflush;
  }();
  return kind;
}

bool prefers_nontemporal_lines() {
  static const bool preferred = [] {
    // Observed runs repeat exactly: their choice cannot hang on a stopwatch.
    if (observe::kEnabled) return std::getenv("PERDURE_STREAM") != nullptr;
    if (std::getenv("PERDURE_FLUSH") != nullptr) return false;
    constexpr size_t kLines = 64;
    constexpr int kRounds = 9;
    alignas(kLineBytes) static unsigned char lines[kLines * kLineBytes];
    alignas(kLineBytes) unsigned char image[kLineBytes] = {};
    const auto median_of = [&](auto persist_line) {
      std::array<std::chrono::steady_clock::duration, kRounds> times;
      for (auto& time : times) {
        const auto begin = std::chrono::steady_clock::now();
        for (size_t i = 0; i < kLines; ++i) persist_line(lines + i * kLineBytes);
        time = std::chrono::steady_clock::now() - begin;
      }
      std::sort(times.begin(), times.end());
      return times[kRounds / 2];
    };
    // The instructions themselves: an emulated medium, if there is one, has no part in it.
    const Memory memory(Domain::kLine);
    const auto flushed = median_of([&](unsigned char* line) {
      std::memcpy(line, image, sizeof image);
      memory.flush_lines(line, sizeof image);
      _mm_sfence();
    });
    const auto streamed = median_of([&](unsigned char* line) {
      Memory::stream_lines(line, image, sizeof image);
      _mm_sfence();
    });
    return streamed < flushed;
  }();
  return preferred;
}

void emulate_media(EmulatedMedia* media) { media_in_use = media; }

EmulatedMedia* emulated_media() { return media_in_use; }

Memory::Primitives Memory::primitives_of(Domain domain) {
  if (domain == Domain::kPage) return Primitives::kPage;
  if (media_in_use != nullptr && media_in_use->serves(domain)) return Primitives::kEmulated;
  return domain == Domain::kLine ? Primitives::kLine : Primitives::kByte;
}

void Memory::flush_slowly(const void* address, size_t bytes) const {
  if (primitives_ == Primitives::kPage) {
    remember_pages(address, bytes);
    return;
  }
  if (domain_ == Domain::kLine) flush_lines(address, bytes);
  if (media_in_use != nullptr) {
    media_in_use->written_back(reinterpret_cast<uintptr_t>(address), bytes);
  }
}

void Memory::stream_slowly(void* target, const void* source, size_t bytes) const {
  stream_lines(target, source, bytes);
  if (media_in_use != nullptr) {
    media_in_use->written_back(reinterpret_cast<uintptr_t>(target), bytes);
  }
}

void Memory::fence_slowly() const {
  if (failed()) {
    throw Error(
        ErrorCode::kIo,
        "the medium has refused a write before; close the pool, mend the medium and open it "
        "again");
  }
  if (primitives_ == Primitives::kPage) {
    sync_pages();
  } else if (media_in_use != nullptr) {
    try {
      media_in_use->fenced();
    } catch (...) {
      if (failed_ != nullptr) failed_->store(true, std::memory_order_relaxed);
      throw;
    }
  }
}

void Memory::remember_pages(const void* address, size_t bytes) const {
  if (bytes == 0) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address) & ~(kPageBytes - 1);
  const uintptr_t end =
      (reinterpret_cast<uintptr_t>(address) + bytes + kPageBytes - 1) & ~(kPageBytes - 1);
  if (!pending_pages.empty()) {
    PageRange& last = pending_pages.back();
    if (last.owner == failed_ && begin >= last.begin && begin <= last.end) {
      last.end = std::max(last.end, end);
      return;
    }
  }
  try {
    pending_pages.push_back({failed_, begin, end});
  } catch (const std::bad_alloc&) {
    sync_range(begin, end);  // now: what is half done must not end for want of memory
  }
}

void Memory::sync_pages() const {
  const auto others = std::partition(pending_pages.begin(), pending_pages.end(),
                                     [&](const PageRange& one) { return one.owner != failed_; });
  // In place, for a fence needs no memory.
  std::sort(others, pending_pages.end(),
            [](const PageRange& a, const PageRange& b) { return a.begin < b.begin; });
  const struct Forget {
    std::vector<PageRange>::iterator from;
    ~Forget() { pending_pages.erase(from, pending_pages.end()); }
  } forget{others};
  for (auto range = others; range != pending_pages.end();) {
    PageRange merged = *range++;
    while (range != pending_pages.end() && range->begin <= merged.end) {
      merged.end = std::max(merged.end, (range++)->end);
    }
    sync_range(merged.begin, merged.end);
  }
}

void Memory::sync_range(uintptr_t begin, uintptr_t end) const {
  if (msync(reinterpret_cast<void*>(begin), end - begin, MS_SYNC) == 0) return;
  // Pages of a pool that an operation flushed, failed, and closed.
  if (errno == ENOMEM) return;
  const int reason = errno;
  if (failed_ != nullptr) failed_->store(true, std::memory_order_relaxed);
  // Never kNoSpace, whatever the reason: that would promise that nothing has changed.
  throw Error(ErrorCode::kIo,
              fmt::format("the mapped pool: msync failed: {}; close the pool, mend the "
                          "medium and open it again",
                          std::strerror(reason)));
}

}  // namespace perdure::pm
