/* What the Python package adds to perdure/c.h: handles that are safe to close while other threads call, calls
 * with keys in plain arguments, which cost Python no struct, and records by the page, so that a scan calls C
 * once for many of them. Included by the module that cffi generates; no part of the library. Functions whose
 * names begin with pypd_ are for Python (build_ffi.py finds them), the others for this file. */
#include <perdure/c.h>
#include <sched.h>
#include <stdlib.h>

/* ---- handles ---- */

/* A pool, index or store, whose calls are counted: who closes it waits for those that are under way, and later
 * ones find it closed. Freed with the last reference: Python's, and those of its pool's indexes and stores. */
typedef struct pypd_handle {
  void* of; /* NULL: closed */
  struct pypd_handle* pool;
  struct pypd_handle* next; /* of those whose end was put off */
  int type;
  int references;
  int inside;
} pypd_handle;

enum { TYPE_POOL, TYPE_INDEX, TYPE_STORE };
/* Statuses of its own: of a handle; of the work of a transaction; of the indexes of one; of who would wait for the call
 * that has called him. */
#define PYPD_CLOSED 101
#define PYPD_RAISED 102
#define PYPD_TOO_MANY 103
#define PYPD_CALLING 104

static void end_what_was_put_off(void);

static void* enter(pypd_handle* handle) {
  end_what_was_put_off();
  /* First here, then looking: take() does it the other way round. */
  __atomic_add_fetch(&handle->inside, 1, __ATOMIC_SEQ_CST);
  void* of = __atomic_load_n(&handle->of, __ATOMIC_SEQ_CST);
  if (of == NULL) __atomic_sub_fetch(&handle->inside, 1, __ATOMIC_SEQ_CST);
  return of;
}
static perdure_status leave(pypd_handle* handle, perdure_status status) {
  __atomic_sub_fetch(&handle->inside, 1, __ATOMIC_SEQ_CST);
  return status;
}
#define ENTER(type, name, handle)   \
  type* const name = enter(handle); \
  if (name == NULL) return PYPD_CLOSED

/* The calls of this thread that have called Python. */
struct call {
  const pypd_handle* handle;
  const struct call* before;
};
static __thread const struct call* calls = NULL;

static int is_calling(const pypd_handle* handle) {
  for (const struct call* one = calls; one != NULL; one = one->before) {
    if (one->handle == handle) return 1;
  }
  return 0;
}

/* What the handle is of, alone; NULL if it has been closed. */
static void* take(pypd_handle* handle) {
  void* of = __atomic_exchange_n(&handle->of, NULL, __ATOMIC_SEQ_CST);
  while (of != NULL && __atomic_load_n(&handle->inside, __ATOMIC_SEQ_CST) > 0) sched_yield();
  return of;
}

/* Whether this thread is in a function that is told of an event, under locks of a pool: closing would wait for them. */
static __thread int telling = 0;
static pypd_handle* put_off = NULL; /* what was to be freed meanwhile */

static perdure_status close_now(pypd_handle* handle) {
  perdure_status status = PERDURE_OK;
  void* of = take(handle);
  if (handle->type == TYPE_INDEX) perdure_index_close(of);
  if (handle->type == TYPE_STORE) perdure_store_close(of);
  if (handle->type == TYPE_POOL) status = perdure_pool_close(of);
  if (status == PERDURE_IN_USE) __atomic_store_n(&handle->of, of, __ATOMIC_SEQ_CST);
  return status;
}

/* Frees it, and those that it was the last reference to. */
static void end_of(pypd_handle* handle) {
  do {
    pypd_handle* pool = handle->pool;
    close_now(handle);
    free(handle);
    handle = pool;
  } while (handle != NULL && __atomic_sub_fetch(&handle->references, 1, __ATOMIC_ACQ_REL) == 0);
}

static void end_what_was_put_off(void) {
  pypd_handle* handle = __atomic_load_n(&put_off, __ATOMIC_ACQUIRE);
  if (handle == NULL || telling != 0) return;
  handle = __atomic_exchange_n(&put_off, NULL, __ATOMIC_ACQ_REL);
  while (handle != NULL) {
    pypd_handle* next = handle->next;
    end_of(handle);
    handle = next;
  }
}

/* Closing what is closed does nothing. PERDURE_IN_USE: a pool that stays open. */
static perdure_status pypd_close(pypd_handle* handle) {
  if (telling != 0 || is_calling(handle)) return PYPD_CALLING;
  end_what_was_put_off(); /* it may be of this pool */
  return close_now(handle);
}

static int pypd_is_closed(const pypd_handle* handle) {
  return __atomic_load_n(&handle->of, __ATOMIC_SEQ_CST) == NULL;
}

