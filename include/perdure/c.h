/* Perdure from C, and from languages that call C.
 *
 *   perdure_pool *pool;
 *   perdure_index *words;
 *   if (perdure_pool_create("words.pool", NULL, &pool) != PERDURE_OK ||
 *       perdure_index_create(pool, "words", "plush", PERDURE_BYTES, PERDURE_BYTES, NULL, 0, &words) !=
 *           PERDURE_OK) {
 *     fprintf(stderr, "%s\n", perdure_last_error());
 *     return 1;
 *   }
 // durable on return
 *   perdure_index_upsert(words, perdure_text("perdure"), perdure_text("to last"));
 *   perdure_index_close(words);
 *   perdure_pool_close(pool);
 *
 * Every function that can fail returns PERDURE_OK or the code of the error, whose message
 * perdure_last_error() has until the thread's next call that fails. Whether a key is there is no error: an
 * int that the caller passes a pointer to says so, and may be NULL where nobody wants to know. On an error
 * results are as they were.
 *
 * Handles are opaque, and of the caller until closed. A NULL handle is PERDURE_INVALID_ARGUMENT; to close
 * NULL does nothing. Calls may be made by any thread, as in perdure/index.h and perdure/store.h, which also
 * say what is durable when; a handle is closed once all other calls with it have returned. Callbacks must
 * return: no longjmp() and no exception out of them.
 *
 * The ABI only grows: functions are never changed or taken away, and the structs of options begin with their
 * size, so that a program that was compiled against an older header goes on working.
 */
#ifndef PERDURE_C_H
#define PERDURE_C_H

/* This is C: NOLINTBEGIN(modernize-*,readability-identifier-naming) */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors ---- */

/* The codes of perdure/error.h, and PERDURE_NO_MEMORY. They never change. */
typedef enum perdure_status {
  PERDURE_OK = 0,
  PERDURE_INVALID_ARGUMENT = 1,
  PERDURE_NOT_FOUND = 2,
  PERDURE_NOT_A_FILE = 3,
  PERDURE_PERMISSION = 4,
  PERDURE_EMPTY = 5,
  PERDURE_FOREIGN = 6,
  PERDURE_TRUNCATED = 7,
  PERDURE_CORRUPT = 8,
  PERDURE_VERSION = 9,
  PERDURE_LOCKED = 10,
  PERDURE_WRONG_TYPE = 11,
  PERDURE_NO_SUCH_NAME = 12,
  PERDURE_NAME_EXISTS = 13,
  PERDURE_EXISTS = 14,
  PERDURE_CAPACITY = 15,
  PERDURE_POOL_FULL = 16,
  PERDURE_NO_SPACE = 17,
  PERDURE_READ_ONLY = 18,
  PERDURE_DURABILITY = 19,
  PERDURE_TOO_LARGE = 20,
  PERDURE_IO = 21,
  PERDURE_IN_USE = 22,
  PERDURE_INTERNAL = 23,
  PERDURE_CONFLICT = 24,
  PERDURE_TOO_OLD = 25,
  PERDURE_NO_MEMORY = 100
} perdure_status;

/* The message and the code of this thread's last call that failed; "" and PERDURE_OK before the first.
 * The text is valid until the thread's next call that fails. */
const char* perdure_last_error(void);
perdure_status perdure_last_status(void);
/* The short name of a code, such as "pool-full"; "unknown" for what is none. */
const char* perdure_status_name(int status);
/* "0.1.0", of the library at run time. */
const char* perdure_version(void);

/* ---- Keys and values ---- */

/* Keys and values are 64-bit words or byte strings. */
typedef enum perdure_kind { PERDURE_U64 = 0, PERDURE_BYTES = 1 } perdure_kind;

/* A key or value, not owned: valid for the call that it is passed to, or that passes it to a callback. */
typedef struct perdure_datum {
  uint32_t kind; /* a perdure_kind */
  uint32_t reserved;
  uint64_t word;    /* of PERDURE_U64 */
  const void* data; /* of PERDURE_BYTES; may be NULL if there are none */
  size_t size;
} perdure_datum;

