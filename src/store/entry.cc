// The store in the catalogue: what the tools and the scenario tests see of it.
#include "store/entry.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>

#include "index/adapter.h"
#include "index/participant.h"
#include "store/store_impl.h"

namespace perdure::store {

namespace {

// Every write passes the gate. A store that is open as a Store has none, and takes no part in
// transactions of the pool: one object at a time has a structure open.
class StoreAdapter final : public AnyIndex, public index::OwnsBlocks, public index::Participates {
 public:
  StoreAdapter(std::unique_ptr<StoreImpl> store, pm::PoolImpl& pool, const std::string& name)
      : store_(std::move(store)), participant_(*this, pool, name) {
    store_->answer_backups(nullptr);
  }

  Kind key_kind() const override { return Kind::kBytes; }
  Kind value_kind() const override { return Kind::kBytes; }

  bool insert(Datum key, Datum value) override {
    return put({key, value}, WriteRequest::Condition::kIfAbsent);
  }
  bool update(Datum key, Datum value) override {
    return put({key, value}, WriteRequest::Condition::kIfPresent);
  }
  void upsert(Datum key, Datum value) override {
    put({key, value}, WriteRequest::Condition::kNone);
  }
  bool remove(Datum key) override {
    const std::string_view text = text_of(key, "key");
    return gate().write(text, [=, this] { return store_->remove(text); });
  }
  bool compare_exchange(Datum key, Datum expected, Datum desired) override {
    const std::string_view text = text_of(key, "key");
    return gate().write(text, [=, this] {
      return store_->compare_exchange(text, text_of(expected, "value"), text_of(desired, "value"));
    });
  }
  bool compare_remove(Datum key, Datum expected) override {
    const std::string_view text = text_of(key, "key");
    return gate().write(text,
                        [&] { return store_->compare_remove(text, text_of(expected, "value")); });
  }
  bool lookup(Datum key, Value& out) const override {
    return store_->get(text_of(key, "key"), [&](const Partition::Found& found) {
      std::string& text = out.set_bytes();
      // What was there before is often as long: then there is nothing to find out.
      if (text.size() != found.value.size()) text.resize(found.value.size());
      std::memcpy(text.data(), found.value.data(), found.value.size());
    });
  }
  uint64_t multi_lookup(std::span<const Datum> keys, std::span<Value> values,
                        std::span<bool> found) const override {
    index::require_results(keys.size(), std::min(values.size(), found.size()));
    std::vector<std::string_view> texts;
    texts.reserve(keys.size());
    for (const Datum& key : keys) texts.push_back(text_of(key, "key"));
    std::ranges::fill(found.first(keys.size()), false);
    uint64_t count = 0;
    store_->multi_get(texts, [&](size_t i, const Partition::Found& record) {
      values[i].set_bytes().assign(record.value);
      found[i] = true;
      ++count;
    });
    return count;
  }
  uint64_t multi_insert(std::span<const AnyRecord> records, std::span<bool> inserted) override {
    index::require_results(records.size(), inserted.size());
    std::ranges::fill(inserted, false);
    const auto requests = requests_of(records, WriteRequest::Condition::kIfAbsent);
    if (!gate().write_unlatched(
            [&] { store_->multi_write(requests, inserted.first(records.size())); })) {
      return AnyIndex::multi_insert(records, inserted);
    }
    return static_cast<uint64_t>(std::ranges::count(inserted.first(records.size()), true));
  }
  void multi_upsert(std::span<const AnyRecord> records) override {
    const auto requests = requests_of(records, WriteRequest::Condition::kNone);
    if (!gate().write_unlatched([&] { store_->multi_write(requests, {}); })) {
      AnyIndex::multi_upsert(records);
    }
  }
  void for_each(const std::function<void(Datum key, Datum value)>& visit) const override {
    store_->for_each(
        [&](std::string_view key, std::string_view value) { visit(Datum(key), Datum(value)); });
  }
  void scan(Datum from, uint64_t limit,
            const std::function<bool(Datum key, Datum value)>& visit) const override {
    store_->scan(text_of(from, "key"), limit, [&](std::string_view key, std::string_view value) {
      return visit(Datum(key), Datum(value));
    });
  }
  void scan_back(std::optional<Datum> from, uint64_t limit,
                 const std::function<bool(Datum key, Datum value)>& visit) const override {
    std::optional<std::string_view> text;
    if (from) text = text_of(*from, "key");
    store_->scan_back(text, limit, [&](std::string_view key, std::string_view value) {
      return visit(Datum(key), Datum(value));
    });
  }
  uint64_t check(const std::function<void(const std::string&)>& report) const override {
    return store_->check(report);
  }
  std::vector<Statistic> statistics() const override { return store_->statistics(); }
  void visit_blocks(const index::VisitOwned& visit) const override { store_->visit_blocks(visit); }
  index::Participant* participant() override { return &participant_; }

