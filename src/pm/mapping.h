// The file behind a pool and its place in the address space.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "perdure/pool.h"
#include "pm/file_lock.h"

namespace perdure::pm {

inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// Maps `capacity` bytes of a file at a 2 MiB aligned address, once: growing the pool extends the
// file below a mapping that is already there. Touch only what reserve() has been called for.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept { swap(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    swap(other);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  // Makes a new, empty, locked file. Errors as Pool::create.
  static Mapping create_file(const std::string& path);
  // Opens and locks a file; nothing is mapped yet. Errors as Pool::open.
  static Mapping open_file(const std::string& path, bool read_only);
  // Opens a file to read_at(), with no lock: a writer may be at work. Errors as Pool::open, but
  // kLocked.
  static Mapping look_at_file(const std::string& path);
  static Mapping anonymous();

  // A file whose content lies in parts of others, all of which never change: a backup. Between
  // parts are zeros.
  struct Part {
    size_t file;      // which of `files`
    uint64_t at;      // in that
    uint64_t offset;  // in this one
    uint64_t bytes;
  };
  // Takes the descriptors over. `parts` in the order of their offsets.
  static Mapping of_parts(const std::string& path, std::vector<int> files, std::vector<Part> parts,
                          uint64_t bytes);

  // Maps the file's first `capacity_bytes` (read-only pools: a private copy), on huge pages if
  // these are wanted and the medium has them.
  void map(uint64_t capacity_bytes, bool huge_pages = true);

  // Gives blocks to [offset, offset + bytes) of the file, zero-filled if they are new, so that
  // touching them never fails. Of a read-only pool: to its private copy. Throws kNoSpace (nothing
  // has changed), kIo.
  void reserve(uint64_t offset, uint64_t bytes);

  // Ends the file at `offset` (on hugetlbfs: at the end of the huge page there), and gives the
  // blocks behind back: nobody touches them before reserve() is called for them again. Returns how
  // many bytes shorter it is. Throws kIo.
  uint64_t cut(uint64_t offset);
  // Gives back the blocks of the whole pages within what reserve() was called for; as above. What
  // the system refuses to take stays.
  void give_back(uint64_t offset, uint64_t bytes);

  // A file that is open read-only and not locked, since its permissions do not let it be: a writer
  // may come. freeze() gives the private copy memory of its own for a range; require_frozen()
  // throws kLocked if a writer is there.
  bool is_unlocked() const { return unlocked_; }
  void freeze(uint64_t offset, uint64_t bytes);
  void require_frozen() const;

  int file() const { return fd_; }  // -1: anonymous
  // Whether a writer has the file open.
  bool has_writer() const { return fd_ >= 0 && pm::has_writer(fd_, path_); }

  // Reads from the file without mapping it. Returns the bytes read.
  uint64_t read_at(uint64_t offset, void* target, uint64_t bytes) const;

  // Makes the file's size and blocks (and, for a new file, its name) survive a power failure.
  void sync_metadata(bool with_name) const;

  // msync of the whole range in use. Throws kIo.
  void sync(uint64_t bytes) const;

  void unmap_and_close() noexcept;
  void remove_file() noexcept;

  char* base() const { return base_; }
  // What is mapped: what map() was asked for, up to a whole huge page.
  uint64_t mapped_bytes() const { return capacity_bytes_; }
  perdure::Medium medium() const { return medium_; }
  const std::string& path() const { return path_; }
  uint64_t file_bytes() const;      // logical size; of anonymous memory 0
  uint64_t occupied_bytes() const;  // blocks in use
  // Whether any of [from, to) is on huge pages.
  bool on_huge_pages(uint64_t from, uint64_t to) const;
  bool read_only() const { return read_only_; }

 private:
  void swap(Mapping& other) noexcept;
  void detect_medium();
  void open_to_read();
  bool is_replaced() const;
  void map_parts();
  void* map_fixed(void* address, uint64_t bytes);
  void extend_private();
  // What the medium gives and takes blocks by.
  uint64_t granule() const;
  // Gives huge pages to the whole ones of [begin, end), which must be past the end of the file,
  // whatever the system's policy for tmpfs: lookups are bound by the TLB, and one huge page is
  // faster to make than the 512 small ones. What the kernel refuses is left to reserve().
  void make_huge_pages(uint64_t begin, uint64_t end);

  std::string path_;
  char* base_ = nullptr;
  void* region_ = nullptr;  // what mmap gave, before alignment
  uint64_t region_bytes_ = 0;
  uint64_t capacity_bytes_ = 0;
  uint64_t mapped_file_bytes_ = 0;  // when it was mapped
  uint64_t anonymous_bytes_ = 0;
  int fd_ = -1;  // of parts: the first of files_
  std::vector<int> files_;
  std::vector<Part> parts_;
  uint64_t parts_bytes_ = 0;
  bool read_only_ = false;
  bool unlocked_ = false;
  bool private_tail_ = false;  // read-only: memory is mapped behind the end of the file
  bool huge_pages_ = true;
  perdure::Medium medium_ = perdure::Medium::kAnonymous;
};

// The domain that `durability` needs on `medium`. Throws kDurability if the medium cannot give it.
// `durability` kBest is resolved to kProcess or kPower.
Domain needed_domain(perdure::Medium medium, Durability& durability, const std::string& path);

// The domain to use: `needed`, or what options or PERDURE_DOMAIN force. Throws kDurability if that
// is weaker than needed, kInvalidArgument for a bad PERDURE_DOMAIN.
Domain chosen_domain(Domain needed, const PoolOptions& options, const std::string& path);

}  // namespace perdure::pm