/* For Python's garbage collector, which may come at any time, also while a function is told of an event. */
static void pypd_release(pypd_handle* handle) {
  if (handle != NULL && __atomic_sub_fetch(&handle->references, 1, __ATOMIC_ACQ_REL) == 0) {
    if (telling == 0) {
      end_of(handle);
    } else {
      handle->next = __atomic_load_n(&put_off, __ATOMIC_RELAXED);
      while (!__atomic_compare_exchange_n(&put_off, &handle->next, handle, 1, __ATOMIC_RELEASE,
                                          __ATOMIC_RELAXED)) {
      }
    }
  }
  end_what_was_put_off();
}

/* Python's function for events. */
static void pypd_event(void* context, const perdure_event* event);
static void pypd_tell(void* context, const perdure_event* event) {
  ++telling;
  pypd_event(context, event);
  --telling;
}

/* NULL: there is no memory. `status` may be an error, which then stays. */
static perdure_status made(perdure_status status, int type, void* of, pypd_handle* pool,
                           pypd_handle** out) {
  if (status != PERDURE_OK) return status;
  pypd_handle* handle = calloc(1, sizeof *handle);
  if (handle == NULL) {
    if (type == TYPE_INDEX) perdure_index_close(of);
    if (type == TYPE_STORE) perdure_store_close(of);
    if (type == TYPE_POOL) perdure_pool_close(of);
    return PERDURE_NO_MEMORY;
  }
  handle->of = of;
  handle->pool = pool;
  handle->type = type;
  handle->references = 1;
  if (pool != NULL) __atomic_add_fetch(&pool->references, 1, __ATOMIC_ACQ_REL);
  *out = handle;
  return PERDURE_OK;
}

/* ---- pools ---- */

static perdure_status pypd_pool_create(const char* path, const perdure_pool_options* options,
                                       pypd_handle** out) {
  perdure_pool* pool = NULL;
  const perdure_status status = perdure_pool_create(path, options, &pool);
  return made(status, TYPE_POOL, pool, NULL, out);
}
static perdure_status pypd_pool_open(const char* path, const perdure_pool_options* options,
                                     pypd_handle** out) {
  perdure_pool* pool = NULL;
  const perdure_status status = perdure_pool_open(path, options, &pool);
  return made(status, TYPE_POOL, pool, NULL, out);
}
static perdure_status pypd_pool_anonymous(const perdure_pool_options* options, pypd_handle** out) {
  perdure_pool* pool = NULL;
  const perdure_status status = perdure_pool_anonymous(options, &pool);
  return made(status, TYPE_POOL, pool, NULL, out);
}
static perdure_status pypd_pool_sync(pypd_handle* handle) {
  ENTER(perdure_pool, pool, handle);
  return leave(handle, perdure_pool_sync(pool));
}
static perdure_status pypd_pool_check(pypd_handle* handle, perdure_report report, void* context) {
  ENTER(perdure_pool, pool, handle);
  return leave(handle, perdure_pool_check(pool, report, context, NULL));
}
static perdure_status pypd_pool_info(pypd_handle* handle, perdure_pool_info* info) {
  ENTER(perdure_pool, pool, handle);
  return leave(handle, perdure_pool_get_info(pool, info));
}
static perdure_status pypd_pool_structures(pypd_handle* handle, perdure_visit_structure visit,
                                           void* context) {
  ENTER(perdure_pool, pool, handle);
  return leave(handle, perdure_pool_structures(pool, visit, context));
}
static perdure_status pypd_pool_drop(pypd_handle* handle, const char* name, uint64_t* freed_bytes) {
  ENTER(perdure_pool, pool, handle);
  return leave(handle, perdure_pool_drop(pool, name, freed_bytes));
}
static perdure_status pypd_pool_rename(pypd_handle* handle, const char* from, const char* to) {
  ENTER(perdure_pool, pool, handle);
  return leave(handle, perdure_pool_rename(pool, from, to));
}
static perdure_status pypd_pool_shrink(pypd_handle* handle, uint64_t* shrunk_bytes) {
  ENTER(perdure_pool, pool, handle);
  return leave(handle, perdure_pool_shrink(pool, shrunk_bytes));
}
static perdure_status pypd_pool_backup(pypd_handle* handle, const char* path, const char* base) {
  ENTER(perdure_pool, pool, handle);
  return leave(handle, perdure_pool_backup(pool, path, base));
}
static perdure_status pypd_index_create(pypd_handle* handle, const char* name, const char* type,
                                        perdure_kind key, perdure_kind value,
                                        const perdure_option* options, size_t option_count,
                                        pypd_handle** out) {
  perdure_index* index = NULL;
  ENTER(perdure_pool, pool, handle);
  const perdure_status status =
      perdure_index_create(pool, name, type, key, value, options, option_count, &index);
  return leave(handle, made(status, TYPE_INDEX, index, handle, out));
}
static perdure_status pypd_index_open(pypd_handle* handle, const char* name,
                                      const perdure_option* options, size_t option_count,
                                      pypd_handle** out) {
  perdure_index* index = NULL;
  ENTER(perdure_pool, pool, handle);
  const perdure_status status = perdure_index_open(pool, name, options, option_count, &index);
  return leave(handle, made(status, TYPE_INDEX, index, handle, out));
}
static perdure_status pypd_store_create(pypd_handle* handle, const char* name,
                                        const perdure_store_options* options, pypd_handle** out) {
  perdure_store* store = NULL;
  ENTER(perdure_pool, pool, handle);
  const perdure_status status = perdure_store_create(pool, name, options, &store);
  return leave(handle, made(status, TYPE_STORE, store, handle, out));
}
static perdure_status pypd_store_open(pypd_handle* handle, const char* name,
                                      const perdure_store_options* options, pypd_handle** out) {
  perdure_store* store = NULL;
  ENTER(perdure_pool, pool, handle);
  const perdure_status status = perdure_store_open(pool, name, options, &store);
  return leave(handle, made(status, TYPE_STORE, store, handle, out));
}

