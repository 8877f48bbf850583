// A library whose symbols tell nothing but create_tree.
#include "foreign_tree_2019.h"
#include "foreign_words.h"

extern "C" [[gnu::visibility("default")]] tree_api* create_tree(const tree_options_t& options) {
  return make_words(options);
}
