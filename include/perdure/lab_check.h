// The main program of a key-value structure under `perdure crash --program`: a workload, and the
// check of what a crash has left. The structure's part is a class of a few lines:
//
//   struct MyTable {
//     explicit MyTable(perdure_shim::Pool& pool);        // creates it, or recovers what is there
//     bool insert(uint64_t key, uint64_t value);         // false: is there
//     bool update(uint64_t key, uint64_t value);         // false: is not there
//     bool remove(uint64_t key);
//     bool lookup(uint64_t key, uint64_t* value);
//   };
//   int main(int count, char** arguments) { return perdure_shim::check_main<MyTable>(count, arguments); }
//
//   perdure-c++ -O2 -std=c++17 main.cc -o my-table
//   perdure crash --program './my-table {} run 40' --check './my-table {} check'
//
// The check does not only look: it *uses* what it has recovered. Each key is updated, removed,
// looked up and inserted again. A record that is there twice after a crash looks well until the
// first of the two is removed; a lock that nobody released, or a counter that is off, shows when
// somebody writes.
#ifndef PERDURE_LAB_CHECK_H
#define PERDURE_LAB_CHECK_H

#include <perdure/lab.h>
#include <perdure/lab_shim.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

namespace perdure_shim {

constexpr size_t kCheckPoolBytes = size_t{8} << 20;
constexpr uint64_t kKeysOfCheck = 24;  // few, so that keys come back

// An operation of the workload: chosen by its number, the same in every run.
template <typename Table>
void run_operation(Table& table, uint64_t number) {
  const uint64_t dice = number * 0x9e3779b97f4a7c15 >> 33;
  const uint64_t key = dice % kKeysOfCheck + 1;
  const uint64_t value = number + 1;
  switch (dice / kKeysOfCheck % 4) {
    case 0:
      perdure_lab_begin("remove", 8);
      table.remove(key);
      break;
    case 1:
      perdure_lab_begin("update", 16);
      table.update(key, value);
      break;
    default:
      perdure_lab_begin("insert", 16);
      table.insert(key, value);
  }
  perdure_lab_end();
}

// Prints what is there, as a user sees it.
template <typename Table>
void print_records(Table& table) {
  for (uint64_t key = 1; key <= kKeysOfCheck; ++key) {
    uint64_t value = 0;
    if (table.lookup(key, &value)) std::printf("%" PRIu64 " %" PRIu64 "\n", key, value);
  }
}

// Changes a key and puts it back. What was wrong, or null.
template <typename Table>
const char* use_key(Table& table, uint64_t key) {
  const uint64_t other = 1'000'000 + key;
  uint64_t value = 0;
  uint64_t seen = 0;
  const bool there = table.lookup(key, &value);
  if (there) {
    if (!table.update(key, other)) return "is there, and cannot be updated";
    if (!table.lookup(key, &seen) || seen != other) return "was updated, and has another value";
    if (!table.remove(key)) return "is there, and cannot be removed";
    if (table.lookup(key, &seen)) return "is there again after its removal";
    if (table.update(key, other)) return "is not there, and was updated";
  } else {
    value = other;
    if (table.remove(key)) return "is not there, and was removed";
  }
  if (!table.insert(key, value)) return "is not there, and cannot be inserted";
  if (!table.lookup(key, &seen) || seen != value) return "was inserted, and has another value";
  if (table.insert(key, value)) return "is there, and was inserted";
  if (!there && !table.remove(key)) return "was inserted, and cannot be removed";
  return nullptr;
}

// What a check prints and returns for `perdure crash --check`, of a table that has recovered.
template <typename Table>
int check(Pool& pool, Table& table) {
  print_records(table);
  pool.recovered();
  for (uint64_t key = 1; key <= kKeysOfCheck; ++key) {
    const char* wrong = use_key(table, key);
    if (wrong == nullptr) continue;
    std::fprintf(stderr, "used after recovery: key %" PRIu64 " %s\n", key, wrong);
    return 1;
  }
  std::puts("used, and so it is:");
  print_records(table);
  return 0;
}

// `PROGRAM FILE run OPERATIONS` and `PROGRAM FILE check`. 0, or 1 with a message on standard error.
template <typename Table>
int check_main(int count, char** arguments) {
  const bool runs = count == 4 && std::strcmp(arguments[2], "run") == 0;
  if (!runs && (count != 3 || std::strcmp(arguments[2], "check") != 0)) {
    std::fprintf(stderr, "usage: %s FILE run OPERATIONS\n       %s FILE check\n", arguments[0],
                 arguments[0]);
    return 2;
  }
  try {
    Pool pool(arguments[1], kCheckPoolBytes);
    Table table(pool);
    if (!runs) return check(pool, table);
    const uint64_t operations = std::strtoull(arguments[3], nullptr, 10);
    for (uint64_t i = 0; i < operations; ++i) run_operation(table, i);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", arguments[0], error.what());
    return 1;
  }
}

}  // namespace perdure_shim

#endif