/* ---- pages ---- */

/* Words, or byte strings one behind the other: `words` are the words, or where the strings end. */
typedef struct pypd_column {
  uint32_t kind;
  uint32_t reserved;
  uint64_t* words;
  uint64_t word_room;
  char* bytes;
  uint64_t byte_count;
  uint64_t byte_room;
} pypd_column;

typedef struct pypd_page {
  pypd_column keys;
  pypd_column values;
  uint64_t count;
  uint64_t count_max;
  uint64_t bytes_max; /* after which the page is full, too */
  int no_memory;
  int full; /* there may be more */
} pypd_page;

static int grow(void** memory, uint64_t* room, uint64_t wanted, size_t size) {
  if (wanted <= *room) return 1;
  const uint64_t larger = wanted < 2 * *room ? 2 * *room : wanted < 64 ? 64 : wanted;
  void* moved = realloc(*memory, larger * size);
  if (moved == NULL) return 0;
  *memory = moved;
  *room = larger;
  return 1;
}

static int append(pypd_column* to, uint64_t at, const perdure_datum* datum) {
  to->kind = datum->kind;
  if (!grow((void**)&to->words, &to->word_room, at + 1, sizeof(uint64_t))) return 0;
  if (datum->kind == PERDURE_U64) {
    to->words[at] = datum->word;
    return 1;
  }
  if (!grow((void**)&to->bytes, &to->byte_room, to->byte_count + datum->size, 1)) return 0;
  if (datum->size > 0) memcpy(to->bytes + to->byte_count, datum->data, datum->size);
  to->byte_count += datum->size;
  to->words[at] = to->byte_count;
  return 1;
}

static int collect(void* context, const perdure_datum* key, const perdure_datum* value) {
  pypd_page* page = context;
  if (!append(&page->keys, page->count, key) || !append(&page->values, page->count, value)) {
    page->no_memory = 1;
    return 0;
  }
  ++page->count;
  page->full = page->count >= page->count_max ||
               page->keys.byte_count + page->values.byte_count >= page->bytes_max;
  return !page->full;
}

static void page_begin(pypd_page* page, uint64_t count_max, uint64_t bytes_max) {
  page->count = 0;
  page->keys.byte_count = 0;
  page->values.byte_count = 0;
  page->count_max = count_max;
  page->bytes_max = bytes_max;
  page->no_memory = 0;
  page->full = 0;
}

static perdure_status page_end(const pypd_page* page, perdure_status status) {
  return status == PERDURE_OK && page->no_memory ? PERDURE_NO_MEMORY : status;
}

static void pypd_page_free(pypd_page* page) {
  free(page->keys.words);
  free(page->keys.bytes);
  free(page->values.words);
  free(page->values.bytes);
  memset(page, 0, sizeof *page);
}

/* A key or value in plain arguments. */
static perdure_datum datum_of(uint32_t kind, uint64_t word, const char* data, size_t size) {
  return kind == PERDURE_U64 ? perdure_word(word) : perdure_bytes(data, size);
}

/* ---- indexes ---- */

static perdure_status pypd_scan(pypd_handle* handle, uint32_t kind, uint64_t word, const char* data,
                                size_t size, uint64_t count_max, uint64_t bytes_max,
                                pypd_page* page) {
  ENTER(perdure_index, index, handle);
  page_begin(page, count_max, bytes_max);
  return leave(handle, page_end(page, perdure_index_scan(index, datum_of(kind, word, data, size),
                                                         count_max, collect, page)));
}