 private:
  pm::WriteGate& gate() { return participant_.gate(); }
  bool put(const AnyRecord& record, WriteRequest::Condition condition) {
    const WriteRequest request = request_of(record, condition);
    return gate().write(request.key, [=, this] { return store_->write(request); });
  }
  static std::string_view text_of(const Datum& datum, const char* what) {
    return index::argument_of<std::string>(datum, what);
  }
  static WriteRequest request_of(const AnyRecord& record, WriteRequest::Condition condition) {
    return {.key = text_of(record.key, "key"),
            .value = text_of(record.value, "value"),
            .condition = condition};
  }
  static std::vector<WriteRequest> requests_of(std::span<const AnyRecord> records,
                                               WriteRequest::Condition condition) {
    std::vector<WriteRequest> requests;
    requests.reserve(records.size());
    for (const AnyRecord& record : records) requests.push_back(request_of(record, condition));
    return requests;
  }

  std::unique_ptr<StoreImpl> store_;
  index::IndexParticipant participant_;  // goes before the store, and the mapping with that
};

// Texts between commas, in which \xNN stands for a byte, such as a comma.
std::vector<std::string> boundaries_in(std::string_view text) {
  std::vector<std::string> boundaries(1);
  while (!text.empty()) {
    uint8_t byte = 0;
    if (text.starts_with(',')) {
      boundaries.emplace_back();
      text.remove_prefix(1);
    } else if (!text.starts_with('\\')) {
      boundaries.back() += text.front();
      text.remove_prefix(1);
    } else if (text.size() >= 4 && text[1] == 'x' &&
               std::from_chars(text.data() + 2, text.data() + 4, byte, 16).ptr == text.data() + 4) {
      boundaries.back() += static_cast<char>(byte);
      text.remove_prefix(4);
    } else {
      throw Error(ErrorCode::kInvalidArgument,
                  "option boundaries: a backslash begins \\xNN, which stands for one byte");
    }
  }
  return boundaries;
}

StoreOptions parse(OptionMap options, const char* type = kTypeName) {
  StoreOptions parsed;
  if (const auto structure = options.find("index_structure");
      std::string_view(type) == kPmTypeName && structure != options.end()) {
    parsed.index_structure = structure->second;
    if (parsed.index_structure.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "option index_structure: the name of a structure is missing");
    }
    options.erase(structure);
  }
  if (const auto boundaries = options.find("boundaries"); boundaries != options.end()) {
    parsed.boundaries = boundaries_in(boundaries->second);
    options.erase(boundaries);
  }
  index::take_option(options, "partitions", parsed.partitions);
  index::take_option(options, "block_bytes", parsed.block_bytes);
  index::take_option(options, "garbage_percent", parsed.garbage_percent);
  index::take_option(options, "index_snapshot_percent", parsed.index_snapshot_percent);
  index::take_option(options, "recovery_threads", parsed.recovery_threads);
  index::take_option(options, "workers", parsed.workers);
  uint32_t balance = 0;
  index::take_option(options, "balance", balance);
  parsed.balance = balance != 0;
  index::require_empty(options, type);
  return parsed;
}

// What differs between the entries.
template <StoreIndex index>
struct Entry {
  static constexpr const char* kType = index == StoreIndex::kPm        ? kPmTypeName
                                       : index == StoreIndex::kOrdered ? kOrderedTypeName
                                                                       : kTypeName;

