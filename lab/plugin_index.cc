#include "lab/plugin_index.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "perdure/error.h"
#include "perdure/pibench.h"

namespace perdure::lab {
namespace {

constexpr uint64_t kWordBytes = sizeof(uint64_t);
constexpr uint64_t kScanPart = 1000;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

// The least key above this one. False if there is none.
bool step(char* key, size_t size, Kind kind) {
  if (kind == Kind::kU64) {
    uint64_t word = 0;
    std::memcpy(&word, key, sizeof(word));
    ++word;
    std::memcpy(key, &word, sizeof(word));
    return word != 0;
  }
  for (size_t i = size; i-- > 0;) {
    auto& byte = reinterpret_cast<unsigned char&>(key[i]);
    if (++byte != 0) return true;
  }
  return false;
}

template <typename Interface>
class PluginIndex final : public AnyIndex {
 public:
  PluginIndex(std::unique_ptr<Interface> tree, const PluginOptions& options)
      : library_(options.library),
        key_kind_(options.key_kind),
        value_kind_(options.value_kind),
        key_bytes_(options.key_kind == Kind::kU64 ? kWordBytes : options.key_bytes),
        value_bytes_(options.value_kind == Kind::kU64 ? kWordBytes : options.value_bytes),
        tree_(std::move(tree)) {}

  Kind key_kind() const override { return key_kind_; }
  Kind value_kind() const override { return value_kind_; }

  bool insert(Datum key, Datum value) override {
    const Bytes k = key_of(key);
    const Bytes v = value_of(value);
    return tree_->insert(k.data(), key_bytes_, v.data(), value_bytes_);
  }
  bool update(Datum key, Datum value) override {
    const Bytes k = key_of(key);
    const Bytes v = value_of(value);
    return tree_->update(k.data(), key_bytes_, v.data(), value_bytes_);
  }
  void upsert(Datum key, Datum value) override;
  bool remove(Datum key) override { return tree_->remove(key_of(key).data(), key_bytes_); }
  bool lookup(Datum key, Value& out) const override;
  void scan(Datum from, uint64_t limit,
            const std::function<bool(Datum key, Datum value)>& visit) const override;
  void for_each(const std::function<void(Datum key, Datum value)>& visit) const override;

  uint64_t check(const std::function<void(const std::string&)>&) const override { return 0; }
  std::vector<Statistic> statistics() const override {
    return {{"dram_bytes", 0, "bytes"},
            {"pool_bytes", 0, "bytes"},
            {"recovered_operations", 0, "operations"}};
  }

 private:
  // The bytes of a key or value for the length of a call: a word's own, or the caller's string.
  class Bytes {
   public:
    explicit Bytes(Datum datum) : word_(datum.kind() == Kind::kU64 ? datum.word() : 0) {
      if (datum.kind() == Kind::kBytes) string_ = datum.bytes().data();
    }
    const char* data() const {
      return string_ != nullptr ? string_ : reinterpret_cast<const char*>(&word_);
    }

   private:
    uint64_t word_;
    const char* string_ = nullptr;
  };

  Bytes bytes_of(Datum datum, Kind kind, uint64_t size, const char* what) const;
  Bytes key_of(Datum key) const { return bytes_of(key, key_kind_, key_bytes_, "key"); }
  Bytes value_of(Datum value) const { return bytes_of(value, value_kind_, value_bytes_, "value"); }
  static Datum datum_of(const char* bytes, uint64_t size, Kind kind);
  // Returns how many records there were; `next` becomes the last one's key. `ended` when `visit`
  // did.
  uint64_t scan_part(std::string& next, uint64_t records,
                     const std::function<bool(Datum key, Datum value)>& visit, bool& ended) const;