/* A page, and the key that records must be below. */
typedef struct pypd_below {
  pypd_page* page;
  perdure_datum key;
} pypd_below;

static int is_key(const perdure_datum* a, const perdure_datum* b) {
  return a->kind == PERDURE_U64
             ? a->word == b->word
             : a->size == b->size && (a->size == 0 || memcmp(a->data, b->data, a->size) == 0);
}

static int collect_below(void* context, const perdure_datum* key, const perdure_datum* value) {
  const pypd_below* below = context;
  return is_key(key, &below->key) || collect(below->page, key, value);
}

/* Downwards from the greatest key below the one, or from the last one if there is none. */
static perdure_status pypd_scan_back(pypd_handle* handle, int below, uint32_t kind, uint64_t word,
                                     const char* data, size_t size, uint64_t count_max,
                                     uint64_t bytes_max, pypd_page* page) {
  ENTER(perdure_index, index, handle);
  page_begin(page, count_max, bytes_max);
  pypd_below context = {page, datum_of(kind, word, data, size)};
  /* One more than the page takes: the key itself is passed over. */
  return leave(
      handle,
      page_end(page, below ? perdure_index_scan_back(index, &context.key, count_max + 1,
                                                     collect_below, &context)
                           : perdure_index_scan_back(index, NULL, count_max, collect, page)));
}

static perdure_status pypd_for_each(pypd_handle* handle, uint64_t count_max, pypd_page* page) {
  ENTER(perdure_index, index, handle);
  page_begin(page, count_max, UINT64_MAX);
  return leave(handle, page_end(page, perdure_index_for_each(index, collect, page)));
}

static perdure_status pypd_lookup(pypd_handle* handle, uint32_t kind, uint64_t word,
                                  const char* data, size_t size, perdure_value* value, int* found) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_lookup(index, datum_of(kind, word, data, size), value, found));
}

static perdure_status pypd_visit(pypd_handle* handle, uint32_t kind, uint64_t word,
                                 const char* data, size_t size, perdure_use see, void* context,
                                 int* found) {
  ENTER(perdure_index, index, handle);
  const struct call here = {handle, calls};
  calls = &here;
  const perdure_status status =
      perdure_index_visit(index, datum_of(kind, word, data, size), see, context, found);
  calls = here.before;
  return leave(handle, status);
}

static perdure_status pypd_remove(pypd_handle* handle, uint32_t kind, uint64_t word,
                                  const char* data, size_t size, int* removed) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_remove(index, datum_of(kind, word, data, size), removed));
}

static perdure_status pypd_increment(pypd_handle* handle, uint32_t kind, uint64_t word,
                                     const char* data, size_t size, int64_t by, uint64_t* sum) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_increment(index, datum_of(kind, word, data, size), by, sum));
}

/* 0 insert, 1 update, 2 upsert, 3 bulk upsert. */
static perdure_status pypd_write(pypd_handle* handle, int verb, uint32_t key_kind,
                                 uint64_t key_word, const char* key_data, size_t key_size,
                                 uint32_t value_kind, uint64_t value_word, const char* value_data,
                                 size_t value_size, int* done) {
  const perdure_datum key = datum_of(key_kind, key_word, key_data, key_size);
  const perdure_datum value = datum_of(value_kind, value_word, value_data, value_size);
  ENTER(perdure_index, index, handle);
  switch (verb) {
    case 0:
      return leave(handle, perdure_index_insert(index, key, value, done));
    case 1:
      return leave(handle, perdure_index_update(index, key, value, done));
    case 2:
      return leave(handle, perdure_index_upsert(index, key, value));
    default:
      return leave(handle, perdure_index_bulk_upsert(index, key, value));
  }
}

static perdure_status pypd_compare_exchange(pypd_handle* handle, uint32_t key_kind,
                                            uint64_t key_word, const char* key_data,
                                            size_t key_size, uint32_t value_kind,
                                            uint64_t expected_word, const char* expected,
                                            size_t expected_size, uint64_t desired_word,
                                            const char* desired, size_t desired_size, int* done) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_compare_exchange(
                           index, datum_of(key_kind, key_word, key_data, key_size),
                           datum_of(value_kind, expected_word, expected, expected_size),
                           datum_of(value_kind, desired_word, desired, desired_size), done));
}

static perdure_status pypd_compare_remove(pypd_handle* handle, uint32_t key_kind, uint64_t key_word,
                                          const char* key_data, size_t key_size,
                                          uint32_t value_kind, uint64_t expected_word,
                                          const char* expected, size_t expected_size, int* done) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_compare_remove(
                           index, datum_of(key_kind, key_word, key_data, key_size),
                           datum_of(value_kind, expected_word, expected, expected_size), done));
}

