// Indexes of the catalogue, of perdure/c.h.

#include <initializer_list>
#include <span>

#include "capi/support.h"
#include "perdure/catalog.h"

using namespace perdure;
using namespace perdure::capi;

namespace {

// Batches go to the structure in parts of this many, converted on the stack.
constexpr size_t kPart = 64;

Kind kind_of(perdure_kind kind) {
  if (kind != PERDURE_U64 && kind != PERDURE_BYTES)
    refuse("a kind is PERDURE_U64 or PERDURE_BYTES");
  return kind == PERDURE_U64 ? Kind::kU64 : Kind::kBytes;
}

OptionMap options_of(const perdure_option* options, size_t count) {
  OptionMap map;
  for (size_t i = 0; i < count; ++i) {
    const perdure_option& option = (&need(options, "options"))[i];
    map[&need(option.name, "the name of an option")] =
        &need(option.value, "the value of an option");
  }
  return map;
}

AnyIndex& index_of(const perdure_index* index) { return *need(index, "index").index; }

void require_arrays(size_t count, std::initializer_list<const void*> arrays) {
  for (const void* array : arrays) {
    if (array == nullptr && count > 0) refuse("an array is NULL, and not empty");
  }
}

// Calls `work(begin, n)` for each part of a batch.
template <typename Work>
void for_parts(size_t count, Work work) {
  for (size_t begin = 0; begin < count; begin += kPart) work(begin, std::min(kPart, count - begin));
}

// One batch of inserts: `record(i)` gives the records. What was inserted is told even if it throws.
template <typename Record>
void insert_all(AnyIndex& index, size_t count, Record record, unsigned char* inserted,
                uint64_t* total) {
  uint64_t sum = 0;
  if (inserted != nullptr) std::memset(inserted, 0, count);
  std::vector<AnyRecord> part;
  for_parts(count, [&](size_t begin, size_t n) {
    bool flags[kPart] = {};
    part.clear();
    for (size_t i = begin; i < begin + n; ++i) part.push_back(record(i));
    const auto tell = [&] {
      for (size_t i = 0; inserted != nullptr && i < n; ++i) inserted[begin + i] = flags[i] ? 1 : 0;
    };
    try {
      sum += index.multi_insert(part, std::span(flags, n));
    } catch (...) {
      tell();
      throw;
    }
    tell();
  });
  give(total, sum);
}

}  // namespace

perdure_status perdure_catalog(perdure_visit_type visit, void* context) {
  return guarded([&] {
    if (visit == nullptr) refuse("visit is NULL");
    for (const CatalogEntry& entry : catalog()) {
      unsigned kinds = 0;
      for (const auto& [key, value] : entry.traits.kinds) {
        kinds |= 1U << (2 * static_cast<unsigned>(key) + static_cast<unsigned>(value));
      }
      if (visit(context, entry.name.c_str(), entry.family.c_str(), entry.traits.ordered ? 1 : 0,
                kinds) == 0) {
        return;
      }
    }
  });
}

perdure_status perdure_index_create(perdure_pool* pool, const char* name, const char* type,
                                    perdure_kind key, perdure_kind value,
                                    const perdure_option* options, size_t option_count,
                                    perdure_index** index) {
  return guarded([&] {
    need(index, "index") = new perdure_index{
        create_index(need(pool, "pool").pool, &need(name, "name"), &need(type, "type"),
                     kind_of(key), kind_of(value), options_of(options, option_count))};
  });
}

perdure_status perdure_index_open(perdure_pool* pool, const char* name,
                                  const perdure_option* options, size_t option_count,
                                  perdure_index** index) {
  return guarded([&] {
    need(index, "index") = new perdure_index{open_index(
        need(pool, "pool").pool, &need(name, "name"), options_of(options, option_count))};
  });
}

void perdure_index_close(perdure_index* index) { delete index; }

