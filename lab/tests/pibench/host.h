// A program that loads a library as PiBench does, and leaves with 0 if every call did what PiBench
// counts on. Include it after the declaration of tree_api.
//
//   host LIBRARY KEY_SIZE VALUE_SIZE POOL_PATH [present]
//
// With `present` the records of an earlier run are expected to be there.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

// Ascending keys, as integers and as bytes of the same size.
inline std::string key_of(size_t number, size_t size) {
  std::string key(size, '\0');
  const size_t at = size == 8 ? 0 : size - 1;
  key[at] = static_cast<char>(number);
  return key;
}

// Programs of later interfaces call one slot more in each thread: tls_setup.
inline void call_slot_after_scan(tree_api& tree) {
  using Slot = void (*)(tree_api*);
  (*reinterpret_cast<Slot**>(&tree))[kSlots](&tree);
}

inline void exercise(tree_api& tree, const tree_options_t& options, bool present) {
  constexpr size_t kRecords = 100;
  std::string out(options.value_size, '\0');
  for (size_t i = 1; i <= kRecords; ++i) {
    const std::string key = key_of(i, options.key_size);
    const std::string value(options.value_size, static_cast<char>(i));
    if (!present) {
      expect(!tree.find(key.data(), key.size(), out.data()), "a key is absent at first");
      expect(!tree.update(key.data(), key.size(), value.data(), value.size()), "no update of it");
      expect(tree.insert(key.data(), key.size(), value.data(), value.size()), "it is inserted");
    }
    expect(!tree.insert(key.data(), key.size(), value.data(), value.size()), "only once");
    expect(tree.find(key.data(), key.size(), out.data()) && out == value, "it is found");
  }
  const std::string key = key_of(7, options.key_size);
  const std::string other(options.value_size, 'x');
  const std::string seven(options.value_size, 7);
  expect(tree.update(key.data(), key.size(), other.data(), other.size()), "a value is updated");
  expect(tree.find(key.data(), key.size(), out.data()) && out == other, "the new one is found");
  expect(tree.remove(key.data(), key.size()), "a key is removed");
  expect(!tree.remove(key.data(), key.size()), "only once");
  expect(!tree.find(key.data(), key.size(), out.data()), "it is not found then");
  expect(tree.insert(key.data(), key.size(), seven.data(), seven.size()), "it may come again");

  char* pairs = nullptr;
  const std::string from = key_of(50, options.key_size);
  const int found = tree.scan(from.data(), from.size(), 10, pairs);
  expect(found == 0 || found == 10, "a scan finds all that it is asked for, or cannot");
  for (int i = 0; i < found; ++i) {
    const size_t pair = options.key_size + options.value_size;
    const std::string expected = key_of(50 + static_cast<size_t>(i), options.key_size) +
                                 std::string(options.value_size, static_cast<char>(50 + i));
    expect(std::memcmp(pairs + static_cast<size_t>(i) * pair, expected.data(), pair) == 0,
           "in the order of the keys");
  }
  std::printf("scanned %d\n", found);
}

inline int run_host(int argc, char** argv) {
  expect(argc >= 5, "LIBRARY KEY_SIZE VALUE_SIZE POOL_PATH");
  void* handle = dlopen(argv[1], RTLD_NOW);
  if (handle == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  using Create = tree_api* (*)(const tree_options_t&);
  const auto create = reinterpret_cast<Create>(dlsym(handle, "create_tree"));
  expect(create != nullptr, "there is a create_tree");
  tree_options_t options;
  options.key_size = std::stoul(argv[2]);
  options.value_size = std::stoul(argv[3]);
  options.pool_path = argv[4];
  options.pool_size = size_t{64} << 20;
  tree_api* tree = create(options);
  if (tree == nullptr) return 3;
  call_slot_after_scan(*tree);
  exercise(*tree, options, argc > 5);
  delete tree;
  return dlclose(handle);
}