/* Of batches `words` are the words, or the lengths of the strings that stand in `bytes`. */
static perdure_datum next_datum(uint32_t kind, const uint64_t* words, const char* bytes, size_t i,
                                uint64_t* at) {
  if (kind == PERDURE_U64) return perdure_word(words[i]);
  const perdure_datum datum = perdure_bytes(bytes + *at, words[i]);
  *at += words[i];
  return datum;
}

static perdure_status pypd_multi_lookup(pypd_handle* handle, uint32_t kind, const uint64_t* words,
                                        const char* bytes, size_t count, unsigned char* found,
                                        pypd_page* page) {
  enum { kPart = 64 };
  perdure_datum keys[kPart];
  perdure_value values[kPart];
  perdure_status status = PERDURE_OK;
  uint64_t at = 0;
  ENTER(perdure_index, index, handle);
  memset(values, 0, sizeof values);
  page_begin(page, UINT64_MAX, UINT64_MAX);
  for (size_t begin = 0; begin < count && status == PERDURE_OK; begin += kPart) {
    const size_t n = count - begin < kPart ? count - begin : kPart;
    for (size_t i = 0; i < n; ++i) keys[i] = next_datum(kind, words, bytes, begin + i, &at);
    status = perdure_index_multi_lookup(index, keys, n, values, found + begin, NULL);
    for (size_t i = 0; i < n && status == PERDURE_OK; ++i) {
      if (!found[begin + i]) continue;
      const perdure_datum value = values[i].kind == PERDURE_U64
                                      ? perdure_word(values[i].word)
                                      : perdure_bytes(values[i].data, values[i].size);
      if (!append(&page->values, page->count, &value)) status = PERDURE_NO_MEMORY;
      ++page->count;
    }
  }
  for (size_t i = 0; i < kPart; ++i) perdure_value_free(&values[i]);
  return leave(handle, status);
}

/* `inserted`: of inserts, a byte for each; NULL: upserts. */
static perdure_status pypd_multi_write(pypd_handle* handle, uint32_t key_kind,
                                       const uint64_t* key_words, const char* key_bytes,
                                       uint32_t value_kind, const uint64_t* value_words,
                                       const char* value_bytes, size_t count,
                                       unsigned char* inserted) {
  enum { kPart = 256 };
  perdure_record records[kPart];
  perdure_status status = PERDURE_OK;
  uint64_t key_at = 0, value_at = 0;
  ENTER(perdure_index, index, handle);
  for (size_t begin = 0; begin < count && status == PERDURE_OK; begin += kPart) {
    const size_t n = count - begin < kPart ? count - begin : kPart;
    for (size_t i = 0; i < n; ++i) {
      records[i].key = next_datum(key_kind, key_words, key_bytes, begin + i, &key_at);
      records[i].value = next_datum(value_kind, value_words, value_bytes, begin + i, &value_at);
    }
    status = inserted == NULL
                 ? perdure_index_multi_upsert(index, records, n)
                 : perdure_index_multi_insert(index, records, n, inserted + begin, NULL);
  }
  return leave(handle, status);
}

static perdure_status pypd_lookup_words(pypd_handle* handle, const uint64_t* keys, size_t count,
                                        uint64_t* values, unsigned char* found) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_lookup_words(index, keys, count, values, found, NULL));
}
static perdure_status pypd_insert_words(pypd_handle* handle, const uint64_t* keys,
                                        const uint64_t* values, size_t count,
                                        unsigned char* inserted) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_insert_words(index, keys, values, count, inserted, NULL));
}
static perdure_status pypd_upsert_words(pypd_handle* handle, const uint64_t* keys,
                                        const uint64_t* values, size_t count) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_upsert_words(index, keys, values, count));
}
static perdure_status pypd_scan_words(pypd_handle* handle, uint64_t from, uint64_t limit,
                                      uint64_t* keys, uint64_t* values, uint64_t* count) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_scan_words(index, from, limit, keys, values, count));
}

static perdure_status pypd_index_kinds(pypd_handle* handle, perdure_kind* key,
                                       perdure_kind* value) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_kinds(index, key, value));
}
static perdure_status pypd_checkpoint(pypd_handle* handle, unsigned threads) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_checkpoint(index, threads));
}
static perdure_status pypd_count(pypd_handle* handle, uint64_t* records) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_count(index, records));
}
static perdure_status pypd_check(pypd_handle* handle, perdure_report report, void* context) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_check(index, report, context, NULL));
}
static perdure_status pypd_statistics(pypd_handle* handle, perdure_figure figure, void* context) {
  ENTER(perdure_index, index, handle);
  return leave(handle, perdure_index_statistics(index, figure, context));
}

/* ---- transactions ---- */

