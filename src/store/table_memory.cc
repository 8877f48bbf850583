#include "store/table_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "pm/mapping.h"

namespace perdure::store {

namespace {

constexpr uint64_t kSlabBytes = uint64_t{256} << 20;
constexpr uint64_t kLeast = uint64_t{128} << 10;  // below that a table is for the heap
constexpr uint64_t kPageBytes = 4096;

// Of all slabs. Never destroyed: a store may outlive all else.
std::mutex& mutex() {
  static auto* const one = new std::mutex;
  return *one;
}

uint64_t round_up_to(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

struct TableMemory::Slab {
  char* map;  // all that is mapped, more than `bytes`, as it begins anywhere
  uint64_t mapped_bytes;
  char* begin;
  uint64_t bytes;
  uint64_t used = 0;  // from its begin on
  uint64_t live = 0;  // of that
};

// Where tables are put. With the mutex.
TableMemory::Slab*& TableMemory::current() {
  static Slab* one = nullptr;
  return one;
}

// Null if there is no address space for it.
TableMemory::Slab* TableMemory::new_slab(uint64_t bytes) {
  const uint64_t mapped_bytes = bytes + pm::kHugePageBytes;
  auto slab = std::make_unique<Slab>();
  void* map = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  slab->map = static_cast<char*>(map);
  slab->mapped_bytes = mapped_bytes;
  const auto address = reinterpret_cast<uintptr_t>(map);
  slab->begin = slab->map + (round_up_to(address, pm::kHugePageBytes) - address);
  slab->bytes = bytes;
  ::madvise(slab->begin, bytes, MADV_HUGEPAGE);  // where the system has none, small ones do
  return slab.release();
}

TableMemory::TableMemory(uint64_t words) {
  bytes_ = round_up_to(words * sizeof(uint64_t), kPageBytes);
  if (bytes_ >= kLeast) {
    const std::lock_guard held(mutex());
    Slab*& now = current();
    if (bytes_ > kSlabBytes / 4) {
      slab_ = new_slab(round_up_to(bytes_, pm::kHugePageBytes));
    } else if (now != nullptr && now->bytes - now->used >= bytes_) {
      slab_ = now;
    } else if (Slab* made = new_slab(kSlabBytes); made != nullptr) {
      if (now != nullptr && now->live == 0) {
        ::munmap(now->map, now->mapped_bytes);
        delete now;
      }
      slab_ = now = made;
    }
    if (slab_ != nullptr) {
      words_ = reinterpret_cast<uint64_t*>(slab_->begin + slab_->used);
      slab_->used += bytes_;
      slab_->live += bytes_;
      return;
    }
  }
  of_heap_ = std::make_unique<uint64_t[]>(words);
  words_ = of_heap_.get();
}

void TableMemory::swap(TableMemory& other) noexcept {
  std::swap(of_heap_, other.of_heap_);
  std::swap(words_, other.words_);
  std::swap(slab_, other.slab_);
  std::swap(bytes_, other.bytes_);
}

void TableMemory::release() noexcept {
  if (slab_ == nullptr) return;
  const std::lock_guard held(mutex());
  slab_->live -= bytes_;
  if (slab_->live == 0 && slab_ != current()) {
    ::munmap(slab_->map, slab_->mapped_bytes);
    delete slab_;
    return;
  }
  if (slab_->live != 0) {
    ::madvise(words_, bytes_, MADV_DONTNEED);
    return;
  }
  // From the begin again: all of it is given back, or at least made zeros again, where the system
  // takes no memory back since it is locked (mlock(2), mlockall(2)).
  if (::madvise(slab_->begin, slab_->bytes, MADV_DONTNEED) != 0) {
    std::memset(slab_->begin, 0, slab_->used);
  }
  slab_->used = 0;
}

}  // namespace perdure::store