perdure_status perdure_index_kinds(const perdure_index* index, perdure_kind* key,
                                   perdure_kind* value) {
  return guarded([&] {
    const AnyIndex& any = index_of(index);
    give(key, any.key_kind() == Kind::kU64 ? PERDURE_U64 : PERDURE_BYTES);
    give(value, any.value_kind() == Kind::kU64 ? PERDURE_U64 : PERDURE_BYTES);
  });
}

perdure_status perdure_index_insert(perdure_index* index, perdure_datum key, perdure_datum value,
                                    int* inserted) {
  return guarded([&] {
    give(inserted, index_of(index).insert(datum_of(key, "key"), datum_of(value, "value")));
  });
}

perdure_status perdure_index_update(perdure_index* index, perdure_datum key, perdure_datum value,
                                    int* updated) {
  return guarded([&] {
    give(updated, index_of(index).update(datum_of(key, "key"), datum_of(value, "value")));
  });
}

perdure_status perdure_index_upsert(perdure_index* index, perdure_datum key, perdure_datum value) {
  return guarded([&] { index_of(index).upsert(datum_of(key, "key"), datum_of(value, "value")); });
}

perdure_status perdure_index_remove(perdure_index* index, perdure_datum key, int* removed) {
  return guarded([&] { give(removed, index_of(index).remove(datum_of(key, "key"))); });
}

perdure_status perdure_index_lookup(const perdure_index* index, perdure_datum key,
                                    perdure_value* value, int* found) {
  return guarded([&] {
    const auto take = [&](Datum there) {
      if (value != nullptr) set_value(*value, there);
    };
    give(found, index_of(index).visit(datum_of(key, "key"), take));
  });
}

perdure_status perdure_index_visit(const perdure_index* index, perdure_datum key, perdure_use use,
                                   void* context, int* found) {
  return guarded([&] {
    const auto show = [&](Datum there) {
      const perdure_datum value = datum_of(there);
      if (use != nullptr) use(context, &value);
    };
    give(found, index_of(index).visit(datum_of(key, "key"), show));
  });
}

perdure_status perdure_index_compare_exchange(perdure_index* index, perdure_datum key,
                                              perdure_datum expected, perdure_datum desired,
                                              int* exchanged) {
  return guarded([&] {
    give(exchanged,
         index_of(index).compare_exchange(datum_of(key, "key"), datum_of(expected, "expected"),
                                          datum_of(desired, "desired")));
  });
}

perdure_status perdure_index_compare_remove(perdure_index* index, perdure_datum key,
                                            perdure_datum expected, int* removed) {
  return guarded([&] {
    give(removed,
         index_of(index).compare_remove(datum_of(key, "key"), datum_of(expected, "expected")));
  });
}

perdure_status perdure_index_increment(perdure_index* index, perdure_datum key, int64_t by,
                                       uint64_t* sum) {
  return guarded([&] { give(sum, index_of(index).increment(datum_of(key, "key"), by)); });
}

perdure_status perdure_index_modify(perdure_index* index, perdure_datum key, perdure_modify modify,
                                    void* context, perdure_change* done) {
  return guarded([&] {
    if (modify == nullptr) refuse("modify is NULL");
    const auto change = [&](const Value* before, Value& after) {
      perdure_datum c_before;
      perdure_datum c_after;
      std::memset(&c_after, 0xff, sizeof c_after);  // of no kind: to be set
      if (before != nullptr) c_before = datum_of(before->datum());
      switch (modify(context, before != nullptr ? &c_before : nullptr, &c_after)) {
        case PERDURE_KEEP:
          return Change::kKeep;
        case PERDURE_REMOVE:
          return Change::kRemove;
        case PERDURE_WRITE: {
          after = datum_of(c_after, "after");
          return Change::kWrite;
        }
        default:
          refuse("modify says PERDURE_KEEP, PERDURE_WRITE or PERDURE_REMOVE");
      }
    };
    give(done, index_of(index).modify(datum_of(key, "key"), change));
  });
}