/* A transaction refers to its indexes until it ends: each call makes sure that they, and the pool, are open, and
 * stay so meanwhile. */
typedef struct pypd_transaction {
  perdure_transaction* of;
  pypd_handle* pool;
  pypd_handle* indexes[64]; /* as many as the library allows */
  int count;
  int held; /* of the indexes, those that are entered */
} pypd_transaction;

static void leave_all(pypd_transaction* transaction) {
  while (transaction->held > 0) leave(transaction->indexes[--transaction->held], PERDURE_OK);
}
/* 0 if one of them has been closed. */
static int enter_all(pypd_transaction* transaction) {
  while (transaction->held < transaction->count &&
         enter(transaction->indexes[transaction->held]) != NULL) {
    ++transaction->held;
  }
  if (transaction->held == transaction->count) return 1;
  leave_all(transaction);
  return 0;
}

/* Forgets what was done, and the indexes. */
static void forget(pypd_transaction* transaction) {
  while (transaction->count > 0) pypd_release(transaction->indexes[--transaction->count]);
}

static perdure_status pypd_transaction_begin(pypd_handle* handle, pypd_transaction* transaction) {
  ENTER(perdure_pool, pool, handle);
  memset(transaction, 0, sizeof *transaction);
  const perdure_status status = perdure_transaction_begin(pool, &transaction->of);
  if (status != PERDURE_OK) return leave(handle, status);
  transaction->pool = handle;
  __atomic_add_fetch(&handle->references, 1, __ATOMIC_ACQ_REL);
  return leave(handle, PERDURE_OK);
}

/* Of one that is not committed: nothing has happened. For Python's garbage collector, too. */
static void pypd_transaction_free(pypd_transaction* transaction) {
  perdure_transaction_free(transaction->of);
  transaction->of = NULL;
  forget(transaction);
  pypd_release(transaction->pool);
  transaction->pool = NULL;
}

/* A transaction that has ended is closed; so is one of whose indexes one is. */
static perdure_status transaction_enter(pypd_transaction* transaction) {
  if (transaction->of == NULL || enter(transaction->pool) == NULL) return PYPD_CLOSED;
  if (enter_all(transaction)) return PERDURE_OK;
  return leave(transaction->pool, PYPD_CLOSED);
}
static perdure_status transaction_leave(pypd_transaction* transaction, perdure_status status) {
  leave_all(transaction);
  return leave(transaction->pool, status);
}

static perdure_status pypd_transaction_commit(pypd_transaction* transaction) {
  const perdure_status entered = transaction_enter(transaction);
  if (entered != PERDURE_OK) return entered;
  const perdure_status status =
      transaction_leave(transaction, perdure_transaction_commit(transaction->of));
  pypd_transaction_free(transaction);
  return status;
}

