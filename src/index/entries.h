// One line for each structure of the catalogue.
#pragma once

#include "perdure/catalog.h"

namespace perdure::index {

CatalogEntry plush_entry();
CatalogEntry plush_range_entry();
CatalogEntry cceh_entry();
CatalogEntry cceh_ip_entry();
CatalogEntry level_entry();
CatalogEntry level_rb_entry();
CatalogEntry clht_entry();
CatalogEntry clht_fc_entry();
CatalogEntry clht_fc_ve_entry();
CatalogEntry clht_fc_ve_xs_entry();
CatalogEntry fptree_entry();
CatalogEntry wbtree_entry();
CatalogEntry fast_fair_entry();
CatalogEntry fast_fair_rb_entry();
CatalogEntry fast_fair_rb_xs_entry();
CatalogEntry nv_tree_entry();
CatalogEntry bztree_entry();

}  // namespace perdure::index