perdure_status perdure_index_multi_lookup(const perdure_index* index, const perdure_datum* keys,
                                          size_t count, perdure_value* values, unsigned char* found,
                                          uint64_t* total) {
  return guarded([&] {
    require_arrays(count, {keys, values});
    const AnyIndex& any = index_of(index);
    uint64_t sum = 0;
    std::vector<Value> out(std::min(count, kPart));
    std::vector<Datum> part;
    for_parts(count, [&](size_t begin, size_t n) {
      bool flags[kPart] = {};
      part.clear();
      for (size_t i = 0; i < n; ++i) part.push_back(datum_of(keys[begin + i], "key"));
      sum += any.multi_lookup(part, std::span(out).first(n), std::span(flags, n));
      for (size_t i = 0; i < n; ++i) {
        if (found != nullptr) found[begin + i] = flags[i] ? 1 : 0;
        if (flags[i]) set_value(values[begin + i], out[i]);
      }
    });
    give(total, sum);
  });
}

perdure_status perdure_index_multi_insert(perdure_index* index, const perdure_record* records,
                                          size_t count, unsigned char* inserted, uint64_t* total) {
  return guarded([&] {
    require_arrays(count, {records});
    const auto record = [&](size_t i) {
      return AnyRecord{datum_of(records[i].key, "key"), datum_of(records[i].value, "value")};
    };
    insert_all(index_of(index), count, record, inserted, total);
  });
}

perdure_status perdure_index_multi_upsert(perdure_index* index, const perdure_record* records,
                                          size_t count) {
  return guarded([&] {
    require_arrays(count, {records});
    AnyIndex& any = index_of(index);
    std::vector<AnyRecord> part;
    for_parts(count, [&](size_t begin, size_t n) {
      part.clear();
      for (size_t i = begin; i < begin + n; ++i) {
        part.push_back({datum_of(records[i].key, "key"), datum_of(records[i].value, "value")});
      }
      any.multi_upsert(part);
    });
  });
}

perdure_status perdure_index_lookup_words(const perdure_index* index, const uint64_t* keys,
                                          size_t count, uint64_t* values, unsigned char* found,
                                          uint64_t* total) {
  return guarded([&] {
    require_arrays(count, {keys, values});
    const AnyIndex& any = index_of(index);
    if (any.value_kind() != Kind::kU64) refuse("the values of this index are no words");
    uint64_t sum = 0;
    std::vector<Value> out(std::min(count, kPart));
    for_parts(count, [&](size_t begin, size_t n) {
      bool flags[kPart] = {};
      const std::vector<Datum> part(keys + begin, keys + begin + n);
      sum += any.multi_lookup(part, std::span(out).first(n), std::span(flags, n));
      for (size_t i = 0; i < n; ++i) {
        if (found != nullptr) found[begin + i] = flags[i] ? 1 : 0;
        if (flags[i]) values[begin + i] = out[i].word();
      }
    });
    give(total, sum);
  });
}

perdure_status perdure_index_insert_words(perdure_index* index, const uint64_t* keys,
                                          const uint64_t* values, size_t count,
                                          unsigned char* inserted, uint64_t* total) {
  return guarded([&] {
    require_arrays(count, {keys, values});
    const auto record = [&](size_t i) { return AnyRecord{Datum(keys[i]), Datum(values[i])}; };
    insert_all(index_of(index), count, record, inserted, total);
  });
}

perdure_status perdure_index_upsert_words(perdure_index* index, const uint64_t* keys,
                                          const uint64_t* values, size_t count) {
  return guarded([&] {
    require_arrays(count, {keys, values});
    AnyIndex& any = index_of(index);
    std::vector<AnyRecord> part;
    for_parts(count, [&](size_t begin, size_t n) {
      part.clear();
      for (size_t i = begin; i < begin + n; ++i) {
        part.push_back({Datum(keys[i]), Datum(values[i])});
      }
      any.multi_upsert(part);
    });
  });
}