/* Of an index that the transaction has to do with from now on. NULL: `status` says why. */
static perdure_index* use(pypd_transaction* transaction, pypd_handle* handle,
                          perdure_status* status) {
  *status = PERDURE_OK;
  for (int i = 0; i < transaction->count; ++i) {
    if (transaction->indexes[i] == handle) return handle->of;
  }
  if ((size_t)transaction->count == sizeof transaction->indexes / sizeof *transaction->indexes) {
    *status = PYPD_TOO_MANY;
    return NULL;
  }
  perdure_index* index = enter(handle);
  if (index == NULL) {
    *status = PYPD_CLOSED;
    return NULL;
  }
  __atomic_add_fetch(&handle->references, 1, __ATOMIC_ACQ_REL);
  transaction->indexes[transaction->count++] = handle;
  ++transaction->held;
  return index;
}
#define USE(name, transaction, handle)                                  \
  perdure_status name##_status = transaction_enter(transaction);        \
  if (name##_status != PERDURE_OK) return name##_status;                \
  perdure_index* const name = use(transaction, handle, &name##_status); \
  if (name == NULL) return transaction_leave(transaction, name##_status)

static perdure_status pypd_transaction_lookup(pypd_transaction* transaction, pypd_handle* handle,
                                              uint32_t kind, uint64_t word, const char* data,
                                              size_t size, perdure_value* value, int* found) {
  USE(index, transaction, handle);
  return transaction_leave(
      transaction, perdure_transaction_lookup(transaction->of, index,
                                              datum_of(kind, word, data, size), value, found));
}

static perdure_status pypd_transaction_remove(pypd_transaction* transaction, pypd_handle* handle,
                                              uint32_t kind, uint64_t word, const char* data,
                                              size_t size, int* removed) {
  USE(index, transaction, handle);
  return transaction_leave(transaction,
                           perdure_transaction_remove(transaction->of, index,
                                                      datum_of(kind, word, data, size), removed));
}

static perdure_status pypd_transaction_increment(pypd_transaction* transaction, pypd_handle* handle,
                                                 uint32_t kind, uint64_t word, const char* data,
                                                 size_t size, int64_t by, uint64_t* sum) {
  USE(index, transaction, handle);
  return transaction_leave(
      transaction, perdure_transaction_increment(transaction->of, index,
                                                 datum_of(kind, word, data, size), by, sum));
}

/* 0 insert, 1 update, 2 upsert. */
static perdure_status pypd_transaction_write(pypd_transaction* transaction, pypd_handle* handle,
                                             int verb, uint32_t key_kind, uint64_t key_word,
                                             const char* key_data, size_t key_size,
                                             uint32_t value_kind, uint64_t value_word,
                                             const char* value_data, size_t value_size, int* done) {
  const perdure_datum key = datum_of(key_kind, key_word, key_data, key_size);
  const perdure_datum value = datum_of(value_kind, value_word, value_data, value_size);
  USE(index, transaction, handle);
  perdure_transaction* const of = transaction->of;
  return transaction_leave(transaction,
                           verb == 0   ? perdure_transaction_insert(of, index, key, value, done)
                           : verb == 1 ? perdure_transaction_update(of, index, key, value, done)
                                       : perdure_transaction_upsert(of, index, key, value));
}

/* The work of perdure_transact(): Python's, with the transaction of this attempt, whose indexes then stay open until
 * it is committed. */
typedef struct pypd_work {
  pypd_transaction* transaction;
  perdure_work work;
  void* context;
} pypd_work;

static int attempt(void* context, perdure_transaction* of) {
  const pypd_work* work = context;
  pypd_transaction* transaction = work->transaction;
  leave_all(transaction);
  forget(transaction);
  transaction->of = of;
  const int status = work->work(work->context, of);
  transaction->of = NULL;
  if (status != PERDURE_OK) return status;
  return enter_all(transaction) ? PERDURE_OK : PYPD_CLOSED;
}

/* `transaction` is what Python's work uses. */
static perdure_status pypd_transact(pypd_handle* handle, perdure_work work, void* context,
                                    pypd_transaction* transaction) {
  pypd_work with = {transaction, work, context};
  ENTER(perdure_pool, pool, handle);
  memset(transaction, 0, sizeof *transaction);
  transaction->pool = handle;
  const struct call here = {handle, calls};
  calls = &here;
  const perdure_status status = perdure_transact(pool, attempt, &with);
  calls = here.before;
  leave_all(transaction);
  forget(transaction);
  transaction->pool = NULL;
  return leave(handle, status);
}

/* ---- stores ---- */

static perdure_status pypd_store_get(pypd_handle* handle, const char* key, size_t key_size,
                                     perdure_value* value, uint64_t* version, int* found) {
  ENTER(perdure_store, store, handle);
  return leave(handle, perdure_store_get(store, key, key_size, value, version, found));
}
static perdure_status pypd_store_put(pypd_handle* handle, const char* key, size_t key_size,
                                     const char* value, size_t value_size, int64_t expires_ms,
                                     uint64_t* version) {
  ENTER(perdure_store, store, handle);
  return leave(handle,
               perdure_store_put(store, key, key_size, value, value_size, expires_ms, version));
}
static perdure_status pypd_store_insert(pypd_handle* handle, const char* key, size_t key_size,
                                        const char* value, size_t value_size, int64_t expires_ms,
                                        int* inserted) {
  ENTER(perdure_store, store, handle);
  return leave(handle,
               perdure_store_insert(store, key, key_size, value, value_size, expires_ms, inserted));
}
static perdure_status pypd_store_update(pypd_handle* handle, const char* key, size_t key_size,
                                        const char* value, size_t value_size, int64_t expires_ms,
                                        int* updated) {
  ENTER(perdure_store, store, handle);
  return leave(handle,
               perdure_store_update(store, key, key_size, value, value_size, expires_ms, updated));
}
static perdure_status pypd_store_cas(pypd_handle* handle, const char* key, size_t key_size,
                                     uint64_t version, const char* value, size_t value_size,
                                     int64_t expires_ms, int* swapped) {
  ENTER(perdure_store, store, handle);
  return leave(handle, perdure_store_cas(store, key, key_size, version, value, value_size,
                                         expires_ms, swapped));
}
static perdure_status pypd_store_remove(pypd_handle* handle, const char* key, size_t key_size,
                                        int* removed) {
  ENTER(perdure_store, store, handle);
  return leave(handle, perdure_store_remove(store, key, key_size, removed));
}
static perdure_status pypd_store_cas_remove(pypd_handle* handle, const char* key, size_t key_size,
                                            uint64_t version, int* removed) {
  ENTER(perdure_store, store, handle);
  return leave(handle, perdure_store_cas_remove(store, key, key_size, version, removed));
}
static perdure_status pypd_store_increment(pypd_handle* handle, const char* key, size_t key_size,
                                           int64_t by, int64_t* sum) {
  ENTER(perdure_store, store, handle);
  return leave(handle, perdure_store_increment(store, key, key_size, by, sum));
}
static perdure_status pypd_store_append(pypd_handle* handle, const char* key, size_t key_size,
                                        const char* suffix, size_t suffix_size, uint64_t* size) {
  ENTER(perdure_store, store, handle);
  return leave(handle, perdure_store_append(store, key, key_size, suffix, suffix_size, size));
}
static perdure_status pypd_store_apply(pypd_handle* handle, const perdure_batch* batch) {
  ENTER(perdure_store, store, handle);
  return leave(handle, perdure_store_apply(store, batch));
}

static perdure_status pypd_store_multi_get(pypd_handle* handle, const uint64_t* lengths,
                                           const char* bytes, size_t count, unsigned char* found,
                                           pypd_page* page) {
  enum { kPart = 64 };
  perdure_datum keys[kPart];
  perdure_value values[kPart];
  perdure_status status = PERDURE_OK;
  uint64_t at = 0;
  ENTER(perdure_store, store, handle);
  memset(values, 0, sizeof values);
  page_begin(page, UINT64_MAX, UINT64_MAX);
  for (size_t begin = 0; begin < count && status == PERDURE_OK; begin += kPart) {
    const size_t n = count - begin < kPart ? count - begin : kPart;
    for (size_t i = 0; i < n; ++i) {
      keys[i] = next_datum(PERDURE_BYTES, lengths, bytes, begin + i, &at);
    }
    status = perdure_store_multi_get(store, keys, n, values, found + begin, NULL);
    for (size_t i = 0; i < n && status == PERDURE_OK; ++i) {
      if (!found[begin + i]) continue;
      const perdure_datum value = perdure_bytes(values[i].data, values[i].size);
      if (!append(&page->values, page->count, &value)) status = PERDURE_NO_MEMORY;
      ++page->count;
    }
  }
  for (size_t i = 0; i < kPart; ++i) perdure_value_free(&values[i]);
  return leave(handle, status);
}

static perdure_status pypd_store_scan(pypd_handle* handle, const char* from, size_t size,
                                      uint64_t count_max, uint64_t bytes_max, pypd_page* page) {
  ENTER(perdure_store, store, handle);
  page_begin(page, count_max, bytes_max);
  return leave(handle,
               page_end(page, perdure_store_scan(store, from, size, count_max, collect, page)));
}

static perdure_status pypd_store_for_each(pypd_handle* handle, uint64_t count_max,
                                          pypd_page* page) {
  ENTER(perdure_store, store, handle);
  page_begin(page, count_max, UINT64_MAX);
  return leave(handle, page_end(page, perdure_store_for_each(store, collect, page)));
}

/* Downwards from the greatest key below the one, or, if that is NULL, from the last one. */
static perdure_status pypd_store_scan_down(pypd_handle* handle, const char* below, size_t size,
                                           uint64_t count_max, uint64_t bytes_max,
                                           pypd_page* page) {
  perdure_cursor* cursor = NULL;
  int valid = 0;
  ENTER(perdure_store, store, handle);
  page_begin(page, count_max, bytes_max);
  perdure_status status = perdure_cursor_open(store, &cursor);
  if (status == PERDURE_OK) {
    status = below == NULL ? perdure_cursor_last(cursor, &valid)
                           : perdure_cursor_seek_down(cursor, below, size, &valid);
  }
  const perdure_datum bound = perdure_bytes(below, size);
  while (status == PERDURE_OK && valid) {
    perdure_datum key, value;
    status = perdure_cursor_record(cursor, &key, &value, NULL);
    if (status != PERDURE_OK) break;
    if ((below == NULL || !is_key(&key, &bound)) && !collect(page, &key, &value)) break;
    status = perdure_cursor_previous(cursor, &valid);
  }
  perdure_cursor_close(cursor);
  return leave(handle, page_end(page, status));
}

static perdure_status pypd_store_size(pypd_handle* handle, uint64_t* records) {
  ENTER(perdure_store, store, handle);
  return leave(handle, perdure_store_size(store, records));
}
static perdure_status pypd_store_check(pypd_handle* handle, perdure_report report, void* context) {
  ENTER(perdure_store, store, handle);
  return leave(handle, perdure_store_check(store, report, context, NULL));
}
static perdure_status pypd_store_statistics(pypd_handle* handle, perdure_figure figure,
                                            void* context) {
  ENTER(perdure_store, store, handle);
  return leave(handle, perdure_store_statistics(store, figure, context));
}
