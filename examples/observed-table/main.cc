// Drives the table for the instruments: says where its persistent memory is and where an operation
// begins and ends. That is all that had to be written; table.cc is as it was.
//
//   observed-table FILE run OPERATIONS   inserts, updates and removes; prints what it counted, if a
//                                        model is running
//   observed-table FILE list             recovers and prints all keys and values
#include <perdure/lab.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "table.h"

namespace {

using observed_table::Outcome;
using observed_table::Table;

constexpr uint64_t kGroups = 512;

// Marks what happens in its life as one operation.
class Operation {
 public:
  Operation(const char* type, size_t payload_bytes) { perdure_lab_begin(type, payload_bytes); }
  ~Operation() { perdure_lab_end(); }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
};

// Of every four operations two insert, one updates and one removes what an earlier one inserted.
bool run_operation(Table* table, uint64_t i) {
  const uint64_t earlier = i / 8 * 4 + 1;
  switch (i % 4) {
    case 2: {
      const Operation operation("update", 8);
      observed_table::update(table, earlier, i);
      return true;
    }
    case 3: {
      const Operation operation("remove", 8);
      observed_table::remove(table, earlier + 4);
      return true;
    }
    default: {
      const Operation operation("insert", 16);
      return observed_table::insert(table, i, i * i) != Outcome::kFull;
    }
  }
}

void print_counter(const char* type, const char* name) {
  double figure = 0;
  if (perdure_lab_counter == nullptr || perdure_lab_counter(type, name, &figure) != 0) return;
  std::printf("%s of %s: %.0f\n", name, type, figure);
}

int run(Table* table, uint64_t operations) {
  for (uint64_t i = 0; i < operations; ++i) {
    if (run_operation(table, i)) continue;
    std::fprintf(stderr, "observed-table: full after %" PRIu64 " operations\n", i);
    return 1;
  }
  for (const char* type : {"insert", "update", "remove"}) {
    for (const char* counter : {"flushes", "fences", "media_writes"}) print_counter(type, counter);
  }
  return 0;
}

int list(const Table* table) {
  observed_table::for_each(table, [](uint64_t key, uint64_t value) {
    std::printf("%" PRIu64 " %" PRIu64 "\n", key, value);
  });
  return 0;
}

int usage() {
  std::fputs("usage: observed-table FILE run OPERATIONS\n       observed-table FILE list\n",
             stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const bool runs = argc == 4 && std::strcmp(argv[2], "run") == 0;
  if (!runs && (argc != 3 || std::strcmp(argv[2], "list") != 0)) return usage();
  Table table{};
  if (!observed_table::map_table(argv[1], kGroups, &table)) {
    std::perror(argv[1]);
    return 1;
  }
  perdure_lab_mark_region(table.header, table.bytes, argv[1]);
  observed_table::recover(&table);
  const int status = runs ? run(&table, std::strtoull(argv[3], nullptr, 10)) : list(&table);
  perdure_lab_unmark_region(table.header);
  observed_table::unmap_table(&table);
  return status;
}