perdure_status perdure_index_bulk_upsert(perdure_index* index, perdure_datum key,
                                         perdure_datum value) {
  return guarded(
      [&] { index_of(index).bulk_upsert(datum_of(key, "key"), datum_of(value, "value")); });
}

perdure_status perdure_index_checkpoint(perdure_index* index, unsigned threads) {
  return guarded([&] { index_of(index).checkpoint(threads); });
}

perdure_status perdure_index_scan(const perdure_index* index, perdure_datum from, uint64_t limit,
                                  perdure_visit visit, void* context) {
  return guarded([&] {
    if (visit == nullptr) refuse("visit is NULL");
    index_of(index).scan(datum_of(from, "key"), limit, visitor(visit, context));
  });
}

perdure_status perdure_index_scan_back(const perdure_index* index, const perdure_datum* from,
                                       uint64_t limit, perdure_visit visit, void* context) {
  return guarded([&] {
    if (visit == nullptr) refuse("visit is NULL");
    std::optional<Datum> first;
    if (from != nullptr) first = datum_of(*from, "key");
    index_of(index).scan_back(first, limit, visitor(visit, context));
  });
}

perdure_status perdure_index_remove_range(perdure_index* index, perdure_datum from,
                                          const perdure_datum* to, uint64_t* removed) {
  return guarded([&] {
    std::optional<Datum> last;
    if (to != nullptr) last = datum_of(*to, "key");
    give(removed, index_of(index).remove_range(datum_of(from, "key"), last));
  });
}

// `scan(index, visit)`.
template <typename Scan>
static perdure_status scan_words(const perdure_index* index, uint64_t limit, uint64_t* keys,
                                 uint64_t* values, uint64_t* count, Scan scan) {
  return guarded([&] {
    require_arrays(limit, {keys, values});
    const AnyIndex& any = index_of(index);
    if (any.value_kind() != Kind::kU64) refuse("the values of this index are no words");
    uint64_t seen = 0;
    scan(any, [&](Datum key, Datum value) {
      keys[seen] = key.word();
      values[seen] = value.word();
      return ++seen < limit;
    });
    give(count, seen);
  });
}

perdure_status perdure_index_scan_words(const perdure_index* index, uint64_t from, uint64_t limit,
                                        uint64_t* keys, uint64_t* values, uint64_t* count) {
  return scan_words(index, limit, keys, values, count, [=](const AnyIndex& any, const auto& visit) {
    any.scan(Datum(from), limit, visit);
  });
}

perdure_status perdure_index_scan_back_words(const perdure_index* index, uint64_t from,
                                             uint64_t limit, uint64_t* keys, uint64_t* values,
                                             uint64_t* count) {
  return scan_words(index, limit, keys, values, count, [=](const AnyIndex& any, const auto& visit) {
    any.scan_back(Datum(from), limit, visit);
  });
}

perdure_status perdure_index_for_each(const perdure_index* index, perdure_visit visit,
                                      void* context) {
  return guarded([&] {
    if (visit == nullptr) refuse("visit is NULL");
    bool go_on = true;
    index_of(index).for_each(
        [&](Datum key, Datum value) { go_on = go_on && visitor(visit, context)(key, value); });
  });
}

perdure_status perdure_index_count(const perdure_index* index, uint64_t* records) {
  return guarded([&] { give(records, index_of(index).size()); });
}

perdure_status perdure_index_check(const perdure_index* index, perdure_report report, void* context,
                                   uint64_t* problems) {
  return guarded([&] { give(problems, index_of(index).check(reporter(report, context))); });
}

perdure_status perdure_index_statistics(const perdure_index* index, perdure_figure figure,
                                        void* context) {
  return guarded([&] {
    if (figure == nullptr) refuse("figure is NULL");
    tell_figures(index_of(index).statistics(), figure, context);
  });
}
