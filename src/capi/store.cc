// The key-value store, of perdure/c.h.

#include <chrono>

#include "capi/support.h"

using namespace perdure;
using namespace perdure::capi;

namespace {

StoreOptions store_options(const perdure_store_options* given) {
  const perdure_store_options from = sized_options(given);
  StoreOptions options;
  if (from.index > 2) refuse("index is 0 to 2");
  options.index = static_cast<StoreIndex>(from.index);
  options.partitions = from.partitions;
  options.block_bytes = from.block_bytes;
  if (from.garbage_percent != 0) options.garbage_percent = from.garbage_percent;
  options.recovery_threads = from.recovery_threads;
  options.workers = from.workers;
  options.balance = from.balance != 0;
  for (size_t i = 0; i < from.boundary_count; ++i) {
    const perdure_datum& boundary = (&need(from.boundaries, "boundaries"))[i];
    if (boundary.kind != PERDURE_BYTES) refuse("a boundary is a byte string");
    options.boundaries.emplace_back(bytes_of(boundary.data, boundary.size, "a boundary"));
  }
  return options;
}

std::optional<Store::Time> expiry(int64_t expires_ms) {
  if (expires_ms == PERDURE_NEVER) return std::nullopt;
  // A time point beyond what the clock can hold would wrap.
  constexpr int64_t kMax =
      std::chrono::duration_cast<std::chrono::milliseconds>(Store::Time::max().time_since_epoch())
          .count();
  if (expires_ms < 0 || expires_ms > kMax) refuse("an expiry lies outside of what there is");
  return Store::Time(std::chrono::milliseconds(expires_ms));
}

Store& store_of(const perdure_store* store) {
  return const_cast<perdure_store&>(need(store, "store")).store;
}

perdure_status moved(perdure_cursor* cursor, int* valid, void (*move)(Store::Cursor& cursor)) {
  return guarded([&] {
    move(need(cursor, "cursor").cursor);
    give(valid, cursor->cursor.valid());
  });
}

void require_valid(const Store::Cursor& cursor) {
  if (!cursor.valid()) refuse("the cursor stands at no record");
}

}  // namespace

perdure_status perdure_store_create(perdure_pool* pool, const char* name,
                                    const perdure_store_options* options, perdure_store** store) {
  return guarded([&] {
    need(store, "store") = new perdure_store{
        Store::create(need(pool, "pool").pool, &need(name, "name"), store_options(options))};
  });
}

perdure_status perdure_store_open(perdure_pool* pool, const char* name,
                                  const perdure_store_options* options, perdure_store** store) {
  return guarded([&] {
    need(store, "store") = new perdure_store{
        Store::open(need(pool, "pool").pool, &need(name, "name"), store_options(options))};
  });
}

void perdure_store_close(perdure_store* store) { delete store; }

perdure_status perdure_store_get(const perdure_store* store, const void* key, size_t key_size,
                                 perdure_value* value, uint64_t* version, int* found) {
  return guarded([&] {
    std::string out;
    uint64_t of_record = 0;
    const bool there = store_of(store).get(bytes_of(key, key_size, "key"), out, &of_record);
    if (there && value != nullptr) set_bytes(*value, out);
    if (there) give(version, of_record);
    give(found, there);
  });
}

perdure_status perdure_store_put(perdure_store* store, const void* key, size_t key_size,
                                 const void* value, size_t value_size, int64_t expires_ms,
                                 uint64_t* version) {
  return guarded([&] {
    give(version, store_of(store).put(bytes_of(key, key_size, "key"),
                                      bytes_of(value, value_size, "value"), expiry(expires_ms)));
  });
}

perdure_status perdure_store_insert(perdure_store* store, const void* key, size_t key_size,
                                    const void* value, size_t value_size, int64_t expires_ms,
                                    int* inserted) {
  return guarded([&] {
    give(inserted,
         store_of(store).insert(bytes_of(key, key_size, "key"),
                                bytes_of(value, value_size, "value"), expiry(expires_ms)));
  });
}

perdure_status perdure_store_update(perdure_store* store, const void* key, size_t key_size,
                                    const void* value, size_t value_size, int64_t expires_ms,
                                    int* updated) {
  return guarded([&] {
    give(updated, store_of(store).update(bytes_of(key, key_size, "key"),
                                         bytes_of(value, value_size, "value"), expiry(expires_ms)));
  });
}

perdure_status perdure_store_cas(perdure_store* store, const void* key, size_t key_size,
                                 uint64_t version, const void* value, size_t value_size,
                                 int64_t expires_ms, int* swapped) {
  return guarded([&] {
    give(swapped, store_of(store).compare_and_swap(bytes_of(key, key_size, "key"), version,
                                                   bytes_of(value, value_size, "value"),
                                                   expiry(expires_ms)));
  });
}

perdure_status perdure_store_remove(perdure_store* store, const void* key, size_t key_size,
                                    int* removed) {
  return guarded([&] { give(removed, store_of(store).remove(bytes_of(key, key_size, "key"))); });
}

perdure_status perdure_store_cas_remove(perdure_store* store, const void* key, size_t key_size,
                                        uint64_t version, int* removed) {
  return guarded([&] {
    give(removed, store_of(store).compare_and_remove(bytes_of(key, key_size, "key"), version));
  });
}

perdure_status perdure_store_increment(perdure_store* store, const void* key, size_t key_size,
                                       int64_t by, int64_t* sum) {
  return guarded([&] { give(sum, store_of(store).increment(bytes_of(key, key_size, "key"), by)); });
}

