/* A dictionary in a pool, from C: a word and a meaning store it, a word alone looks it up.
 *
 *   words /dev/shm/words.pool perdure "to last, to go on existing"
 *   words /dev/shm/words.pool perdure
 */
#include <perdure/c.h>
#include <stdio.h>
#include <unistd.h>

static int failed(void) {
  fprintf(stderr, "words: %s\n", perdure_last_error());
  return 2;
}

static int look_up(perdure_index *words, const char *word) {
  perdure_value meaning = {0};
  int found = 0;
  if (perdure_index_lookup(words, perdure_text(word), &meaning, &found) != PERDURE_OK) {
    return failed();
  }
  if (found) printf("%s\n", meaning.data);
  perdure_value_free(&meaning);
  return found ? 0 : 1;
}

int main(int argc, char **argv) {
  perdure_pool *pool;
  perdure_index *words;
  int result = 0;
  if (argc < 3 || argc > 4) {
    fprintf(stderr, "usage: words POOL WORD [MEANING]\n");
    return 2;
  }
  const int is_new = access(argv[1], F_OK) != 0;
  if ((is_new ? perdure_pool_create : perdure_pool_open)(argv[1], NULL, &pool) != PERDURE_OK) {
    return failed();
  }
  if ((is_new ? perdure_index_create(pool, "words", "plush", PERDURE_BYTES, PERDURE_BYTES, NULL, 0,
                                     &words)
              : perdure_index_open(pool, "words", NULL, 0, &words)) != PERDURE_OK) {
    return failed();
  }
  if (argc == 3) {
    result = look_up(words, argv[2]);
  } else if (perdure_index_upsert(words, perdure_text(argv[2]), perdure_text(argv[3])) !=
             PERDURE_OK) { /* durable when it returns */
    result = failed();
  }
  perdure_index_close(words);
  return perdure_pool_close(pool) == PERDURE_OK ? result : failed();
}
