// What published code for persistent memory expects around it, to take it through its crashes: a
// pool at a fixed address, so that pointers in it stay valid, an allocator, roots, and locks that a
// restart releases. For structures under `perdure crash --program`; a header of its own, without
// libperdure. C++17.
//
//   perdure_shim::Pool pool(argv[1], 8 << 20);            // creates the file, or opens it again
//   auto* table = pool.root<Table>(0);                    // null at first
//   void* node = pool.allocate(sizeof(Node));             // durable: never handed out twice
//   pool.set_root(0, table);
//
// It is made to be simple, not fast: one lock, and blocks that were free at a crash are lost.
#ifndef PERDURE_LAB_SHIM_H
#define PERDURE_LAB_SHIM_H

#include <fcntl.h>
#include <immintrin.h>
#include <perdure/lab.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace perdure_shim {

constexpr size_t kLineBytes = 64;
constexpr size_t kRoots = 16;
constexpr uintptr_t kAddress = uintptr_t{0x510} << 32;  // where no kernel maps anything by itself

// Begins to write the lines of [address, address + bytes) to the memory; durable with the next
// fence().
inline void flush(const void* address, size_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(address) / kLineBytes * kLineBytes;
  for (uintptr_t line = first; line < reinterpret_cast<uintptr_t>(address) + bytes;
       line += kLineBytes) {
    _mm_clflush(reinterpret_cast<const void*>(line));
  }
}
// Whatever was flushed before is durable before anything that is stored afterwards.
inline void fence() { _mm_sfence(); }
// What is in [address, address + bytes) is durable on return.
inline void persist(const void* address, size_t bytes) {
  flush(address, bytes);
  fence();
}

// A file, mapped at `address` in every process. One Pool of an address at a time.
class Pool {
 public:
  // Opens the file, or creates it with `bytes`, all zero. Throws std::runtime_error if it cannot be
  // mapped there, or was another's.
  Pool(const char* path, size_t bytes, uintptr_t address = kAddress) {
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) throw std::runtime_error(std::string(path) + ": cannot be opened");
    struct stat status{};
    const bool sized = fstat(file, &status) == 0 &&
                       (status.st_size > 0 || ftruncate(file, static_cast<off_t>(bytes)) == 0);
    bytes_ = status.st_size > 0 ? static_cast<size_t>(status.st_size) : bytes;
    void* mapped = !sized ? MAP_FAILED
                          : mmap(reinterpret_cast<void*>(address), bytes_, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
    close(file);
    if (mapped != reinterpret_cast<void*>(address)) {
      if (mapped != MAP_FAILED) munmap(mapped, bytes_);
      throw std::runtime_error(std::string(path) + ": cannot be mapped at its address");
    }
    header_ = static_cast<Header*>(mapped);
    perdure_lab_mark_region(header_, bytes_, path);
    begin();
  }
  ~Pool() {
    perdure_lab_unmark_region(header_);
    munmap(header_, bytes_);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // What comes now is no part of recovery: crashes in it are not explored where this is a check.
  void recovered() { perdure_lab_unmark_region(header_); }

  // How often it was opened: what a lock compares with, to know that its holder is dead.
  uint64_t generation() const { return header_->generation; }

  // A block of zeros, aligned to lines. It is not lost to a crash that comes later, and never
  // handed out twice; one that nothing refers to after a crash is lost. Throws std::bad_alloc if
  // the pool is full.
  void* allocate(size_t bytes) {
    const std::lock_guard<std::mutex> guard(lock_);
    bytes = (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
    std::vector<void*>& free = free_[bytes];
    if (!free.empty()) {
      void* block = free.back();
      free.pop_back();
      clear(block, bytes);
      return block;
    }
    if (bytes > bytes_ - header_->used) throw std::bad_alloc();
    char* block = reinterpret_cast<char*>(header_) + header_->used;
    header_->used += bytes;
    persist(&header_->used, sizeof header_->used);  // before the caller can refer to the block
    return block;
  }
  // The block is free for the rest of this process. Nothing durable may refer to it any more.
  void release(void* block, size_t bytes) {
    const std::lock_guard<std::mutex> guard(lock_);
    free_[(bytes + kLineBytes - 1) / kLineBytes * kLineBytes].push_back(block);
  }

  template <typename T>
  T* root(size_t number) const {
    return static_cast<T*>(header_->roots[number]);
  }
  // Durable on return; what it refers to must be so before.
  void set_root(size_t number, void* address) {
    header_->roots[number] = address;
    persist(&header_->roots[number], sizeof header_->roots[number]);
  }

 private:
  // At the beginning of the file. `used` is a multiple of lines.
  struct alignas(kLineBytes) Header {
    uint64_t magic;
    uint64_t used;
    uint64_t generation;
    void* roots[kRoots];
  };
  static constexpr uint64_t kMagic = 0x6d69687365727570;  // "pureshim"

  void begin() {
    if (header_->magic == 0) {
      header_->used = sizeof(Header);
      persist(header_, sizeof *header_);  // before the magic, which says that it is set up
      header_->magic = kMagic;
    } else if (header_->magic != kMagic || header_->used > bytes_) {
      throw std::runtime_error("the file is no pool of perdure_shim, or damaged");
    }
    ++header_->generation;
    persist(header_, sizeof *header_);  // before a lock can hold the generation
  }

  static void clear(void* block, size_t bytes) {
    auto* words = static_cast<uint64_t*>(block);
    for (size_t i = 0; i < bytes / sizeof *words; ++i) words[i] = 0;
    persist(block, bytes);  // before the caller can refer to the block
  }

  Header* header_;
  size_t bytes_;
  std::mutex lock_;
  std::map<size_t, std::vector<void*>> free_;
};

// A lock within persistent memory. Whoever died while it held it has released it: it belongs to a
// process, by the pool's generation.
class RestartLock {
 public:
  void lock(const Pool& pool) {
    const uint64_t own = pool.generation();
    uint64_t seen = holder_.load(std::memory_order_relaxed);
    do {
      while (seen == own) {
        _mm_pause();
        seen = holder_.load(std::memory_order_relaxed);
      }
    } while (!holder_.compare_exchange_weak(seen, own, std::memory_order_acquire));
  }
  void unlock() { holder_.store(0, std::memory_order_release); }

 private:
  std::atomic<uint64_t> holder_;
};

}  // namespace perdure_shim

#endif
