// One line for each structure of the catalogue.
#pragma once

#include <vector>

#include "index/presets.h"

namespace perdure::index {

EntryWithPresets plush_entry();
EntryWithPresets plush_range_entry();
EntryWithPresets cceh_entry();
EntryWithPresets cceh_ip_entry();
EntryWithPresets level_entry();
EntryWithPresets level_rb_entry();
EntryWithPresets clht_entry();
EntryWithPresets clht_fc_entry();
EntryWithPresets clht_fc_ve_entry();
EntryWithPresets clht_fc_ve_xs_entry();
EntryWithPresets fptree_entry();
EntryWithPresets wbtree_entry();
EntryWithPresets fast_fair_entry();
EntryWithPresets fast_fair_rb_entry();
EntryWithPresets fast_fair_rb_xs_entry();
EntryWithPresets nv_tree_entry();
EntryWithPresets sheaf_entry();
EntryWithPresets bztree_entry();
EntryWithPresets p_bwtree_entry();
EntryWithPresets p_art_entry();
EntryWithPresets p_art_vl_entry();
EntryWithPresets p_masstree_entry();
EntryWithPresets p_masstree_vl_entry();
EntryWithPresets p_hot_entry();
EntryWithPresets p_hot_vl_entry();
EntryWithPresets wort_entry();
EntryWithPresets art_cow_entry();
EntryWithPresets woart_entry();

// All of them, in the order of the documentation's table: the catalogue without what is built on
// them.
const std::vector<EntryWithPresets>& structures();

}  // namespace perdure::index