/* A datum that is a word; one of bytes, which are not copied; one of a text without its zero. */
static inline perdure_datum perdure_word(uint64_t word) {
  perdure_datum datum;
  memset(&datum, 0, sizeof datum);
  datum.kind = PERDURE_U64;
  datum.word = word;
  return datum;
}
static inline perdure_datum perdure_bytes(const void* data, size_t size) {
  perdure_datum datum;
  memset(&datum, 0, sizeof datum);
  datum.kind = PERDURE_BYTES;
  datum.data = data;
  datum.size = size;
  return datum;
}
static inline perdure_datum perdure_text(const char* text) {
  return perdure_bytes(text, strlen(text));
}

/* A record as batches take it, not owned. */
typedef struct perdure_record {
  perdure_datum key;
  perdure_datum value;
} perdure_record;

/* A value that the library hands out, in memory that it gets with malloc() and uses again in the next call
 * with the same object. All zero at the beginning: perdure_value value = {0}; at the end
 * perdure_value_free(). */
typedef struct perdure_value {
  uint32_t kind;
  uint32_t reserved;
  uint64_t word;   /* of PERDURE_U64 */
  char* data;      /* of PERDURE_BYTES; a zero that is not counted follows them */
  size_t size;     /* how many bytes there are */
  size_t capacity; /* of `data`, kept by the library */
} perdure_value;

/* Frees the memory; the object may be used again. */
void perdure_value_free(perdure_value* value);

/* Called with each record; what it returns says whether to go on (not 0) or to stop (0). */
typedef int (*perdure_visit)(void* context, const perdure_datum* key, const perdure_datum* value);
/* Called with a value where it lies in the pool: valid for the call. */
typedef void (*perdure_use)(void* context, const perdure_datum* value);
/* Called with each sentence about what is wrong. */
typedef void (*perdure_report)(void* context, const char* sentence);
/* Called with each figure: "records_level_1", 123, "records". */
typedef void (*perdure_figure)(void* context, const char* name, double value, const char* unit);

/* ---- Pools ---- */

typedef struct perdure_pool perdure_pool;

/* Which crash an operation that returned survives. */
typedef enum perdure_durability {
  PERDURE_BEST = 0,    /* the strongest without a system call for each operation */
  PERDURE_PROCESS = 1, /* the death of the process */
  PERDURE_POWER = 2    /* loss of power; PERDURE_DURABILITY where the medium cannot */
} perdure_durability;

/* What happens to a pool. */
typedef enum perdure_event_kind {
  PERDURE_OPENED = 0,      /* it was made or opened, and can be used */
  PERDURE_RECOVERED = 1,   /* before that: what a crash interrupted is completed */
  PERDURE_GROWN = 2,       /* it has taken more of its medium */
  PERDURE_NEARLY_FULL = 3, /* so much of the capacity is in use as `nearly_full_percent` says */
  PERDURE_DAMAGED = 4 /* what was read is not what was written; that call is PERDURE_CORRUPT, too */
} perdure_event_kind;
/* One of these; the texts are valid for the call. May get members behind those that it has. */
typedef struct perdure_event {
  size_t size;   /* of this struct, in the library */
  uint32_t kind; /* a perdure_event_kind */
  uint32_t reserved;
  const char* path;    /* of the pool; "" of an anonymous one */
  const char* message; /* a sentence for a log */
  uint64_t size_bytes; /* what the pool has grown to */
  uint64_t used_bytes;
  uint64_t capacity_bytes;
} perdure_event;
/* Called in the middle of an operation and under locks of the pool, by any thread and several at a time: it must be
 * quick, and must use neither the pool nor anything in it. PoolOptions::on_event of perdure/pool.h says when. */
typedef void (*perdure_on_event)(void* context, const perdure_event* event);

/* Zero means the default everywhere. Begin with
 *   perdure_pool_options options = PERDURE_POOL_OPTIONS_INIT; */
