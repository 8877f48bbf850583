// The library that PiBench loads. It is the same for every structure: which one it makes it takes
// from the name of its own file, of which the build puts down one copy for each in the catalogue.

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lab/pibench/index_adapter.h"
#include "lab/pibench/names.h"
#include "perdure/error.h"

namespace perdure::pibench {

// The two shapes of the interface over one store. Not in an unnamed namespace: programs that load
// the library tell the shapes apart by the names of these members.
template <typename Interface>
class Shape : public Interface {
 public:
  Shape(const CatalogEntry& entry, const TreeOptions& options) : index_(entry, options) {}

  bool find(const char* key, size_t key_size, char* value_out) override {
    return index_.find(key, key_size, value_out);
  }
  bool insert(const char* key, size_t key_size, const char* value, size_t value_size) override {
    return index_.insert(key, key_size, value, value_size);
  }
  bool update(const char* key, size_t key_size, const char* value, size_t value_size) override {
    return index_.update(key, key_size, value, value_size);
  }
  bool remove(const char* key, size_t key_size) override { return index_.remove(key, key_size); }
  int scan(const char* key, size_t key_size, int records, char*& pairs_out) override {
    return index_.scan(key, key_size, records, pairs_out);
  }
  // Later programs have one more slot after scan, which each of their threads calls first
  // (tls_setup), or which asks for a size (0: not known). Earlier ones never look there.
  virtual long slot_after_scan() { return 0; }

 protected:
  IndexAdapter index_;
};

class BulkShape final : public Shape<Tree> {
 public:
  using Shape::Shape;
  bool bulk_load(const char* pairs, size_t records, size_t key_size, size_t value_size) override {
    return index_.bulk_load(pairs, records, key_size, value_size);
  }
};

namespace {

const CatalogEntry& own_structure() {
  Dl_info own = {};
  dladdr(reinterpret_cast<const void*>(&create_tree), &own);
  const std::string file = std::filesystem::path(own.dli_fname).filename();
  for (const CatalogEntry& entry : catalog()) {
    if (library_name(entry.name) == file) return entry;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: the file's name must say which structure it is, as {} does", file,
                          library_name(catalog().front().name)));
}

// Whether the program that loads us counts with a bulk_load. Nothing in the interface tells. But a
// program that knows of it has the word in it: as its option, or as the name of the member.
bool host_knows_bulk_load() {
  if (const char* chosen = std::getenv("PERDURE_PIBENCH_INTERFACE"); chosen != nullptr) {
    const std::string_view name(chosen);
    if (name == "bulk_load" || name == "2019") return name == "bulk_load";
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("PERDURE_PIBENCH_INTERFACE is \"{}\"; give bulk_load or 2019", name));
  }
  std::ifstream program("/proc/self/exe", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(program), {});
  return bytes.find("bulk_load") != std::string::npos;
}

}  // namespace
}  // namespace perdure::pibench

extern "C" tree_api* create_tree(const tree_options_t& options) {
  using namespace perdure::pibench;
  try {
    const perdure::CatalogEntry& entry = own_structure();
    if (host_knows_bulk_load()) return new BulkShape(entry, options);
    // The caller takes the pointer as what it was built with.
    return reinterpret_cast<tree_api*>(static_cast<Tree2019*>(new Shape<Tree2019>(entry, options)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "perdure: %s\n", error.what());
    return nullptr;
  }
}
