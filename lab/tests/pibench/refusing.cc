// A library that can make no index.
#include "perdure/pibench.h"

extern "C" tree_api* create_tree(const tree_options_t&) { return nullptr; }