typedef struct perdure_pool_options {
  size_t size;             /* of this struct: sizeof(perdure_pool_options) */
  uint64_t capacity_bytes; /* that a new pool may grow to; 1 GiB */
  uint64_t growth_bytes;   /* by which the file grows; 4 MiB */
  uint64_t reserve_bytes;  /* of the capacity that get their blocks at creation; none */
  uint32_t durability;     /* a perdure_durability */
  uint32_t domain;         /* 0: as detected; else forced: 1 page, 2 line, 3 byte */
  uint32_t read_only;      /* not 0: maps a private copy; writes are PERDURE_READ_ONLY */
  uint32_t verify;         /* not 0: verifies the seals of the last close at opening */
  uint32_t small_pages;    /* not 0: does not ask for huge pages */
  uint32_t trust_payload;  /* not 0: does not verify checksums of byte strings when they are read */
  uint32_t no_seal;        /* not 0: a clean close does not seal the segments */
  uint32_t
      serve_backups; /* not 0: other processes may have backups made while it is open to write */
  uint64_t
      capacity_at_least_bytes; /* that a pool which is opened may grow to from then on; as it is */
  uint64_t copy_bytes_max;     /* of memory, for a copy that is read; 0: half of what is free */
  perdure_on_event on_event;   /* is told what happens to the pool, until all of it is closed */
  void* on_event_context;
  uint32_t
      nearly_full_percent; /* when PERDURE_NEARLY_FULL comes, 1 to 100; 90. More than 100: never */
  uint32_t reserved;
} perdure_pool_options;
/* The defaults. */
#define PERDURE_POOL_OPTIONS_INIT \
  {sizeof(perdure_pool_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, 0}

/* `options` may be NULL. Errors as in perdure/pool.h. */
perdure_status perdure_pool_create(const char* path, const perdure_pool_options* options,
                                   perdure_pool** pool);
perdure_status perdure_pool_open(const char* path, const perdure_pool_options* options,
                                 perdure_pool** pool);
perdure_status perdure_pool_anonymous(const perdure_pool_options* options, perdure_pool** pool);
/* Closes it cleanly, and frees the handle, also on an error; but for PERDURE_IN_USE: indexes or stores of
 * the pool are open, and it stays as it is. */
perdure_status perdure_pool_close(perdure_pool* pool);
/* What is written survives a power failure where the medium can: msync of an ordinary file. */
perdure_status perdure_pool_sync(perdure_pool* pool);
/* `*problems` is how many there are, each of which `report`, if not NULL, is told. */
perdure_status perdure_pool_check(const perdure_pool* pool, perdure_report report, void* context,
                                  uint64_t* problems);

/* The library sets `size`, and what fits into the `size` that it finds. */
typedef struct perdure_pool_info {
  size_t size; /* of this struct: sizeof(perdure_pool_info) */
  uint64_t capacity_bytes;
  uint64_t size_bytes;      /* that the pool occupies on its medium */
  uint64_t allocated_bytes; /* in allocated blocks */
  uint64_t free_bytes;      /* in free blocks of what it has grown to */
  uint64_t generation;      /* how often it was opened for writing */
  uint32_t format_version;
  uint32_t clean; /* whether the last close before this open was clean */
  uint32_t read_only;
  uint32_t durability; /* a perdure_durability */
  char uuid[40];
  char medium[16]; /* "file", "tmpfs", "dax", ... */
  char domain[8];  /* "page", "line", "byte" */
} perdure_pool_info;
/* What is known of an open pool. */
perdure_status perdure_pool_get_info(const perdure_pool* pool, perdure_pool_info* info);

/* Called with each structure of a pool; go on: not 0. */
typedef int (*perdure_visit_structure)(void* context, const char* name, const char* type,
                                       perdure_kind key, perdure_kind value);
/* What the file of a pool tells while another process may have it open for writing, as Pool::inspect() of perdure/pool.h
 * does: no lock is taken. `open_to_write`: whether a process has it open; what of the info only that one knows (clean,
 * durability, domain) means nothing then. `info`, `visit` and `open_to_write` may be NULL. */
perdure_status perdure_pool_inspect(const char* path, perdure_pool_info* info,
                                    perdure_visit_structure visit, void* context,
                                    int* open_to_write);
/* Visits the structures that the pool names. */
perdure_status perdure_pool_structures(const perdure_pool* pool, perdure_visit_structure visit,
                                       void* context);
/* Removes a structure that is not open, with all that it holds, as drop_structure() of perdure/catalog.h does.
 * `freed_bytes` may be NULL. */
perdure_status perdure_pool_drop(perdure_pool* pool, const char* name, uint64_t* freed_bytes);
/* Gives a structure that is not open another name. */
perdure_status perdure_pool_rename(perdure_pool* pool, const char* from, const char* to);
/* Gives the free end of the pool's file back to its medium, while no structure is open, as Pool::shrink() of
 * perdure/pool.h does. `shrunk_bytes`, by how many bytes the file is shorter, may be NULL. */
perdure_status perdure_pool_shrink(perdure_pool* pool, uint64_t* shrunk_bytes);
/* A copy of the pool, as it is at one instant, while other threads write to it: Pool::backup() of perdure/pool.h,
 * which says what it asks of signal handlers. `base`, an earlier backup, may be NULL. */
perdure_status perdure_pool_backup(const perdure_pool* pool, const char* path, const char* base);
/* The same of a pool file that another process has open to write with `serve_backups`, which makes the backup:
 * Pool::backup_live(). */
perdure_status perdure_pool_backup_live(const char* pool, const char* path, const char* base);
/* Makes the pool file `path` of a backup; what that rests on lies beside it. */
perdure_status perdure_pool_restore(const char* backup, const char* path);

/* ---- Indexes: any structure of the catalogue ---- */

/* Called with each structure that there is: `kinds` has bit 2 * key + value set for each pair of kinds that
 * it supports, with the numbers of perdure_kind. */
typedef int (*perdure_visit_type)(void* context, const char* name, const char* family, int ordered,
                                  unsigned kinds);
/* Visits the structures that this library has. */
perdure_status perdure_catalog(perdure_visit_type visit, void* context);

typedef struct perdure_index perdure_index;

/* An option of a structure, such as {"fanout", "8"}; `perdure list` shows them. */
typedef struct perdure_option {
  const char* name;
  const char* value;
} perdure_option;

/* `type` is a name of the catalogue, such as "plush" or "fptree". Errors as in perdure/catalog.h. */
perdure_status perdure_index_create(perdure_pool* pool, const char* name, const char* type,
                                    perdure_kind key, perdure_kind value,
                                    const perdure_option* options, size_t option_count,
                                    perdure_index** index);
/* Completes what a crash interrupted. */
perdure_status perdure_index_open(perdure_pool* pool, const char* name,
                                  const perdure_option* options, size_t option_count,
                                  perdure_index** index);
void perdure_index_close(perdure_index* index);

/* What the keys and the values of an index are. */
perdure_status perdure_index_kinds(const perdure_index* index, perdure_kind* key,
                                   perdure_kind* value);

/* Atomic, and durable on return. PERDURE_WRONG_TYPE for a datum of the wrong kind; PERDURE_POOL_FULL and
 * PERDURE_NO_SPACE, with nothing changed. */
perdure_status perdure_index_insert(perdure_index* index, perdure_datum key, perdure_datum value,
                                    int* inserted);
perdure_status perdure_index_update(perdure_index* index, perdure_datum key, perdure_datum value,
                                    int* updated);
perdure_status perdure_index_upsert(perdure_index* index, perdure_datum key, perdure_datum value);
perdure_status perdure_index_remove(perdure_index* index, perdure_datum key, int* removed);
/* `value` is set if the key is there. */
perdure_status perdure_index_lookup(const perdure_index* index, perdure_datum key,
                                    perdure_value* value, int* found);
/* The same without a copy: calls `use` once if the key is there, with the bytes where they lie, which
 * stay as they are until it returns. It may use the index, but not close it; it should be short, and
 * not wait for other threads, as AnyIndex::visit() says, which also tells which structures copy all
 * the same. `use` and `found` may be NULL. */
perdure_status perdure_index_visit(const perdure_index* index, perdure_datum key, perdure_use use,
                                   void* context, int* found);

/* Reading and writing a key in one step, which no other write to it comes between; as in AnyIndex, where
 * costs are told. Sets `*exchanged` to whether the key was there with the value `expected`; then it has
 * `desired`, or has been removed. */
perdure_status perdure_index_compare_exchange(perdure_index* index, perdure_datum key,
                                              perdure_datum expected, perdure_datum desired,
                                              int* exchanged);
perdure_status perdure_index_compare_remove(perdure_index* index, perdure_datum key,
                                            perdure_datum expected, int* removed);
/* Adds to a value that is a word, 0 if the key is not there, modulo 2^64. PERDURE_WRONG_TYPE if values are
 * byte strings. */
perdure_status perdure_index_increment(perdure_index* index, perdure_datum key, int64_t by,
                                       uint64_t* sum);
/* What perdure_modify says is to become of a key. */
typedef enum perdure_change {
  PERDURE_KEEP = 0,
  PERDURE_WRITE = 1,
  PERDURE_REMOVE = 2
} perdure_change;
/* Returns a perdure_change: what becomes of a key with the value `before`, which is NULL if the key is not
 * there. For PERDURE_WRITE it sets `after`, whose bytes must stay until it is called again, or the call
 * returns. It is called again if another thread has written to the key meanwhile. It may use the index. */
typedef int (*perdure_modify)(void* context, const perdure_datum* before, perdure_datum* after);
/* `*done` is what was done: PERDURE_REMOVE only if the key was there, else PERDURE_KEEP. */
perdure_status perdure_index_modify(perdure_index* index, perdure_datum key, perdure_modify modify,
                                    void* context, perdure_change* done);

/* Batches of `count` keys or records, as in AnyIndex: each record is atomic, the batch is not. `found` and
 * `inserted` have a byte for each, 0 or 1, and may be NULL as may `total`. */
perdure_status perdure_index_multi_lookup(const perdure_index* index, const perdure_datum* keys,
                                          size_t count, perdure_value* values, unsigned char* found,
                                          uint64_t* total);
perdure_status perdure_index_multi_insert(perdure_index* index, const perdure_record* records,
                                          size_t count, unsigned char* inserted, uint64_t* total);
perdure_status perdure_index_multi_upsert(perdure_index* index, const perdure_record* records,
                                          size_t count);
/* The same for keys and values that are words, in arrays. Values that are not found stay as they were. */
perdure_status perdure_index_lookup_words(const perdure_index* index, const uint64_t* keys,
                                          size_t count, uint64_t* values, unsigned char* found,
                                          uint64_t* total);
perdure_status perdure_index_insert_words(perdure_index* index, const uint64_t* keys,
                                          const uint64_t* values, size_t count,
                                          unsigned char* inserted, uint64_t* total);
perdure_status perdure_index_upsert_words(perdure_index* index, const uint64_t* keys,
                                          const uint64_t* values, size_t count);

/* For loading: may be durable only after the next checkpoint; see AnyIndex::bulk_upsert(). */
perdure_status perdure_index_bulk_upsert(perdure_index* index, perdure_datum key,
                                         perdure_datum value);
perdure_status perdure_index_checkpoint(perdure_index* index, unsigned threads);

/* Up to `limit` records with keys >= `from`, ascending. Ordered structures; PERDURE_WRONG_TYPE of others.
 * The callback may use the index. */
perdure_status perdure_index_scan(const perdure_index* index, perdure_datum from, uint64_t limit,
                                  perdure_visit visit, void* context);
/* The same for words, into arrays with room for `limit` records; `*count` is how many there were. */
perdure_status perdure_index_scan_words(const perdure_index* index, uint64_t from, uint64_t limit,
                                        uint64_t* keys, uint64_t* values, uint64_t* count);
/* The same in descending order: records with keys <= `*from`, or with NULL from the last one on. */
perdure_status perdure_index_scan_back(const perdure_index* index, const perdure_datum* from,
                                       uint64_t limit, perdure_visit visit, void* context);
/* For words, into arrays; from UINT64_MAX on that is from the last one. */
perdure_status perdure_index_scan_back_words(const perdure_index* index, uint64_t from,
                                             uint64_t limit, uint64_t* keys, uint64_t* values,
                                             uint64_t* count);
/* Removes the records with keys >= `from` and, unless `to` is NULL, < `*to`: each of them atomically, all durable on
 * return. Ordered structures. `removed`, how many there were, may be NULL. Need not end beside a thread that goes on
 * writing greater and greater keys inside the range. */
perdure_status perdure_index_remove_range(perdure_index* index, perdure_datum from,
                                          const perdure_datum* to, uint64_t* removed);
/* Every record, in no particular order. */
perdure_status perdure_index_for_each(const perdure_index* index, perdure_visit visit,
                                      void* context);
/* How many records there are, by a walk over all of them: those that are written meanwhile count or not. */
perdure_status perdure_index_count(const perdure_index* index, uint64_t* records);
/* Needs that nobody writes. */
perdure_status perdure_index_check(const perdure_index* index, perdure_report report, void* context,
                                   uint64_t* problems);
perdure_status perdure_index_statistics(const perdure_index* index, perdure_figure figure,
                                        void* context);

/* ---- Transactions: writes to several keys, of several indexes of one pool, all or nothing ---- */

/* PoolTransaction of perdure/transaction.h, which says what is isolated, what it costs and its limits. For one
 * thread at a time. The indexes that it has to do with stay open until it is committed, aborted or freed. */
typedef struct perdure_transaction perdure_transaction;

/* Begins one, which is empty; freed by perdure_transaction_free() before the pool is closed. */
perdure_status perdure_transaction_begin(perdure_pool* pool, perdure_transaction** transaction);
/* As the calls of indexes; they see what the transaction has written. An upsert, which reads nothing, makes no
 * conflict. PERDURE_INVALID_ARGUMENT for an index of another pool. */
perdure_status perdure_transaction_lookup(perdure_transaction* transaction,
                                          const perdure_index* index, perdure_datum key,
                                          perdure_value* value, int* found);
perdure_status perdure_transaction_insert(perdure_transaction* transaction, perdure_index* index,
                                          perdure_datum key, perdure_datum value, int* inserted);
perdure_status perdure_transaction_update(perdure_transaction* transaction, perdure_index* index,
                                          perdure_datum key, perdure_datum value, int* updated);
perdure_status perdure_transaction_upsert(perdure_transaction* transaction, perdure_index* index,
                                          perdure_datum key, perdure_datum value);
perdure_status perdure_transaction_remove(perdure_transaction* transaction, perdure_index* index,
                                          perdure_datum key, int* removed);
perdure_status perdure_transaction_increment(perdure_transaction* transaction, perdure_index* index,
                                             perdure_datum key, int64_t by, uint64_t* sum);
/* Durable on return. PERDURE_CONFLICT: what the transaction has read is another value by now; nothing was changed,
 * and another attempt may do. Other errors as of PoolTransaction::commit(). Afterwards, however it went, the
 * transaction is empty, and may be used for another one. */
perdure_status perdure_transaction_commit(perdure_transaction* transaction);
/* Nothing has happened; the transaction may be used for another one. */
perdure_status perdure_transaction_abort(perdure_transaction* transaction);
/* Aborts what was not committed. */
void perdure_transaction_free(perdure_transaction* transaction);

/* Does its work with a transaction that it neither commits nor frees, and returns PERDURE_OK, or a status for
 * which nothing shall happen, such as that of a call that failed. */
typedef int (*perdure_work)(void* context, perdure_transaction* transaction);
/* Calls `work`, commits, and does both again after a conflict; after some attempts while other transactions of the
 * pool wait. So `work` should do nothing but use the transaction. Returns what `work` did if that was not
 * PERDURE_OK (after PERDURE_CONFLICT, too, it is called again). */
perdure_status perdure_transact(perdure_pool* pool, perdure_work work, void* context);

/* ---- The key-value store ---- */

typedef struct perdure_store perdure_store;
typedef struct perdure_batch perdure_batch;
typedef struct perdure_cursor perdure_cursor;

/* Zero means the default everywhere. */
typedef struct perdure_store_options {
  size_t size;              /* of this struct: sizeof(perdure_store_options) */
  uint32_t index;           /* 0: as created, at creation hash; 1 hash; 2 ordered */
  uint32_t partitions;      /* fixed at creation */
  uint32_t block_bytes;     /* fixed at creation */
  uint32_t garbage_percent; /* 0: 25, less where the pool has no room for so much */
  uint32_t recovery_threads;
  uint32_t workers; /* 0: callers work themselves */
  uint32_t balance; /* not 0: workers give partitions away */
  uint32_t reserved;
  const perdure_datum*
      boundaries; /* keys of bytes, ascending, that cut the store into partitions */
  size_t boundary_count;
} perdure_store_options;
/* The defaults. */
#define PERDURE_STORE_OPTIONS_INIT {sizeof(perdure_store_options), 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0}

/* A moment of expiry, in milliseconds since 1970 in UTC; PERDURE_NEVER: none. */
#define PERDURE_NEVER ((int64_t)0)

/* Errors as in perdure/store.h. */
perdure_status perdure_store_create(perdure_pool* pool, const char* name,
                                    const perdure_store_options* options, perdure_store** store);
perdure_status perdure_store_open(perdure_pool* pool, const char* name,
                                  const perdure_store_options* options, perdure_store** store);
void perdure_store_close(perdure_store* store);

/* `version`, if not NULL, is that of the record, for perdure_store_cas(). */
perdure_status perdure_store_get(const perdure_store* store, const void* key, size_t key_size,
                                 perdure_value* value, uint64_t* version, int* found);
perdure_status perdure_store_put(perdure_store* store, const void* key, size_t key_size,
                                 const void* value, size_t value_size, int64_t expires_ms,
                                 uint64_t* version);
perdure_status perdure_store_insert(perdure_store* store, const void* key, size_t key_size,
                                    const void* value, size_t value_size, int64_t expires_ms,
                                    int* inserted);
perdure_status perdure_store_update(perdure_store* store, const void* key, size_t key_size,
                                    const void* value, size_t value_size, int64_t expires_ms,
                                    int* updated);
/* Only if the record is there and has this version. */
perdure_status perdure_store_cas(perdure_store* store, const void* key, size_t key_size,
                                 uint64_t version, const void* value, size_t value_size,
                                 int64_t expires_ms, int* swapped);
perdure_status perdure_store_remove(perdure_store* store, const void* key, size_t key_size,
                                    int* removed);
/* Only if the record is there and has this version. */
perdure_status perdure_store_cas_remove(perdure_store* store, const void* key, size_t key_size,
                                        uint64_t version, int* removed);
/* Adds to a number in decimal digits, 0 if the key is not there. */
perdure_status perdure_store_increment(perdure_store* store, const void* key, size_t key_size,
                                       int64_t by, int64_t* sum);
perdure_status perdure_store_append(perdure_store* store, const void* key, size_t key_size,
                                    const void* suffix, size_t suffix_size, uint64_t* size);
/* `keys` of bytes; `found` has a byte for each, 0 or 1. */
perdure_status perdure_store_multi_get(const perdure_store* store, const perdure_datum* keys,
                                       size_t count, perdure_value* values, unsigned char* found,
                                       uint64_t* total);

/* Writes that become durable together; see Store::Batch. The batch stays as it is when applied. */
perdure_status perdure_batch_create(perdure_batch** batch);
perdure_status perdure_batch_put(perdure_batch* batch, const void* key, size_t key_size,
                                 const void* value, size_t value_size, int64_t expires_ms);
perdure_status perdure_batch_remove(perdure_batch* batch, const void* key, size_t key_size);
perdure_status perdure_batch_clear(perdure_batch* batch);
void perdure_batch_free(perdure_batch* batch);
perdure_status perdure_store_apply(perdure_store* store, const perdure_batch* batch);

/* How many records there are, with those that have expired and are not compacted yet. */
perdure_status perdure_store_size(const perdure_store* store, uint64_t* records);
perdure_status perdure_store_scan(const perdure_store* store, const void* from, size_t from_size,
                                  uint64_t limit, perdure_visit visit, void* context);
/* The callback's answer counts: 0 ends it. */
perdure_status perdure_store_for_each(const perdure_store* store, perdure_visit visit,
                                      void* context);
perdure_status perdure_store_check(const perdure_store* store, perdure_report report, void* context,
                                   uint64_t* problems);
perdure_status perdure_store_statistics(const perdure_store* store, perdure_figure figure,
                                        void* context);

/* A place among the records in the order of keys: of stores with an ordered index, for one thread, closed
 * before its store. Each of these that moves it sets `*valid`, if not NULL, to whether it stands at a
 * record. */
perdure_status perdure_cursor_open(const perdure_store* store, perdure_cursor** cursor);
void perdure_cursor_close(perdure_cursor* cursor);
perdure_status perdure_cursor_first(perdure_cursor* cursor, int* valid);
perdure_status perdure_cursor_last(perdure_cursor* cursor, int* valid);
/* To the first key that is not less, or the last one that is not greater. */
perdure_status perdure_cursor_seek(perdure_cursor* cursor, const void* key, size_t key_size,
                                   int* valid);
perdure_status perdure_cursor_seek_down(perdure_cursor* cursor, const void* key, size_t key_size,
                                        int* valid);
/* PERDURE_INVALID_ARGUMENT if it stands at no record. */
perdure_status perdure_cursor_next(perdure_cursor* cursor, int* valid);
perdure_status perdure_cursor_previous(perdure_cursor* cursor, int* valid);
/* The record where it stands; valid until the cursor moves. `version` may be NULL. */
perdure_status perdure_cursor_record(const perdure_cursor* cursor, perdure_datum* key,
                                     perdure_datum* value, uint64_t* version);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-*,readability-identifier-naming) */
#endif /* PERDURE_C_H */
