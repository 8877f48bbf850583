// A durable hash table as one writes it without thinking about the medium: records of 24 bytes, one
// after another behind a header of 40, so that two of five straddle cache lines; each field is made
// durable on its own, in place. It is correct, and it is what the structures of Perdure are not.
//
//   perdure-c++ -O2 -std=c++20 main.cc -o naive-table
//   perdure amp --program ./naive-table --records 4M --by-site -- FILE load 4000000
//
//   naive-table FILE load|a|b|c RECORDS
//
// makes FILE, loads so many records, and then, but for `load`, carries out as many operations: half
// inserts (a), 5 % inserts (b) or lookups only (c). Keys are uniform at random.
#include <fcntl.h>
#include <immintrin.h>
#include <perdure/lab.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

struct Header {
  uint64_t magic;
  uint64_t slots;
  uint64_t unused[3];
};
static_assert(sizeof(Header) == 40);

struct Record {
  uint64_t key;
  uint64_t value;
  uint64_t used;
};
static_assert(sizeof(Record) == 24);

// The field, durable when it returns. A field never straddles lines, a record may.
void persist(const uint64_t* field) {
  _mm_clflush(field);
  _mm_sfence();
}

// Bijective, so that all keys differ.
uint64_t key_of(uint64_t number) {
  number ^= number >> 32;
  number *= 0xd6e8feb86659fd93;
  number ^= number >> 32;
  number *= 0xd6e8feb86659fd93;
  return number ^ (number >> 32);
}

class Table {
 public:
  // False, with errno set, if the file cannot be made.
  bool create(const char* path, uint64_t slots) {
    bytes_ = sizeof(Header) + slots * sizeof(Record);
    const int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes_)) != 0) return false;
    void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (base == MAP_FAILED) return false;
    header_ = static_cast<Header*>(base);
    records_ = reinterpret_cast<Record*>(header_ + 1);
    perdure_lab_mark_region(base, bytes_, path);
    header_->slots = slots;
    persist(&header_->slots);
    header_->magic = 0x6e61697665;
    persist(&header_->magic);
    return true;
  }
  ~Table() {
    if (header_ == nullptr) return;
    perdure_lab_unmark_region(header_);
    munmap(header_, bytes_);
  }

  bool insert(uint64_t key, uint64_t value) {
    Record* record = find(key);
    if (record->used != 0) return false;
    record->key = key;
    persist(&record->key);
    record->value = value;
    persist(&record->value);
    // What makes the record valid comes last.
    record->used = 1;
    persist(&record->used);
    return true;
  }

  bool lookup(uint64_t key, uint64_t* value) const {
    const Record* record = find(key);
    if (record->used == 0) return false;
    *value = record->value;
    return true;
  }

 private:
  // The record of this key, or the free one where it would be.
  Record* find(uint64_t key) const {
    uint64_t slot = key * 0x9e3779b97f4a7c15 % header_->slots;
    while (records_[slot].used != 0 && records_[slot].key != key) {
      if (++slot == header_->slots) slot = 0;
    }
    return records_ + slot;
  }

  Header* header_ = nullptr;
  Record* records_ = nullptr;
  size_t bytes_ = 0;
};

bool insert(Table& table, uint64_t number) {
  const uint64_t key = key_of(number);
  perdure_lab_begin("insert", 16);
  const bool fresh = table.insert(key, number);
  perdure_lab_end();
  return fresh;
}

bool lookup(const Table& table, uint64_t number) {
  const uint64_t key = key_of(number);
  uint64_t value = 0;
  perdure_lab_begin("lookup", 0);
  const bool found = table.lookup(key, &value);
  perdure_lab_end();
  return found && value == number;
}

// Of each 100 operations so many are inserts; -1: none but the load.
int inserts_of(std::string_view workload) {
  if (workload == "a") return 50;
  if (workload == "b") return 5;
  return workload == "c" ? 0 : -1;
}

bool run(Table& table, uint64_t records, int inserts) {
  for (uint64_t i = 0; i < records; ++i) {
    if (!insert(table, i)) return false;
  }
  if (inserts < 0) return true;
  // What the load left in the caches is not charged to what follows.
  if (perdure_lab_reset != nullptr) perdure_lab_reset();
  uint64_t fresh = records;
  for (uint64_t i = 0; i < records; ++i) {
    const bool right = static_cast<int>(key_of(~i) % 100) < inserts
                           ? insert(table, fresh++)
                           : lookup(table, key_of(i) % records);
    if (!right) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view workload = argc == 4 ? argv[2] : "";
  const uint64_t records = argc == 4 ? std::strtoull(argv[3], nullptr, 10) : 0;
  if (records == 0 || (workload != "load" && inserts_of(workload) < 0)) {
    std::fputs("usage: naive-table FILE load|a|b|c RECORDS\n", stderr);
    return 2;
  }
  Table table;
  // Two thirds full at most, with what workload a adds.
  if (!table.create(argv[1], records * 9 / 4 + 16)) {
    std::perror(argv[1]);
    return 1;
  }
  if (run(table, records, inserts_of(workload))) return 0;
  std::fputs("naive-table: an operation gave a wrong answer\n", stderr);
  return 1;
}
