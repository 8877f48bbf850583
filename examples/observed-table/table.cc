#include "table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace observed_table {
namespace {

constexpr uint64_t kMagic = 0x656c626174736f21;

// clwb, written so that any assembler takes it.
void flush(const void* address) {
  asm volatile(".byte 0x66; xsaveopt %0"
               : "+m"(*(volatile char*)(reinterpret_cast<uintptr_t>(address) & ~uintptr_t{63})));
}

void fence() { asm volatile("sfence" ::: "memory"); }

void persist(const void* address) {
  flush(address);
  fence();
}

// Whole lines to zero, past the caches.
void clear_lines(void* begin, size_t bytes) {
  auto* word = static_cast<uint64_t*>(begin);
  for (size_t i = 0; i < bytes / 8; ++i) {
    asm volatile("movnti %1, %0" : "=m"(word[i]) : "r"(uint64_t{0}));
  }
  fence();
}

void acquire(uint32_t* lock) {
  for (;;) {
    uint32_t seen = 0;
    asm volatile("lock; cmpxchgl %2, %1" : "+a"(seen), "+m"(*lock) : "r"(1U) : "cc", "memory");
    if (seen == 0) return;
    asm volatile("rep; nop" ::: "memory");
  }
}

void release(uint32_t* lock) {
  asm volatile("" ::: "memory");
  *static_cast<volatile uint32_t*>(lock) = 0;
}

class Guard {
 public:
  explicit Guard(Bucket* group) : lock_(&group->lock) { acquire(lock_); }
  ~Guard() { release(lock_); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  uint32_t* lock_;
};

Bucket* group_of(const Table* table, uint64_t key) {
  const uint64_t hash = (key ^ (key >> 31)) * 0x9e3779b97f4a7c15;
  return table->buckets + (hash >> 32) % table->header->groups * kBucketsPerGroup;
}

struct Place {
  Bucket* bucket = nullptr;
  int slot = 0;
};

bool holds(const Bucket& bucket, int slot) { return (bucket.valid & (1U << slot)) != 0; }

Place find_key(Bucket* group, uint64_t key) {
  for (Bucket* bucket = group; bucket < group + kBucketsPerGroup; ++bucket) {
    for (int slot = 0; slot < Bucket::kSlots; ++slot) {
      if (holds(*bucket, slot) && bucket->slots[slot].key == key) return {bucket, slot};
    }
  }
  return {};
}

Place find_room(Bucket* group) {
  for (Bucket* bucket = group; bucket < group + kBucketsPerGroup; ++bucket) {
    for (int slot = 0; slot < Bucket::kSlots; ++slot) {
      if (!holds(*bucket, slot)) return {bucket, slot};
    }
  }
  return {};
}

}  // namespace

bool map_table(const char* path, uint64_t groups, Table* table) {
  const int file = open(path, O_RDWR | O_CREAT, 0644);
  if (file < 0) return false;
  struct stat status{};
  size_t bytes = sizeof(Header) + groups * kBucketsPerGroup * sizeof(Bucket);
  bool ready = fstat(file, &status) == 0;
  if (ready && status.st_size > 0) {
    bytes = static_cast<size_t>(status.st_size);
  } else {
    ready = ready && ftruncate(file, static_cast<off_t>(bytes)) == 0;
  }
  void* base = MAP_FAILED;
  if (ready) base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (base == MAP_FAILED) return false;
  table->header = static_cast<Header*>(base);
  table->buckets = reinterpret_cast<Bucket*>(table->header + 1);
  table->bytes = bytes;
  return true;
}

void unmap_table(Table* table) { munmap(table->header, table->bytes); }

void recover(Table* table) {
  Header* header = table->header;
  if (header->magic != kMagic) {
    clear_lines(table->buckets, table->bytes - sizeof(Header));
    header->groups = (table->bytes - sizeof(Header)) / (kBucketsPerGroup * sizeof(Bucket));
    persist(header);  // the size, before the magic number that makes it count
    header->magic = kMagic;
    persist(header);
    return;
  }
  // A lock may have reached the medium along with its line. Not persisted: it would be released
  // again.
  for (uint64_t i = 0; i < header->groups; ++i) table->buckets[i * kBucketsPerGroup].lock = 0;
}

Outcome insert(Table* table, uint64_t key, uint64_t value) {
  Bucket* group = group_of(table, key);
  const Guard guard(group);
  if (find_key(group, key).bucket != nullptr) return Outcome::kPresent;
  const Place room = find_room(group);
  if (room.bucket == nullptr) return Outcome::kFull;
  auto& slot = room.bucket->slots[room.slot];
  slot.key = key;
  slot.value = value;
  persist(&slot);  // the record, before the bit that reveals it
  room.bucket->valid |= 1U << room.slot;
  persist(&room.bucket->valid);
  return Outcome::kDone;
}

bool update(Table* table, uint64_t key, uint64_t value) {
  Bucket* group = group_of(table, key);
  const Guard guard(group);
  const Place place = find_key(group, key);
  if (place.bucket == nullptr) return false;
  uint64_t* word = &place.bucket->slots[place.slot].value;
  *word = value;  // eight bytes, never torn
  persist(word);
  return true;
}

bool remove(Table* table, uint64_t key) {
  Bucket* group = group_of(table, key);
  const Guard guard(group);
  const Place place = find_key(group, key);
  if (place.bucket == nullptr) return false;
  place.bucket->valid &= ~(1U << place.slot);
  persist(&place.bucket->valid);
  return true;
}

bool find(const Table* table, uint64_t key, uint64_t* value) {
  Bucket* group = group_of(table, key);
  const Guard guard(group);
  const Place place = find_key(group, key);
  if (place.bucket == nullptr) return false;
  *value = place.bucket->slots[place.slot].value;
  return true;
}

void for_each(const Table* table, void (*visit)(uint64_t key, uint64_t value)) {
  const uint64_t count = table->header->groups * kBucketsPerGroup;
  for (uint64_t i = 0; i < count; ++i) {
    const Bucket& bucket = table->buckets[i];
    for (int slot = 0; slot < Bucket::kSlots; ++slot) {
      if (holds(bucket, slot)) visit(bucket.slots[slot].key, bucket.slots[slot].value);
    }
  }
}

}  // namespace observed_table
