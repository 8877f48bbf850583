// The volatile bounds: Abseil's hash table and B+-tree, which are not for several threads, cut into
// parts with a reader-writer lock each.
//
// The hash table's parts go by the hash of the key; the tree's by the first ten bits of the key, so
// that scans pass from one to the next in order. Keys that are uniform over the key space spread
// over all parts; sequential words all fall into the first.

#include <absl/container/btree_map.h>
#include <absl/container/flat_hash_map.h>
#include <absl/hash/hash.h>
#include <absl/strings/string_view.h>

#include <array>
#include <mutex>
#include <shared_mutex>

#include "lab/peers/peer.h"

namespace perdure::lab::peers {
namespace {

constexpr unsigned kPartBits = 10;
constexpr size_t kParts = size_t{1} << kPartBits;

// How a key or value is kept: words as they are.
template <typename T>
T kept(const Datum& datum) {
  if constexpr (std::is_same_v<T, uint64_t>) {
    return datum.word();
  } else {
    return T(datum.bytes());
  }
}

// What is searched for: a word or a view.
template <typename T>
auto sought(const Datum& datum) {
  if constexpr (std::is_same_v<T, uint64_t>) {
    return datum.word();
  } else {
    // Abseil's own, which Debian builds to be another type than the standard's.
    return absl::string_view(datum.bytes().data(), datum.bytes().size());
  }
}

struct ByHash {
  template <typename K>
  static size_t part_of(const K& key) {
    return absl::Hash<K>()(key) >> (64 - kPartBits);
  }
};

struct ByRange {
  static size_t part_of(uint64_t key) { return key >> (64 - kPartBits); }
  static size_t part_of(absl::string_view key) {
    uint64_t word = 0;
    std::memcpy(&word, key.data(), std::min(key.size(), sizeof word));
    return part_of(__builtin_bswap64(word));
  }
};

template <typename K, typename V, typename Map, typename Parting>
class PartedMap : public PeerIndex {
 public:
  PartedMap() : PeerIndex(ArgumentOf<K>::kind, ArgumentOf<V>::kind), parts_(kParts) {}

  bool insert(Datum key, Datum value) override {
    Part& part = part_of(key);
    const std::unique_lock lock(part.mutex);
    return part.map.try_emplace(kept<K>(key), kept<V>(value)).second;
  }
  bool update(Datum key, Datum value) override {
    Part& part = part_of(key);
    const std::unique_lock lock(part.mutex);
    const auto found = part.map.find(sought<K>(key));
    if (found == part.map.end()) return false;
    found->second = kept<V>(value);
    return true;
  }
  void upsert(Datum key, Datum value) override {
    Part& part = part_of(key);
    const std::unique_lock lock(part.mutex);
    part.map.insert_or_assign(kept<K>(key), kept<V>(value));
  }
  bool remove(Datum key) override {
    Part& part = part_of(key);
    const std::unique_lock lock(part.mutex);
    return part.map.erase(sought<K>(key)) > 0;
  }
  bool lookup(Datum key, Value& out) const override {
    const Part& part = part_of(key);
    const std::shared_lock lock(part.mutex);
    const auto found = part.map.find(sought<K>(key));
    if (found == part.map.end()) return false;
    if constexpr (std::is_same_v<V, uint64_t>) {
      out.set(found->second);
    } else {
      out.set_bytes() = found->second;
    }
    return true;
  }

 protected:
  struct alignas(64) Part {
    mutable std::shared_mutex mutex;
    Map map;
  };
  const Part& part_of(const Datum& key) const { return parts_[Parting::part_of(sought<K>(key))]; }
  Part& part_of(const Datum& key) { return parts_[Parting::part_of(sought<K>(key))]; }

  std::vector<Part> parts_;
};

template <typename K, typename V>
class HashTable final : public PartedMap<K, V, absl::flat_hash_map<K, V>, ByHash> {};

template <typename K, typename V>
class Tree final : public PartedMap<K, V, absl::btree_map<K, V, std::less<>>, ByRange> {
 public:
  void scan(Datum from, uint64_t limit,
            const std::function<bool(Datum, Datum)>& visit) const override {
    uint64_t told = 0;
    const size_t first = ByRange::part_of(sought<K>(from));
    for (size_t number = first; number < kParts; ++number) {
      const auto& part = this->parts_[number];
      const std::shared_lock lock(part.mutex);
      auto at = number == first ? part.map.lower_bound(sought<K>(from)) : part.map.begin();
      for (; at != part.map.end(); ++at) {
        if (told++ >= limit || !visit(Datum(at->first), Datum(at->second))) return;
      }
    }
  }
  void scan_back(std::optional<Datum> from, uint64_t limit,
                 const std::function<bool(Datum, Datum)>& visit) const override {
    uint64_t told = 0;
    const size_t first = from ? ByRange::part_of(sought<K>(*from)) : kParts - 1;
    for (size_t number = first + 1; number-- > 0;) {
      const auto& part = this->parts_[number];
      const std::shared_lock lock(part.mutex);
      const auto end =
          from && number == first ? part.map.upper_bound(sought<K>(*from)) : part.map.end();
      for (auto at = std::make_reverse_iterator(end); at != part.map.rend(); ++at) {
        if (told++ >= limit || !visit(Datum(at->first), Datum(at->second))) return;
      }
    }
  }
};

template <template <typename, typename> typename Map>
std::unique_ptr<AnyIndex> make_map(Kind key, Kind value) {
  if (key == Kind::kU64 && value == Kind::kU64) return std::make_unique<Map<uint64_t, uint64_t>>();
  if (key == Kind::kU64) return std::make_unique<Map<uint64_t, std::string>>();
  if (value == Kind::kU64) return std::make_unique<Map<std::string, uint64_t>>();
  return std::make_unique<Map<std::string, std::string>>();
}

template <template <typename, typename> typename Map>
Contender contender(const char* name, bool ordered) {
  Contender contender;
  contender.name = name;
  contender.kind = "dram";
  contender.ordered = ordered;
  contender.durability = "nothing: it is volatile (1,024 parts, a lock each)";
  contender.create = [](const std::string&, const StoreOptions& options) {
    return std::make_unique<IndexStore>(make_map<Map>(options.key_kind, options.value_kind));
  };
  return contender;
}

}  // namespace
}  // namespace perdure::lab::peers

extern "C" __attribute__((visibility("default"))) void perdure_bench_peers(
    std::vector<perdure::lab::Contender>& peers) {
  using namespace perdure::lab::peers;  // NOLINT: this file's own
  peers.push_back(contender<HashTable>("dram-hash", false));
  peers.push_back(contender<Tree>("dram-btree", true));
}