perdure_status perdure_store_append(perdure_store* store, const void* key, size_t key_size,
                                    const void* suffix, size_t suffix_size, uint64_t* size) {
  return guarded([&] {
    give(size, store_of(store).append(bytes_of(key, key_size, "key"),
                                      bytes_of(suffix, suffix_size, "suffix")));
  });
}

perdure_status perdure_store_multi_get(const perdure_store* store, const perdure_datum* keys,
                                       size_t count, perdure_value* values, unsigned char* found,
                                       uint64_t* total) {
  return guarded([&] {
    if (count > 0 && (keys == nullptr || values == nullptr)) refuse("an array is NULL, not empty");
    std::vector<std::string_view> views;
    views.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      if (keys[i].kind != PERDURE_BYTES) refuse("a key of a store is a byte string");
      views.push_back(bytes_of(keys[i].data, keys[i].size, "key"));
    }
    std::vector<std::optional<std::string>> out(count);
    const uint64_t sum = store_of(store).multi_get(views, out);
    for (size_t i = 0; i < count; ++i) {
      if (found != nullptr) found[i] = out[i] ? 1 : 0;
      if (out[i]) set_bytes(values[i], *out[i]);
    }
    give(total, sum);
  });
}

perdure_status perdure_batch_create(perdure_batch** batch) {
  return guarded([&] { need(batch, "batch") = new perdure_batch; });
}

perdure_status perdure_batch_put(perdure_batch* batch, const void* key, size_t key_size,
                                 const void* value, size_t value_size, int64_t expires_ms) {
  return guarded([&] {
    need(batch, "batch")
        .batch.put(bytes_of(key, key_size, "key"), bytes_of(value, value_size, "value"),
                   expiry(expires_ms));
  });
}

perdure_status perdure_batch_remove(perdure_batch* batch, const void* key, size_t key_size) {
  return guarded([&] { need(batch, "batch").batch.remove(bytes_of(key, key_size, "key")); });
}

perdure_status perdure_batch_clear(perdure_batch* batch) {
  return guarded([&] { need(batch, "batch").batch.clear(); });
}

void perdure_batch_free(perdure_batch* batch) { delete batch; }

perdure_status perdure_store_apply(perdure_store* store, const perdure_batch* batch) {
  return guarded([&] { store_of(store).apply(need(batch, "batch").batch); });
}

perdure_status perdure_store_size(const perdure_store* store, uint64_t* records) {
  return guarded([&] { give(records, store_of(store).size()); });
}

perdure_status perdure_store_scan(const perdure_store* store, const void* from, size_t from_size,
                                  uint64_t limit, perdure_visit visit, void* context) {
  return guarded([&] {
    if (visit == nullptr) refuse("visit is NULL");
    store_of(store).scan(bytes_of(from, from_size, "key"), limit, visitor(visit, context));
  });
}

perdure_status perdure_store_for_each(const perdure_store* store, perdure_visit visit,
                                      void* context) {
  return guarded([&] {
    if (visit == nullptr) refuse("visit is NULL");
    bool go_on = true;
    store_of(store).for_each([&](std::string_view key, std::string_view value) {
      go_on = go_on && visitor(visit, context)(key, value);
    });
  });
}

perdure_status perdure_store_check(const perdure_store* store, perdure_report report, void* context,
                                   uint64_t* problems) {
  return guarded([&] { give(problems, store_of(store).check(reporter(report, context))); });
}

perdure_status perdure_store_statistics(const perdure_store* store, perdure_figure figure,
                                        void* context) {
  return guarded([&] {
    if (figure == nullptr) refuse("figure is NULL");
    tell_figures(store_of(store).statistics(), figure, context);
  });
}

perdure_status perdure_cursor_open(const perdure_store* store, perdure_cursor** cursor) {
  return guarded([&] { need(cursor, "cursor") = new perdure_cursor{store_of(store).cursor()}; });
}

void perdure_cursor_close(perdure_cursor* cursor) { delete cursor; }

perdure_status perdure_cursor_first(perdure_cursor* cursor, int* valid) {
  return moved(cursor, valid, [](Store::Cursor& one) { one.first(); });
}

perdure_status perdure_cursor_last(perdure_cursor* cursor, int* valid) {
  return moved(cursor, valid, [](Store::Cursor& one) { one.last(); });
}

perdure_status perdure_cursor_seek(perdure_cursor* cursor, const void* key, size_t key_size,
                                   int* valid) {
  return guarded([&] {
    need(cursor, "cursor").cursor.seek(bytes_of(key, key_size, "key"));
    give(valid, cursor->cursor.valid());
  });
}

perdure_status perdure_cursor_seek_down(perdure_cursor* cursor, const void* key, size_t key_size,
                                        int* valid) {
  return guarded([&] {
    need(cursor, "cursor").cursor.seek_down(bytes_of(key, key_size, "key"));
    give(valid, cursor->cursor.valid());
  });
}

perdure_status perdure_cursor_next(perdure_cursor* cursor, int* valid) {
  return moved(cursor, valid, [](Store::Cursor& one) {
    require_valid(one);
    one.next();
  });
}

perdure_status perdure_cursor_previous(perdure_cursor* cursor, int* valid) {
  return moved(cursor, valid, [](Store::Cursor& one) {
    require_valid(one);
    one.previous();
  });
}

perdure_status perdure_cursor_record(const perdure_cursor* cursor, perdure_datum* key,
                                     perdure_datum* value, uint64_t* version) {
  return guarded([&] {
    const Store::Cursor& at = need(cursor, "cursor").cursor;
    require_valid(at);
    give(key, datum_of(Datum(at.key())));
    give(value, datum_of(Datum(at.value())));
    give(version, at.version());
  });
}
