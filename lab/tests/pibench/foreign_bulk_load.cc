#include "foreign_tree_bulk_load.h"
#include "foreign_words.h"

extern "C" tree_api* create_tree(const tree_options_t& options) { return make_words(options); }