  const std::string library_;
  const Kind key_kind_;
  const Kind value_kind_;
  const uint64_t key_bytes_;
  const uint64_t value_bytes_;
  const std::unique_ptr<Interface> tree_;
};

template <typename Interface>
typename PluginIndex<Interface>::Bytes PluginIndex<Interface>::bytes_of(Datum datum, Kind kind,
                                                                        uint64_t size,
                                                                        const char* what) const {
  if (datum.kind() != kind) {
    throw Error(ErrorCode::kWrongType,
                fmt::format("{}: a {} of kind {}, where {} was chosen", library_, what,
                            to_string(datum.kind()), to_string(kind)));
  }
  if (kind == Kind::kBytes && datum.bytes().size() != size) {
    refuse(fmt::format("{}: a {} of {} bytes; libraries for PiBench take one length, here {}",
                       library_, what, datum.bytes().size(), size));
  }
  return Bytes(datum);
}

template <typename Interface>
Datum PluginIndex<Interface>::datum_of(const char* bytes, uint64_t size, Kind kind) {
  if (kind == Kind::kBytes) return std::string_view(bytes, size);
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

template <typename Interface>
void PluginIndex<Interface>::upsert(Datum key, Datum value) {
  // Each attempt fails only if another thread inserted or removed the key between its two calls.
  constexpr int kAttempts = 1000;
  for (int i = 0; i < kAttempts; ++i) {
    if (update(key, value) || insert(key, value)) return;
  }
  throw Error(ErrorCode::kIo,
              fmt::format("{}: a key can be neither updated nor inserted", library_));
}

template <typename Interface>
bool PluginIndex<Interface>::lookup(Datum key, Value& out) const {
  const Bytes k = key_of(key);
  if (value_kind_ == Kind::kU64) {
    uint64_t word = 0;
    if (!tree_->find(k.data(), key_bytes_, reinterpret_cast<char*>(&word))) return false;
    out.set(word);
    return true;
  }
  // `out` stays as it was if the key is absent.
  static thread_local std::string found;
  found.resize(value_bytes_);
  if (!tree_->find(k.data(), key_bytes_, found.data())) return false;
  out.set_bytes() = found;
  return true;
}

template <typename Interface>
uint64_t PluginIndex<Interface>::scan_part(std::string& next, uint64_t records,
                                           const std::function<bool(Datum key, Datum value)>& visit,
                                           bool& ended) const {
  char* pairs = nullptr;
  const int found = tree_->scan(next.data(), key_bytes_, static_cast<int>(records), pairs);
  if (found < 0) {
    throw Error(ErrorCode::kWrongType, fmt::format("{}: scan fails with {}", library_, found));
  }
  const auto count = static_cast<uint64_t>(found);
  if (count > records) {
    refuse(fmt::format("{}: scan of {} records returns {}", library_, records, found));
  }
  if (count == 0) return 0;
  if (pairs == nullptr) {  // how many there are is all that it tells
    const std::string value(value_bytes_, '\0');
    for (uint64_t i = 0; i < count && !ended; ++i) {
      ended = !visit(datum_of(next.data(), key_bytes_, key_kind_),
                     datum_of(value.data(), value_bytes_, value_kind_));
    }
    ended = true;  // where it would go on, nobody knows
    return count;
  }
  // The library's memory is good until this thread's next scan, which `visit` may ask for.
  const uint64_t pair_bytes = key_bytes_ + value_bytes_;
  const std::string copy(pairs, count * pair_bytes);
  for (uint64_t i = 0; i < count && !ended; ++i) {
    const char* pair = copy.data() + i * pair_bytes;
    ended = !visit(datum_of(pair, key_bytes_, key_kind_),
                   datum_of(pair + key_bytes_, value_bytes_, value_kind_));
  }
  next.assign(copy, (count - 1) * pair_bytes, key_bytes_);
  return count;
}

template <typename Interface>
void PluginIndex<Interface>::scan(Datum from, uint64_t limit,
                                  const std::function<bool(Datum key, Datum value)>& visit) const {
  std::string next(key_of(from).data(), key_bytes_);
  bool ended = false;
  while (limit > 0 && !ended) {
    const uint64_t part = std::min(limit, kScanPart);
    const uint64_t found = scan_part(next, part, visit, ended);
    limit -= found;
    if (found < part || !step(next.data(), next.size(), key_kind_)) return;
  }
}

template <typename Interface>
void PluginIndex<Interface>::for_each(
    const std::function<void(Datum key, Datum value)>& visit) const {
  const std::string least(key_bytes_, '\0');
  scan(key_kind_ == Kind::kU64 ? Datum(uint64_t{0}) : Datum(least), ~uint64_t{0},
       [&](Datum key, Datum value) {
         visit(key, value);
         return true;
       });
}

using CreateTree = pibench::Tree* (*)(const pibench::TreeOptions&);

CreateTree find_create_tree(const std::string& library) {
  std::error_code error;
  if (!std::filesystem::exists(library, error)) {
    throw Error(ErrorCode::kNotFound, fmt::format("{}: there is no such file", library));
  }
  // An absolute path: other names would be looked for in the system's folders.
  const std::string path = std::filesystem::absolute(library).string();
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) refuse(fmt::format("cannot load the library: {}", dlerror()));
  void* create = dlsym(handle, "create_tree");
  if (create == nullptr) {
    refuse(
        fmt::format("{} exports no create_tree: it is not a library built for PiBench", library));
  }
  return reinterpret_cast<CreateTree>(create);
}

std::optional<PluginInterface> interface_of_environment() {
  const char* chosen = std::getenv("PERDURE_PIBENCH_INTERFACE");
  if (chosen == nullptr) return std::nullopt;
  return parse_plugin_interface(chosen);
}

// What the first slot after the destructors is, by the name of its function; without one, how many
// slots there are, by the size of the table.
std::optional<PluginInterface> interface_of(const void* tree) {
  constexpr size_t kFirstSlot = 2;
  constexpr size_t kSlots2019 = kFirstSlot + 5;
  constexpr size_t kSlotsBulkLoad = kSlots2019 + 1;
  const void* const* slots = *static_cast<const void* const* const*>(tree);
  Dl_info info = {};
  if (dladdr(slots[kFirstSlot], &info) != 0 && info.dli_saddr == slots[kFirstSlot] &&
      info.dli_sname != nullptr) {
    if (std::strstr(info.dli_sname, "9bulk_loadE") != nullptr) return PluginInterface::kBulkLoad;
    if (std::strstr(info.dli_sname, "4findE") != nullptr) return PluginInterface::k2019;
  }
  void* symbol = nullptr;
  if (dladdr1(static_cast<const void*>(slots), &info, &symbol, RTLD_DL_SYMENT) == 0 ||
      symbol == nullptr) {
    return std::nullopt;
  }
  // Before the slots stand two words, which belong to the symbol.
  const size_t words = static_cast<const ElfW(Sym)*>(symbol)->st_size / sizeof(void*);
  if (words == kSlots2019 + 2) return PluginInterface::k2019;
  if (words == kSlotsBulkLoad + 2) return PluginInterface::kBulkLoad;
  return std::nullopt;
}

}  // namespace

const char* to_string(PluginInterface interface) noexcept {
  return interface == PluginInterface::k2019 ? "2019" : "bulk_load";
}

PluginInterface parse_plugin_interface(std::string_view text) {
  for (const PluginInterface interface : {PluginInterface::k2019, PluginInterface::kBulkLoad}) {
    if (text == to_string(interface)) return interface;
  }
  refuse(fmt::format("\"{}\" is no interface of PiBench's; give 2019 or bulk_load", text));
}

std::unique_ptr<AnyIndex> load_plugin(const PluginOptions& options) {
  const CreateTree create = find_create_tree(options.library);
  const pibench::TreeOptions tree_options = {
      .key_size = options.key_kind == Kind::kU64 ? kWordBytes : options.key_bytes,
      .value_size = options.value_kind == Kind::kU64 ? kWordBytes : options.value_bytes,
      .pool_path = options.pool_path,
      .pool_size = options.pool_bytes,
      .num_threads = options.threads};
  auto interface = options.interface ? options.interface : interface_of_environment();
  pibench::Tree* tree = create(tree_options);
  if (tree == nullptr) {
    refuse(fmt::format("{} makes no index of keys of {} bytes and values of {} bytes",
                       options.library, tree_options.key_size, tree_options.value_size));
  }
  if (!interface) interface = interface_of(tree);
  if (!interface) {
    // Both have their destructor in the same place.
    delete tree;
    refuse(
        fmt::format("{}: its symbols do not tell whether it was built with PiBench's interface "
                    "of 2019 or with the later one, which has bulk_load; set "
                    "PERDURE_PIBENCH_INTERFACE to 2019 or bulk_load",
                    options.library));
  }
  if (*interface == PluginInterface::kBulkLoad) {
    return std::make_unique<PluginIndex<pibench::Tree>>(std::unique_ptr<pibench::Tree>(tree),
                                                        options);
  }
  return std::make_unique<PluginIndex<pibench::Tree2019>>(
      std::unique_ptr<pibench::Tree2019>(reinterpret_cast<pibench::Tree2019*>(tree)), options);
}

}  // namespace perdure::lab
