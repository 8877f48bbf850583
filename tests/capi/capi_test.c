/* The C API as a C program uses it: compiled as C, linked with the shared library. One test after the other;
 * each failed check is told, and any makes the exit code 1. */
#include <perdure/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failures = 0;

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      ++failures;                                                                                  \
      fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, #condition, \
              perdure_last_error());                                                               \
    }                                                                                              \
  } while (0)
#define OK(call) CHECK((call) == PERDURE_OK)

static char path[256];

static perdure_pool* new_pool(void) {
  perdure_pool* pool = NULL;
  perdure_pool_options options = PERDURE_POOL_OPTIONS_INIT;
  options.capacity_bytes = (uint64_t)32 << 20;
  unlink(path);
  OK(perdure_pool_create(path, &options, &pool));
  return pool;
}

static int holds(const perdure_value* value, const char* text) {
  return value->kind == PERDURE_BYTES && value->size == strlen(text) &&
         memcmp(value->data, text, value->size + 1) == 0;
}

/* ---- what programs are compiled with ---- */

/* Places of members never change; structs without a size of their own do not grow. */
#define LAYOUT(type, member, offset) \
  _Static_assert(offsetof(type, member) == (offset), #type " has moved " #member)
LAYOUT(perdure_datum, kind, 0);
LAYOUT(perdure_datum, word, 8);
LAYOUT(perdure_datum, data, 16);
LAYOUT(perdure_datum, size, 24);
LAYOUT(perdure_record, value, 32);
LAYOUT(perdure_value, kind, 0);
LAYOUT(perdure_value, word, 8);
LAYOUT(perdure_value, data, 16);
LAYOUT(perdure_value, size, 24);
LAYOUT(perdure_value, capacity, 32);
LAYOUT(perdure_pool_options, size, 0);
LAYOUT(perdure_pool_options, capacity_bytes, 8);
LAYOUT(perdure_pool_options, growth_bytes, 16);
LAYOUT(perdure_pool_options, reserve_bytes, 24);
LAYOUT(perdure_pool_options, durability, 32);
LAYOUT(perdure_pool_options, domain, 36);
LAYOUT(perdure_pool_options, read_only, 40);
LAYOUT(perdure_pool_options, verify, 44);
LAYOUT(perdure_pool_options, small_pages, 48);
LAYOUT(perdure_pool_options, trust_payload, 52);
LAYOUT(perdure_pool_options, no_seal, 56);
LAYOUT(perdure_pool_options, serve_backups, 60);
LAYOUT(perdure_pool_options, capacity_at_least_bytes, 64);
LAYOUT(perdure_pool_options, copy_bytes_max, 72);
LAYOUT(perdure_pool_options, on_event, 80);
LAYOUT(perdure_pool_options, on_event_context, 88);
LAYOUT(perdure_pool_options, nearly_full_percent, 96);
LAYOUT(perdure_event, kind, 8);
LAYOUT(perdure_event, path, 16);
LAYOUT(perdure_event, message, 24);
LAYOUT(perdure_event, size_bytes, 32);
LAYOUT(perdure_event, used_bytes, 40);
LAYOUT(perdure_event, capacity_bytes, 48);
LAYOUT(perdure_pool_info, capacity_bytes, 8);
LAYOUT(perdure_pool_info, size_bytes, 16);
LAYOUT(perdure_pool_info, allocated_bytes, 24);
LAYOUT(perdure_pool_info, free_bytes, 32);
LAYOUT(perdure_pool_info, generation, 40);
LAYOUT(perdure_pool_info, format_version, 48);
LAYOUT(perdure_pool_info, clean, 52);
LAYOUT(perdure_pool_info, read_only, 56);
LAYOUT(perdure_pool_info, durability, 60);
LAYOUT(perdure_pool_info, uuid, 64);
LAYOUT(perdure_pool_info, medium, 104);
LAYOUT(perdure_pool_info, domain, 120);
LAYOUT(perdure_option, name, 0);
LAYOUT(perdure_option, value, 8);
LAYOUT(perdure_store_options, index, 8);
LAYOUT(perdure_store_options, partitions, 12);
LAYOUT(perdure_store_options, block_bytes, 16);
LAYOUT(perdure_store_options, garbage_percent, 20);
LAYOUT(perdure_store_options, recovery_threads, 24);
LAYOUT(perdure_store_options, workers, 28);
LAYOUT(perdure_store_options, balance, 32);
LAYOUT(perdure_store_options, boundaries, 40);
LAYOUT(perdure_store_options, boundary_count, 48);
_Static_assert(sizeof(perdure_datum) == 32 && sizeof(perdure_record) == 64 &&
                   sizeof(perdure_value) == 40 && sizeof(perdure_option) == 16,
               "a struct that is passed by its size has another one");
_Static_assert(PERDURE_POOL_FULL == 16 && PERDURE_NO_SPACE == 17 && PERDURE_CONFLICT == 24 &&
                   PERDURE_NO_MEMORY == 100 && PERDURE_DAMAGED == 4 && PERDURE_REMOVE == 2,
               "a code is another one");

/* ---- pools and errors ---- */

static int count_structures(void* context, const char* name, const char* type, perdure_kind key,
                            perdure_kind value) {
  CHECK(strcmp(name, "words") == 0 && strcmp(type, "plush") == 0);
  CHECK(key == PERDURE_BYTES && value == PERDURE_U64);
  ++*(int*)context;
  return 1;
}

/* The structure "words" is backed up, renamed, and dropped. */
static void test_pool_as_a_whole(perdure_pool* pool) {
  char backup[512];
  char next[512];
  char restored[512];
  uint64_t freed = 0;
  int structures = 0;
  perdure_pool* copy = NULL;
  snprintf(backup, sizeof backup, "%s.backup", path);
  snprintf(next, sizeof next, "%s.next", path);
  snprintf(restored, sizeof restored, "%s.restored", path);
  OK(perdure_pool_backup(pool, backup, NULL));
  OK(perdure_pool_rename(pool, "words", "w"));
  CHECK(perdure_pool_rename(pool, "words", "w") == PERDURE_NO_SUCH_NAME);
  OK(perdure_pool_backup(pool, next, backup));
  CHECK(perdure_pool_backup(pool, path, NULL) == PERDURE_EXISTS);
  CHECK(perdure_pool_backup(pool, NULL, NULL) == PERDURE_INVALID_ARGUMENT);
  OK(perdure_pool_drop(pool, "w", &freed));
  CHECK(freed > 0);
  CHECK(perdure_pool_drop(pool, "w", &freed) == PERDURE_NO_SUCH_NAME);
  OK(perdure_pool_shrink(pool, &freed));
  CHECK(freed > 0);
  OK(perdure_pool_shrink(pool, NULL));
  CHECK(perdure_pool_shrink(NULL, NULL) == PERDURE_INVALID_ARGUMENT);
  OK(perdure_pool_restore(next, restored));
  CHECK(perdure_pool_restore(next, restored) == PERDURE_EXISTS);
  OK(perdure_pool_open(restored, NULL, &copy));
  OK(perdure_pool_rename(copy, "w", "words"));
  OK(perdure_pool_structures(copy, count_structures, &structures));
  CHECK(structures == 1);
  OK(perdure_pool_drop(copy, "words", NULL));
  OK(perdure_pool_close(copy));
  remove(backup);
  remove(next);
  remove(restored);
}

/* A pool that is opened with a larger capacity than it has. */
static void test_raised_pool(void) {
  perdure_pool_options options = PERDURE_POOL_OPTIONS_INIT;
  perdure_pool_info info;
  perdure_pool* pool = NULL;
  OK(perdure_pool_close(new_pool()));
  memset(&info, 0, sizeof info);
  info.size = sizeof info;
  options.capacity_at_least_bytes = (uint64_t)100 << 20;
  options.read_only = 1;
  CHECK(perdure_pool_open(path, &options, &pool) == PERDURE_INVALID_ARGUMENT);
  options.read_only = 0;
  OK(perdure_pool_open(path, &options, &pool));
  OK(perdure_pool_get_info(pool, &info));
  CHECK(info.capacity_bytes == options.capacity_at_least_bytes && info.format_version == 3);
  OK(perdure_pool_close(pool));
  /* Of a program that knows no such member. */
  options.size = offsetof(perdure_pool_options, capacity_at_least_bytes);
  options.capacity_at_least_bytes = (uint64_t)200 << 20;
  OK(perdure_pool_open(path, &options, &pool));
  OK(perdure_pool_get_info(pool, &info));
  CHECK(info.capacity_bytes == (uint64_t)100 << 20);
  OK(perdure_pool_close(pool));
  remove(path);
}

/* A backup that is asked of whoever has the pool open; here this process itself. */
static void test_live_backup(void) {
  perdure_pool_options options = PERDURE_POOL_OPTIONS_INIT;
  perdure_pool* pool = NULL;
  char backup[4096 + 8];
  snprintf(backup, sizeof backup, "%s.live", path);
  OK(perdure_pool_close(new_pool()));
  OK(perdure_pool_open(path, NULL, &pool));
  CHECK(perdure_pool_backup_live(path, backup, NULL) == PERDURE_LOCKED);
  CHECK(strstr(perdure_last_error(), "serve_backups") != NULL);
  OK(perdure_pool_close(pool));
  options.serve_backups = 1;
  options.copy_bytes_max = 1;
  OK(perdure_pool_open(path, &options, &pool));
  OK(perdure_pool_backup_live(path, backup, NULL));
  CHECK(perdure_pool_backup_live(path, backup, backup) == PERDURE_INVALID_ARGUMENT);
  CHECK(perdure_pool_backup_live(NULL, backup, NULL) == PERDURE_INVALID_ARGUMENT);
  OK(perdure_pool_close(pool));
  options.read_only = 1;
  OK(perdure_pool_open(backup, &options, &pool));
  OK(perdure_pool_close(pool));
  remove(backup);
  remove(path);
}

static void test_pools(void) {
  perdure_pool* pool = new_pool();
  perdure_pool* again = NULL;
  perdure_index* index = NULL;
  perdure_pool_info info;
  uint64_t problems = 7;
  int structures = 0;
  int open_to_write = 0;
  CHECK(perdure_pool_create(path, NULL, &again) == PERDURE_EXISTS && again == NULL);
  CHECK(perdure_last_status() == PERDURE_EXISTS);
  CHECK(strstr(perdure_last_error(), path) != NULL);
  CHECK(perdure_pool_open(path, NULL, &again) == PERDURE_LOCKED);
  OK(perdure_index_create(pool, "words", "plush", PERDURE_BYTES, PERDURE_U64, NULL, 0, &index));
  CHECK(perdure_pool_close(pool) == PERDURE_IN_USE); /* and it stays as it is */
  OK(perdure_pool_structures(pool, count_structures, &structures));
  CHECK(structures == 1);
  memset(&info, 0, sizeof info);
  info.size = sizeof info;
  OK(perdure_pool_inspect(path, &info, count_structures, &structures, &open_to_write));
  CHECK(structures == 2 && open_to_write == 1 && info.capacity_bytes == (uint64_t)32 << 20);
  OK(perdure_pool_inspect(path, NULL, NULL, NULL, NULL));
  CHECK(perdure_pool_inspect("/no/such/pool", NULL, NULL, NULL, NULL) == PERDURE_NOT_FOUND);
  CHECK(perdure_pool_inspect(NULL, NULL, NULL, NULL, NULL) == PERDURE_INVALID_ARGUMENT);
  CHECK(perdure_pool_drop(pool, "words", NULL) == PERDURE_IN_USE);
  CHECK(perdure_pool_rename(pool, "words", "w") == PERDURE_IN_USE);
  CHECK(perdure_pool_shrink(pool, NULL) == PERDURE_IN_USE);
  perdure_index_close(index);
  test_pool_as_a_whole(pool);
  memset(&info, 0, sizeof info);
  info.size = sizeof info;
  OK(perdure_pool_get_info(pool, &info));
  CHECK(info.capacity_bytes == (uint64_t)32 << 20 && strlen(info.uuid) == 32);
  CHECK(info.size == sizeof info && info.read_only == 0 && strlen(info.medium) > 0);
  OK(perdure_pool_check(pool, NULL, NULL, &problems));
  CHECK(problems == 0);
  OK(perdure_pool_sync(pool));
  OK(perdure_pool_close(pool));
  CHECK(perdure_pool_open("/no/such/file", NULL, &pool) == PERDURE_NOT_FOUND);
  CHECK(strcmp(perdure_status_name(PERDURE_POOL_FULL), "pool-full") == 0);
  CHECK(strcmp(perdure_status_name(99), "unknown") == 0);
  CHECK(strcmp(perdure_status_name(PERDURE_TOO_OLD), "too-old") == 0);
}

/* Structs of older and newer headers. */
static void test_sizes(void) {
  perdure_pool* pool = NULL;
  perdure_pool_options options = PERDURE_POOL_OPTIONS_INIT;
  struct {
    perdure_pool_options known;
    uint64_t unknown;
  } newer;
  perdure_pool_info info;
  options.capacity_bytes = (uint64_t)16 << 20;
  options.read_only = 1;
  options.size = 2 * sizeof(uint64_t); /* so that only the capacity counts */
  OK(perdure_pool_anonymous(&options, &pool));
  memset(&info, 0xff, sizeof info);
  info.size = 2 * sizeof(uint64_t);
  OK(perdure_pool_get_info(pool, &info));
  CHECK(info.size == 2 * sizeof(uint64_t) && info.capacity_bytes == (uint64_t)16 << 20);
  CHECK(info.size_bytes == ~(uint64_t)0); /* not touched */
  OK(perdure_pool_close(pool));
  memset(&newer, 0, sizeof newer);
  newer.known.size = sizeof newer;
  OK(perdure_pool_anonymous(&newer.known, &pool));
  OK(perdure_pool_close(pool));
  newer.unknown = 1;
  CHECK(perdure_pool_anonymous(&newer.known, &pool) == PERDURE_INVALID_ARGUMENT);
  options.size = 0;
  CHECK(perdure_pool_anonymous(&options, &pool) == PERDURE_INVALID_ARGUMENT);
}

/* ---- indexes ---- */

static int sum_words(void* context, const perdure_datum* key, const perdure_datum* value) {
  uint64_t* sum = context;
  CHECK(value->word == 3 * key->word);
  *sum += key->word;
  return 1;
}

static void copy_seen(void* context, const perdure_datum* value) {
  char* text = context;
  CHECK(value->kind == PERDURE_BYTES && value->size < 64);
  memcpy(text, value->data, value->size);
  text[value->size] = '\0';
}

static void see_word(void* context, const perdure_datum* value) {
  CHECK(value->kind == PERDURE_U64);
  *(uint64_t*)context = value->word;
}

/* Values that are seen where they lie. */
static void test_visit(void) {
  perdure_pool* pool = new_pool();
  perdure_index* texts = NULL;
  perdure_index* words = NULL;
  char text[64] = "";
  uint64_t word = 0;
  int found = -1;
  OK(perdure_index_create(pool, "t", "p-hot+vl", PERDURE_BYTES, PERDURE_BYTES, NULL, 0, &texts));
  OK(perdure_index_create(pool, "w", "p-bwtree", PERDURE_BYTES, PERDURE_U64, NULL, 0, &words));
  OK(perdure_index_upsert(texts, perdure_text("a"), perdure_text("to last")));
  OK(perdure_index_upsert(words, perdure_text("a"), perdure_word(7)));
  OK(perdure_index_visit(texts, perdure_text("a"), copy_seen, text, &found));
  CHECK(found == 1 && strcmp(text, "to last") == 0);
  OK(perdure_index_visit(words, perdure_text("a"), see_word, &word, NULL));
  CHECK(word == 7);
  OK(perdure_index_visit(texts, perdure_text("b"), copy_seen, NULL, &found)); /* not called */
  CHECK(found == 0);
  OK(perdure_index_visit(texts, perdure_text("a"), NULL, NULL, &found));
  CHECK(found == 1);
  CHECK(perdure_index_visit(texts, perdure_word(1), copy_seen, text, &found) == PERDURE_WRONG_TYPE);
  CHECK(perdure_index_visit(NULL, perdure_word(1), copy_seen, text, &found) ==
        PERDURE_INVALID_ARGUMENT);
  perdure_index_close(texts);
  perdure_index_close(words);
  OK(perdure_pool_close(pool));
}

static int stop_at_third(void* context, const perdure_datum* key, const perdure_datum* value) {
  (void)key;
  (void)value;
  return ++*(int*)context < 3;
}

static void see_figure(void* context, const char* name, double value, const char* unit) {
  if (strcmp(name, "pool_bytes") == 0 && value > 0 && unit != NULL) *(int*)context = 1;
}

static void test_words(void) {
  enum { kCount = 1000 };
  static uint64_t keys[kCount], values[kCount], out[kCount];
  static unsigned char flags[kCount];
  perdure_pool* pool = new_pool();
  perdure_index* index = NULL;
  uint64_t total = 0, sum = 0, problems = 1;
  int seen = 0, done = 0, figure = 0;
  perdure_kind key_kind, value_kind;
  perdure_datum from;
  size_t i;
  OK(perdure_index_create(pool, "numbers", "fptree", PERDURE_U64, PERDURE_U64, NULL, 0, &index));
  OK(perdure_index_kinds(index, &key_kind, &value_kind));
  CHECK(key_kind == PERDURE_U64 && value_kind == PERDURE_U64);
  for (i = 0; i < kCount; ++i) {
    keys[i] = (i * 7919) % kCount;
    values[i] = 3 * keys[i];
  }
  OK(perdure_index_insert_words(index, keys, values, kCount / 2, flags, &total));
  CHECK(total == kCount / 2 && flags[0] == 1);
  OK(perdure_index_insert_words(index, keys, values, kCount, flags, &total));
  CHECK(total == kCount / 2 && flags[0] == 0 && flags[kCount - 1] == 1);
  OK(perdure_index_upsert_words(index, keys, values, kCount));
  OK(perdure_index_lookup_words(index, keys, kCount, out, flags, &total));
  CHECK(total == kCount && memcmp(out, values, sizeof out) == 0);
  OK(perdure_index_scan_words(index, 100, 50, keys, values, &total));
  CHECK(total == 50 && keys[0] == 100 && keys[49] == 149 && values[49] == 447);
  OK(perdure_index_scan(index, perdure_word(kCount - 10), 100, sum_words, &sum));
  CHECK(sum == 9945);
  OK(perdure_index_scan(index, perdure_word(0), 100, stop_at_third, &seen));
  CHECK(seen == 3);
  OK(perdure_index_scan_back_words(index, 100, 50, keys, values, &total));
  CHECK(total == 50 && keys[0] == 100 && keys[49] == 51 && values[49] == 153);
  OK(perdure_index_scan_back_words(index, UINT64_MAX, 1, keys, values, &total));
  CHECK(total == 1 && keys[0] == kCount - 1);
  sum = 0;
  from = perdure_word(9);
  OK(perdure_index_scan_back(index, &from, 100, sum_words, &sum));
  CHECK(sum == 45);
  seen = 0;
  OK(perdure_index_scan_back(index, NULL, 100, stop_at_third, &seen));
  CHECK(seen == 3);
  seen = 0;
  OK(perdure_index_for_each(index, stop_at_third, &seen));
  CHECK(seen == 3);
  OK(perdure_index_remove(index, perdure_word(5), &done));
  CHECK(done == 1);
  OK(perdure_index_remove(index, perdure_word(5), NULL));
  OK(perdure_index_update(index, perdure_word(5), perdure_word(1), &done));
  CHECK(done == 0);
  OK(perdure_index_insert(index, perdure_word(6), perdure_word(1), &done));
  CHECK(done == 0);
  OK(perdure_index_bulk_upsert(index, perdure_word(5), perdure_word(15)));
  OK(perdure_index_checkpoint(index, 1));
  OK(perdure_index_check(index, NULL, NULL, &problems));
  CHECK(problems == 0);
  OK(perdure_index_statistics(index, see_figure, &figure));
  CHECK(figure == 1);
  CHECK(perdure_index_upsert(index, perdure_text("a"), perdure_word(1)) == PERDURE_WRONG_TYPE);
  perdure_index_close(index);
  CHECK(perdure_index_open(pool, "none", NULL, 0, &index) == PERDURE_NO_SUCH_NAME);
  OK(perdure_pool_close(pool));
  /* Once more, from the file. */
  OK(perdure_pool_open(path, NULL, &pool));
  OK(perdure_index_open(pool, "numbers", NULL, 0, &index));
  sum = 0;
  OK(perdure_index_for_each(index, sum_words, &sum));
  CHECK(sum == (uint64_t)kCount * (kCount - 1) / 2);
  from = perdure_word(8);
  OK(perdure_index_remove_range(index, perdure_word(5), &from, &total));
  CHECK(total == 3);
  OK(perdure_index_remove_range(index, perdure_word(kCount - 2), NULL, &total));
  CHECK(total == 2);
  OK(perdure_index_remove_range(index, perdure_word(5), &from, NULL));
  perdure_index_close(index);
  OK(perdure_pool_close(pool));
}

static void test_bytes(void) {
  perdure_option small[] = {{"fanout", "4"}, {"partitions", "4"}};
  perdure_option wrong[] = {{"no-such", "4"}};
  perdure_pool* pool = new_pool();
  perdure_index* index = NULL;
  perdure_value value = {0}, values[3];
  perdure_record records[2];
  perdure_datum keys[3];
  unsigned char flags[3];
  uint64_t total = 0;
  int found = 7;
  CHECK(perdure_index_create(pool, "w", "plush", PERDURE_BYTES, PERDURE_BYTES, wrong, 1, &index) ==
        PERDURE_INVALID_ARGUMENT);
  CHECK(perdure_index_create(pool, "w", "nothing", PERDURE_BYTES, PERDURE_BYTES, NULL, 0, &index) ==
        PERDURE_INVALID_ARGUMENT);
  OK(perdure_index_create(pool, "w", "plush", PERDURE_BYTES, PERDURE_BYTES, small, 2, &index));
  OK(perdure_index_upsert(index, perdure_text("perdure"), perdure_text("to last")));
  OK(perdure_index_upsert(index, perdure_bytes(NULL, 0), perdure_bytes("\0\xff", 2)));
  OK(perdure_index_lookup(index, perdure_text("perdure"), &value, &found));
  CHECK(found == 1 && holds(&value, "to last"));
  OK(perdure_index_lookup(index, perdure_text("absent"), &value, &found));
  CHECK(found == 0 && holds(&value, "to last")); /* as it was */
  OK(perdure_index_lookup(index, perdure_text(""), &value, NULL));
  CHECK(value.size == 2 && memcmp(value.data, "\0\xff", 2) == 0);
  records[0].key = perdure_text("a");
  records[0].value = perdure_text("1");
  records[1].key = perdure_text("b");
  records[1].value = perdure_text("2");
  OK(perdure_index_multi_insert(index, records, 2, flags, &total));
  CHECK(total == 2 && flags[0] == 1 && flags[1] == 1);
  records[1].value = perdure_text("22");
  OK(perdure_index_multi_upsert(index, records, 2));
  keys[0] = perdure_text("b");
  keys[1] = perdure_text("none");
  keys[2] = perdure_text("a");
  memset(values, 0, sizeof values);
  OK(perdure_index_multi_lookup(index, keys, 3, values, flags, &total));
  CHECK(total == 2 && flags[0] == 1 && flags[1] == 0 && flags[2] == 1);
  CHECK(holds(&values[0], "22") && values[1].data == NULL && holds(&values[2], "1"));
  CHECK(perdure_index_scan(index, perdure_text(""), 1, sum_words, NULL) == PERDURE_WRONG_TYPE);
  CHECK(perdure_index_lookup_words(index, NULL, 1, NULL, NULL, NULL) == PERDURE_INVALID_ARGUMENT);
  CHECK(perdure_index_upsert(NULL, keys[0], keys[1]) == PERDURE_INVALID_ARGUMENT);
  CHECK(perdure_index_upsert(index, perdure_bytes(NULL, 3), keys[1]) == PERDURE_INVALID_ARGUMENT);
  perdure_value_free(&value);
  perdure_value_free(&values[0]);
  perdure_value_free(&values[2]);
  perdure_index_close(index);
  perdure_index_close(NULL);
  OK(perdure_pool_close(pool));
  OK(perdure_pool_close(NULL));
}

/* ---- reading and writing in one step ---- */

/* Doubles a word; removes one that is 8 or more; sets 1 where there is none. */
static int double_or_end(void* context, const perdure_datum* before, perdure_datum* after) {
  ++*(int*)context;
  if (before != NULL && before->word >= 8) return PERDURE_REMOVE;
  *after = perdure_word(before == NULL ? 1 : 2 * before->word);
  return PERDURE_WRITE;
}

static int set_nothing(void* context, const perdure_datum* before, perdure_datum* after) {
  (void)before;
  (void)after;
  return *(int*)context;
}

static int append_x(void* context, const perdure_datum* before, perdure_datum* after) {
  char* text = context;
  size_t size = before == NULL ? 0 : before->size;
  if (size > 2) return PERDURE_KEEP;
  if (size > 0) memcpy(text, before->data, size);
  text[size] = 'x';
  *after = perdure_bytes(text, size + 1);
  return PERDURE_WRITE;
}

static void test_atomic(void) {
  perdure_pool* pool = new_pool();
  perdure_index *words = NULL, *texts = NULL;
  perdure_value value = {0};
  perdure_change change = PERDURE_KEEP;
  char text[8];
  uint64_t sum = 0, records = 7;
  int done = 7, calls = 0, i;
  OK(perdure_index_create(pool, "w", "bztree", PERDURE_BYTES, PERDURE_U64, NULL, 0, &words));
  OK(perdure_index_create(pool, "t", "level", PERDURE_U64, PERDURE_BYTES, NULL, 0, &texts));
  OK(perdure_index_increment(words, perdure_text("n"), 40, &sum));
  CHECK(sum == 40);
  OK(perdure_index_increment(words, perdure_text("n"), -41, NULL));
  OK(perdure_index_increment(words, perdure_text("n"), 0, &sum));
  CHECK(sum == ~(uint64_t)0);
  CHECK(perdure_index_increment(texts, perdure_word(1), 1, &sum) == PERDURE_WRONG_TYPE);
  OK(perdure_index_compare_exchange(words, perdure_text("n"), perdure_word(1), perdure_word(2),
                                    &done));
  CHECK(done == 0);
  OK(perdure_index_compare_exchange(words, perdure_text("n"), perdure_word(sum), perdure_word(2),
                                    &done));
  CHECK(done == 1);
  OK(perdure_index_compare_remove(words, perdure_text("n"), perdure_word(3), &done));
  CHECK(done == 0);
  OK(perdure_index_compare_remove(words, perdure_text("n"), perdure_word(2), &done));
  CHECK(done == 1);
  OK(perdure_index_compare_exchange(words, perdure_text("n"), perdure_word(2), perdure_word(3),
                                    &done));
  CHECK(done == 0);
  CHECK(perdure_index_compare_exchange(words, perdure_text("n"), perdure_text("2"), perdure_word(3),
                                       &done) == PERDURE_WRONG_TYPE);
  for (i = 0; i < 4; ++i) {
    OK(perdure_index_modify(words, perdure_text("m"), double_or_end, &calls, &change));
    CHECK(change == PERDURE_WRITE);
  }
  OK(perdure_index_lookup(words, perdure_text("m"), &value, &done));
  CHECK(done == 1 && value.word == 8 && calls == 4);
  OK(perdure_index_modify(words, perdure_text("m"), double_or_end, &calls, &change));
  CHECK(change == PERDURE_REMOVE);
  OK(perdure_index_count(words, &records));
  CHECK(records == 0);
  for (i = 0; i < 5; ++i) OK(perdure_index_modify(texts, perdure_word(5), append_x, text, &change));
  CHECK(change == PERDURE_KEEP);
  OK(perdure_index_lookup(texts, perdure_word(5), &value, &done));
  CHECK(done == 1 && holds(&value, "xxx"));
  OK(perdure_index_compare_exchange(texts, perdure_word(5), perdure_text("xxx"),
                                    perdure_bytes(NULL, 0), &done));
  CHECK(done == 1);
  OK(perdure_index_count(texts, &records));
  CHECK(records == 1);
  i = PERDURE_WRITE; /* without a value */
  CHECK(perdure_index_modify(texts, perdure_word(5), set_nothing, &i, &change) ==
        PERDURE_INVALID_ARGUMENT);
  i = 77;
  CHECK(perdure_index_modify(texts, perdure_word(5), set_nothing, &i, &change) ==
        PERDURE_INVALID_ARGUMENT);
  CHECK(perdure_index_modify(texts, perdure_word(5), NULL, NULL, &change) ==
        PERDURE_INVALID_ARGUMENT);
  i = PERDURE_REMOVE;
  OK(perdure_index_modify(texts, perdure_word(6), set_nothing, &i, &change)); /* none to remove */
  CHECK(change == PERDURE_KEEP);
  perdure_value_free(&value);
  perdure_index_close(words);
  perdure_index_close(texts);
  OK(perdure_pool_close(pool));
}

static int see_type(void* context, const char* name, const char* family, int ordered,
                    unsigned kinds) {
  if (strcmp(name, "fptree") == 0) {
    CHECK(strcmp(family, "range tree") == 0 && ordered == 1 && (kinds & 1) == 1);
    *(int*)context = 1;
  }
  return 1;
}

static void test_catalog(void) {
  int seen = 0;
  OK(perdure_catalog(see_type, &seen));
  CHECK(seen == 1);
  CHECK(strlen(perdure_version()) >= 5);
}

/* ---- the store ---- */

static int append_keys(void* context, const perdure_datum* key, const perdure_datum* value) {
  (void)value;
  strncat(context, key->data, key->size);
  return 1;
}

static void test_store(void) {
  perdure_pool* pool = new_pool();
  perdure_store* store = NULL;
  perdure_store_options options = PERDURE_STORE_OPTIONS_INIT;
  perdure_value value = {0}, values[2];
  perdure_datum keys[2], key, content;
  perdure_batch* batch = NULL;
  perdure_cursor* cursor = NULL;
  uint64_t version = 0, later = 0, size = 0, problems = 1;
  int64_t sum = 0;
  int done = 0;
  unsigned char flags[2];
  char all[64] = "";
  options.index = 2;
  OK(perdure_store_create(pool, "s", &options, &store));
  OK(perdure_store_put(store, "a", 1, "one", 3, PERDURE_NEVER, &version));
  OK(perdure_store_get(store, "a", 1, &value, &later, &done));
  CHECK(done == 1 && later == version && holds(&value, "one"));
  OK(perdure_store_cas(store, "a", 1, version, "two", 3, PERDURE_NEVER, &done));
  CHECK(done == 1);
  OK(perdure_store_cas(store, "a", 1, version, "three", 5, PERDURE_NEVER, &done));
  CHECK(done == 0);
  OK(perdure_store_insert(store, "a", 1, "x", 1, PERDURE_NEVER, &done));
  CHECK(done == 0);
  OK(perdure_store_update(store, "b", 1, "x", 1, PERDURE_NEVER, &done));
  CHECK(done == 0);
  OK(perdure_store_increment(store, "n", 1, 5, &sum));
  OK(perdure_store_increment(store, "n", 1, -7, &sum));
  CHECK(sum == -2);
  OK(perdure_store_append(store, "a", 1, "!", 1, &size));
  CHECK(size == 4);
  CHECK(perdure_store_increment(store, "a", 1, 1, &sum) == PERDURE_INVALID_ARGUMENT && sum == -2);
  OK(perdure_store_put(store, "gone", 4, "x", 1, 1, NULL)); /* in 1970 */
  OK(perdure_store_get(store, "gone", 4, &value, NULL, &done));
  CHECK(done == 0);
  CHECK(perdure_store_put(store, "a", 1, "x", 1, -1, NULL) == PERDURE_INVALID_ARGUMENT);
  OK(perdure_batch_create(&batch));
  OK(perdure_batch_put(batch, "c", 1, "3", 1, PERDURE_NEVER));
  OK(perdure_batch_put(batch, "d", 1, "4", 1, PERDURE_NEVER));
  OK(perdure_batch_remove(batch, "n", 1));
  OK(perdure_store_apply(store, batch));
  OK(perdure_batch_clear(batch));
  OK(perdure_store_apply(store, batch));
  perdure_batch_free(batch);
  keys[0] = perdure_text("d");
  keys[1] = perdure_text("n");
  memset(values, 0, sizeof values);
  OK(perdure_store_multi_get(store, keys, 2, values, flags, &size));
  CHECK(size == 1 && flags[0] == 1 && flags[1] == 0 && holds(&values[0], "4"));
  OK(perdure_store_scan(store, "b", 1, 10, append_keys, all));
  CHECK(strcmp(all, "cd") == 0);
  OK(perdure_cursor_open(store, &cursor));
  CHECK(perdure_cursor_next(cursor, &done) == PERDURE_INVALID_ARGUMENT);
  OK(perdure_cursor_last(cursor, &done));
  CHECK(done == 1);
  OK(perdure_cursor_record(cursor, &key, &content, &version));
  CHECK(key.size == 1 && memcmp(key.data, "d", 1) == 0 && memcmp(content.data, "4", 1) == 0);
  OK(perdure_cursor_previous(cursor, &done));
  OK(perdure_cursor_previous(cursor, &done));
  OK(perdure_cursor_record(cursor, &key, NULL, NULL));
  CHECK(done == 1 && memcmp(key.data, "a", 1) == 0);
  OK(perdure_cursor_seek(cursor, "b", 1, &done));
  OK(perdure_cursor_record(cursor, &key, NULL, NULL));
  CHECK(memcmp(key.data, "c", 1) == 0);
  OK(perdure_cursor_seek_down(cursor, "b", 1, &done));
  OK(perdure_cursor_first(cursor, &done));
  OK(perdure_cursor_record(cursor, &key, NULL, NULL));
  CHECK(memcmp(key.data, "a", 1) == 0);
  perdure_cursor_close(cursor);
  OK(perdure_store_get(store, "a", 1, NULL, &version, NULL));
  OK(perdure_store_cas_remove(store, "a", 1, version + 1, &done));
  CHECK(done == 0);
  OK(perdure_store_cas_remove(store, "a", 1, version, &done));
  CHECK(done == 1);
  OK(perdure_store_cas_remove(store, "a", 1, version, &done));
  CHECK(done == 0);
  OK(perdure_store_put(store, "a", 1, "again", 5, PERDURE_NEVER, NULL));
  OK(perdure_store_remove(store, "a", 1, &done));
  CHECK(done == 1);
  OK(perdure_store_size(store, &size));
  CHECK(size >= 2);
  OK(perdure_store_check(store, NULL, NULL, &problems));
  CHECK(problems == 0);
  done = 0;
  OK(perdure_store_for_each(store, stop_at_third, &done));
  CHECK(done == 2);
  done = 0;
  OK(perdure_store_statistics(store, see_figure, &done));
  CHECK(done == 1);
  perdure_store_close(store);
  OK(perdure_pool_close(pool));
  /* Once more, from the file. */
  OK(perdure_pool_open(path, NULL, &pool));
  CHECK(perdure_store_open(pool, "none", NULL, &store) == PERDURE_NO_SUCH_NAME);
  OK(perdure_store_open(pool, "s", NULL, &store));
  OK(perdure_store_get(store, "d", 1, &value, NULL, &done));
  CHECK(done == 1 && holds(&value, "4"));
  perdure_value_free(&value);
  perdure_value_free(&values[0]);
  perdure_store_close(store);
  OK(perdure_pool_close(pool));
}

/* A pool that is full refuses, and keeps what it has. */
static void test_full(void) {
  perdure_pool* pool = NULL;
  perdure_index* index = NULL;
  perdure_pool_options options = PERDURE_POOL_OPTIONS_INIT;
  perdure_value value = {0};
  perdure_status status = PERDURE_OK;
  uint64_t stored = 0, i;
  int found = 0;
  options.capacity_bytes = (uint64_t)4 << 20;
  OK(perdure_pool_anonymous(&options, &pool));
  OK(perdure_index_create(pool, "w", "cceh", PERDURE_U64, PERDURE_U64, NULL, 0, &index));
  for (; status == PERDURE_OK && stored < 10000000; ++stored) {
    status = perdure_index_upsert(index, perdure_word(stored), perdure_word(~stored));
  }
  CHECK(status == PERDURE_POOL_FULL);
  for (i = 0; i + 1 < stored; ++i) {
    OK(perdure_index_lookup(index, perdure_word(i), &value, &found));
    if (!found || value.word != ~i) break;
  }
  CHECK(i + 1 == stored);
  perdure_index_close(index);
  OK(perdure_pool_close(pool));
}

static void count_event(void* context, const perdure_event* event) {
  int* counts = context;
  CHECK(event->size == sizeof *event && event->kind <= PERDURE_DAMAGED);
  CHECK(strcmp(event->path, path) == 0 && strlen(event->message) > 0);
  CHECK(event->used_bytes <= event->size_bytes && event->size_bytes <= event->capacity_bytes);
  ++counts[event->kind];
}

/* What a pool tells while it fills. */
static void test_events(void) {
  perdure_pool* pool = NULL;
  perdure_index* index = NULL;
  perdure_pool_options options = PERDURE_POOL_OPTIONS_INIT;
  int counts[PERDURE_DAMAGED + 1] = {0};
  uint64_t i;
  options.capacity_bytes = (uint64_t)16 << 20;
  options.growth_bytes = (uint64_t)1 << 20;
  options.on_event = count_event;
  options.on_event_context = counts;
  options.nearly_full_percent = 50;
  unlink(path);
  OK(perdure_pool_create(path, &options, &pool));
  CHECK(counts[PERDURE_OPENED] == 1 && counts[PERDURE_NEARLY_FULL] == 0);
  OK(perdure_index_create(pool, "w", "cceh", PERDURE_U64, PERDURE_U64, NULL, 0, &index));
  for (i = 0; perdure_index_upsert(index, perdure_word(i), perdure_word(i)) == PERDURE_OK; ++i) {
  }
  CHECK(counts[PERDURE_GROWN] > 1 && counts[PERDURE_NEARLY_FULL] == 1);
  perdure_index_close(index);
  OK(perdure_pool_close(pool));
  options.nearly_full_percent = 101;
  OK(perdure_pool_open(path, &options, &pool));
  CHECK(counts[PERDURE_OPENED] == 2 && counts[PERDURE_NEARLY_FULL] == 1);
  OK(perdure_pool_close(pool));
  options.nearly_full_percent = 0; /* 90 */
  OK(perdure_pool_open(path, &options, &pool));
  CHECK(counts[PERDURE_NEARLY_FULL] == 2 && counts[PERDURE_DAMAGED] == 0);
  OK(perdure_pool_close(pool));
}

/* ---- transactions ---- */

struct transfer {
  perdure_index* from;
  perdure_index* to;
  uint64_t amount;
  perdure_index* disturbed; /* written to from outside in the first attempts */
  int attempts;
};

/* An amount from "a" of one index to 1 of another. */
static int transfer(void* context, perdure_transaction* transaction) {
  struct transfer* what = context;
  perdure_value balance = {0};
  uint64_t sum = 0;
  int found = 0;
  int status =
      perdure_transaction_lookup(transaction, what->from, perdure_text("a"), &balance, &found);
  if (status != PERDURE_OK) return status;
  if (!found || balance.word < what->amount) return PERDURE_NOT_FOUND;
  status = perdure_transaction_increment(transaction, what->from, perdure_text("a"),
                                         -(int64_t)what->amount, &sum);
  if (status != PERDURE_OK) return status;
  CHECK(sum == balance.word - what->amount);
  if (what->disturbed != NULL && ++what->attempts <= 3) {
    OK(perdure_index_increment(what->disturbed, perdure_text("a"), 1, NULL));
  }
  return perdure_transaction_increment(transaction, what->to, perdure_word(1),
                                       (int64_t)what->amount, NULL);
}

static uint64_t word_of(perdure_index* index, perdure_datum key) {
  perdure_value value = {0};
  int found = 0;
  OK(perdure_index_lookup(index, key, &value, &found));
  return found ? value.word : 0;
}

static void test_transactions(void) {
  perdure_pool* pool = new_pool();
  perdure_pool* other_pool = NULL;
  perdure_index* texts = NULL;
  perdure_index* words = NULL;
  perdure_index* foreign = NULL;
  perdure_transaction* transaction = NULL;
  perdure_transaction* second = NULL;
  perdure_value value = {0};
  struct transfer what;
  int done = 7;
  OK(perdure_index_create(pool, "texts", "fast-fair", PERDURE_BYTES, PERDURE_U64, NULL, 0, &texts));
  OK(perdure_index_create(pool, "words", "cceh", PERDURE_U64, PERDURE_U64, NULL, 0, &words));
  OK(perdure_transaction_begin(pool, &transaction));

  /* It sees what it writes, and nobody else does before it commits. */
  OK(perdure_transaction_insert(transaction, texts, perdure_text("a"), perdure_word(100), &done));
  CHECK(done == 1);
  OK(perdure_transaction_insert(transaction, texts, perdure_text("a"), perdure_word(5), &done));
  CHECK(done == 0);
  OK(perdure_transaction_update(transaction, words, perdure_word(1), perdure_word(5), &done));
  CHECK(done == 0);
  OK(perdure_transaction_upsert(transaction, words, perdure_word(1), perdure_word(5)));
  OK(perdure_transaction_lookup(transaction, words, perdure_word(1), &value, &done));
  CHECK(done == 1 && value.kind == PERDURE_U64 && value.word == 5);
  OK(perdure_transaction_remove(transaction, words, perdure_word(2), &done));
  CHECK(done == 0);
  OK(perdure_index_lookup(words, perdure_word(1), &value, &done));
  CHECK(done == 0);
  OK(perdure_transaction_commit(transaction));
  CHECK(word_of(texts, perdure_text("a")) == 100 && word_of(words, perdure_word(1)) == 5);

  /* What was aborted, and what conflicts, has not happened. */
  OK(perdure_transaction_remove(transaction, words, perdure_word(1), &done));
  CHECK(done == 1);
  OK(perdure_transaction_abort(transaction));
  CHECK(word_of(words, perdure_word(1)) == 5);
  OK(perdure_transaction_begin(pool, &second));
  OK(perdure_transaction_increment(transaction, words, perdure_word(1), 1, NULL));
  OK(perdure_transaction_increment(second, words, perdure_word(1), 10, NULL));
  OK(perdure_transaction_commit(second));
  OK(perdure_transaction_upsert(transaction, texts, perdure_text("b"), perdure_word(1)));
  CHECK(perdure_transaction_commit(transaction) == PERDURE_CONFLICT);
  CHECK(strcmp(perdure_status_name(PERDURE_CONFLICT), "conflict") == 0);
  CHECK(strstr(perdure_last_error(), "words") != NULL);
  CHECK(word_of(words, perdure_word(1)) == 15 && word_of(texts, perdure_text("b")) == 0);
  OK(perdure_transaction_commit(transaction)); /* it is empty */
  perdure_transaction_free(second);

  /* Again and again until it commits; or not at all, for a reason of the work's own. */
  memset(&what, 0, sizeof what);
  what.from = texts;
  what.to = words;
  what.amount = 30;
  OK(perdure_transact(pool, transfer, &what));
  CHECK(word_of(texts, perdure_text("a")) == 70 && word_of(words, perdure_word(1)) == 45);
  what.disturbed = texts;
  OK(perdure_transact(pool, transfer, &what));
  CHECK(what.attempts == 4);
  CHECK(word_of(texts, perdure_text("a")) == 43 && word_of(words, perdure_word(1)) == 75);
  what.disturbed = NULL;
  what.amount = 1000;
  CHECK(perdure_transact(pool, transfer, &what) == PERDURE_NOT_FOUND);
  CHECK(perdure_last_status() == PERDURE_NOT_FOUND);
  what.amount = 1;
  what.to = texts; /* whose keys are no words */
  CHECK(perdure_transact(pool, transfer, &what) == PERDURE_WRONG_TYPE);
  CHECK(word_of(texts, perdure_text("a")) == 43 && word_of(words, perdure_word(1)) == 75);

  /* What is refused. */
  OK(perdure_pool_anonymous(NULL, &other_pool));
  OK(perdure_index_create(other_pool, "words", "cceh", PERDURE_U64, PERDURE_U64, NULL, 0,
                          &foreign));
  CHECK(perdure_transaction_upsert(transaction, foreign, perdure_word(1), perdure_word(1)) ==
        PERDURE_INVALID_ARGUMENT);
  CHECK(perdure_transaction_upsert(transaction, words, perdure_text("a"), perdure_word(1)) ==
        PERDURE_WRONG_TYPE);
  CHECK(perdure_transaction_upsert(NULL, words, perdure_word(1), perdure_word(1)) ==
        PERDURE_INVALID_ARGUMENT);
  CHECK(perdure_transaction_lookup(transaction, NULL, perdure_word(1), NULL, NULL) ==
        PERDURE_INVALID_ARGUMENT);
  CHECK(perdure_transaction_begin(NULL, &transaction) == PERDURE_INVALID_ARGUMENT);
  CHECK(perdure_transact(pool, NULL, NULL) == PERDURE_INVALID_ARGUMENT);
  CHECK(perdure_transaction_commit(NULL) == PERDURE_INVALID_ARGUMENT);
  perdure_transaction_free(transaction);
  perdure_transaction_free(NULL);
  perdure_index_close(foreign);
  perdure_index_close(words);
  perdure_index_close(texts);
  OK(perdure_pool_close(other_pool));
  OK(perdure_pool_close(pool));
}

int main(int argc, char** argv) {
  snprintf(path, sizeof path, "%s/capi-test-%ld.pool", argc > 1 ? argv[1] : "/tmp", (long)getpid());
  CHECK(strcmp(perdure_last_error(), "") == 0 && perdure_last_status() == PERDURE_OK);
  test_pools();
  test_raised_pool();
  test_live_backup();
  test_sizes();
  test_catalog();
  test_words();
  test_visit();
  test_bytes();
  test_atomic();
  test_store();
  test_full();
  test_events();
  test_transactions();
  unlink(path);
  printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
