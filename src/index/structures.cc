#include "index/entries.h"

namespace perdure::index {

const std::vector<EntryWithPresets>& structures() {
  static const std::vector<EntryWithPresets> all = {
      plush_entry(),            // in the order of the documentation's table
      plush_range_entry(),      //
      cceh_entry(),             //
      cceh_ip_entry(),          //
      clht_entry(),             //
      clht_fc_entry(),          //
      clht_fc_ve_entry(),       //
      clht_fc_ve_xs_entry(),    //
      level_entry(),            //
      level_rb_entry(),         //
      fptree_entry(),           //
      wbtree_entry(),           //
      fast_fair_entry(),        //
      fast_fair_rb_entry(),     //
      fast_fair_rb_xs_entry(),  //
      nv_tree_entry(),          //
      bztree_entry(),           //
      p_bwtree_entry(),         //
      sheaf_entry(),            //
      p_art_entry(),            //
      p_art_vl_entry(),         //
      p_masstree_entry(),       //
      p_masstree_vl_entry(),    //
      p_hot_entry(),            //
      p_hot_vl_entry(),         //
      wort_entry(),             //
      woart_entry(),            //
      art_cow_entry(),          //
  };
  return all;
}

}  // namespace perdure::index
