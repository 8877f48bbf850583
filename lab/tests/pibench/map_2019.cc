#include "map_tree.h"

extern "C" tree_api* create_tree(const tree_options_t& options) {
  return reinterpret_cast<tree_api*>(new MapTree<perdure::pibench::Tree2019>(options));
}
