#include "map_tree.h"

extern "C" tree_api* create_tree(const tree_options_t& options) {
  return new MapTree<tree_api>(options);
}