  static std::unique_ptr<AnyIndex> create(Pool& pool, const std::string& name, Kind, Kind,
                                          const OptionMap& options) {
    StoreOptions parsed = parse(options, kType);
    parsed.index = index;
    return std::make_unique<StoreAdapter>(StoreImpl::create(pool, name, parsed), pm::impl_of(pool),
                                          name);
  }
  // Of this type only, where Store::open takes any.
  static std::unique_ptr<AnyIndex> open(Pool& pool, const std::string& name,
                                        const OptionMap& options) {
    pm::PoolImpl& impl = pm::impl_of(pool);
    impl.require(name, kType, static_cast<uint8_t>(Kind::kBytes),
                 static_cast<uint8_t>(Kind::kBytes));
    return std::make_unique<StoreAdapter>(StoreImpl::open(pool, name, parse(options, kType)), impl,
                                          name);
  }
};

template <StoreIndex index>
index::EntryWithPresets entry_of() {
  constexpr bool ordered = index == StoreIndex::kOrdered;
  constexpr bool in_pm = index == StoreIndex::kPm;
  index::EntryWithPresets entry;
  entry.name = Entry<index>::kType;
  entry.family = "store";
  entry.paper = "Lersch et al., PVLDB 2020";
  entry.traits = {.ordered = ordered,
                  .concurrent = true,
                  .dram = in_pm ? DramUse::kBounded : DramUse::kGrowing,
                  .kinds = {{Kind::kBytes, Kind::kBytes}},
                  .key_bytes_max = kKeyBytesMax,
                  .value_bytes_max = kValueBytesMax,
                  .capacity_bytes_min = Pool::kMinCapacityBytes};
  entry.options = {
      {"partitions", ordered ? "capacity / 4 MiB, 1 to 16" : "capacity / 4 MiB, 1 to 64",
       "parts that are written to side by side, 1 to 1024"},
      {"block_bytes", "capacity / partitions / 128, 4 KiB to 64 KiB",
       "of a block of the log, a power of two from 1 KiB to 64 KiB"},
      {"garbage_percent", "25, less in a full pool",
       "garbage in the log before it is compacted, in percent of what counts, 5 to 400"},
      {"index_snapshot_percent", "25",
       "what the log gets between two snapshots of an index in DRAM, in percent of what counts, 5 "
       "to 400; 0: none while it is open"},
      {"recovery_threads", "processors", "threads that read the log when it is opened"},
      {"boundaries", "none",
       "keys, ascending, with commas between them, that cut the store into one partition more; "
       "\\xNN stands for a byte"},
      {"workers", "0", "threads that own the partitions; 0: callers work on them themselves"},
      {"balance", "0", "1: workers that have more to do than others give partitions away"}};
  entry.small_options = {{"partitions", "4"}, {"block_bytes", "4096"}};
  entry.tiny_options = {{"partitions", "1"}, {"block_bytes", "1024"}, {"garbage_percent", "10"}};
  if (in_pm) {
    entry.options.push_back(
        {"index_structure", "cceh",
         "the index: a concurrent structure from words to words, and options of it, such as "
         "p-clht or cceh:segment_buckets=64"});
    entry.small_options["index_structure"] = "cceh:segment_buckets=64,initial_depth=1";
    entry.tiny_options["index_structure"] = "cceh:segment_buckets=16,initial_depth=1";
  }
  entry.create = Entry<index>::create;
  entry.open = Entry<index>::open;
  return entry;
}

}  // namespace

index::EntryWithPresets entry() { return entry_of<StoreIndex::kHash>(); }
index::EntryWithPresets ordered_entry() { return entry_of<StoreIndex::kOrdered>(); }
index::EntryWithPresets pm_entry() { return entry_of<StoreIndex::kPm>(); }

}  // namespace perdure::store
