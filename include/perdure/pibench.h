// The interface between PiBench and the indexes it measures, binary compatible with PiBench's own
// header, so that a library built with either can be loaded by a program built with the other.
//
// A library exports create_tree(), which makes an index behind tree_api. Perdure's structures are
// such libraries (libperdure_pibench_NAME.so), and `perdure bench --plugin FILE.so` runs any other.
//
//   #include <perdure/pibench.h>
//   class Wrapper final : public tree_api { ... };
//   extern "C" tree_api* create_tree(const tree_options_t& options) { return new Wrapper(options); }
//
// The names are PiBench's; do not include its tree_api.hpp beside this. Compatible means: the
// Itanium C++ ABI, and std::string as libstdc++ has had it since GCC 5.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

namespace perdure::pibench {

// What the benchmark says about the run to come.
struct TreeOptions {
  std::size_t key_size = 8;    // bytes of every key
  std::size_t value_size = 8;  // bytes of every value
  std::string pool_path;       // where persistent data is to lie; may be empty
  std::size_t pool_size = 0;   // bytes that it may take; 0: not said
  std::size_t num_threads = 1;
};

// An index as PiBench has called it since it can load in bulk. Any thread may call any member at
// any time. Keys and values are bytes; a key of 8 bytes is commonly taken as an integer.
//
// The order of the members is the order of the slots that both sides count on.
class Tree {
 public:
  virtual ~Tree() = default;

  // Inserts `records` pairs of a key and a value that follow one another in memory. False if it
  // cannot, or could not insert all.
  virtual bool bulk_load(const char* pairs, std::size_t records, std::size_t key_size,
                         std::size_t value_size) {
    return static_cast<void>(pairs), static_cast<void>(records), static_cast<void>(key_size),
           static_cast<void>(value_size), false;
  }
  // Copies the value, value_size bytes, to `value_out`. False if the key is absent.
  virtual bool find(const char* key, std::size_t key_size, char* value_out) = 0;
  // False if the key is there already.
  virtual bool insert(const char* key, std::size_t key_size, const char* value,
                      std::size_t value_size) = 0;
  // False if the key is absent.
  virtual bool update(const char* key, std::size_t key_size, const char* value,
                      std::size_t value_size) = 0;
  // False if the key was absent.
  virtual bool remove(const char* key, std::size_t key_size) = 0;
  // Points `pairs_out` at up to `records` pairs of a key and a value that follow one another in
  // memory, of the least keys from `key` on, in their order, and returns how many there are. The
  // memory is the index's, and the calling thread's until its next scan.
  virtual int scan(const char* key, std::size_t key_size, int records, char*& pairs_out) = 0;
};

// The same as PiBench had it first (2019), without bulk_load: all later slots are one lower.
class Tree2019 {
 public:
  virtual ~Tree2019() = default;
  virtual bool find(const char* key, std::size_t key_size, char* value_out) = 0;
  virtual bool insert(const char* key, std::size_t key_size, const char* value,
                      std::size_t value_size) = 0;
  virtual bool update(const char* key, std::size_t key_size, const char* value,
                      std::size_t value_size) = 0;
  virtual bool remove(const char* key, std::size_t key_size) = 0;
  virtual int scan(const char* key, std::size_t key_size, int records, char*& pairs_out) = 0;
};

static_assert(sizeof(TreeOptions) == 4 * sizeof(std::size_t) + sizeof(std::string));
static_assert(std::is_standard_layout_v<TreeOptions>);
static_assert(sizeof(Tree) == sizeof(void*) && sizeof(Tree2019) == sizeof(void*));

}  // namespace perdure::pibench

using tree_options_t = perdure::pibench::TreeOptions;  // NOLINT: PiBench's name
using tree_api = perdure::pibench::Tree;               // NOLINT: PiBench's name

// What a library for PiBench exports. The caller owns the index; nullptr if it cannot be made.
extern "C" tree_api* create_tree(const tree_options_t& options);
