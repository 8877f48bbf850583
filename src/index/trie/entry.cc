// The radix trees in the catalogue.
#include "index/core_entry.h"
#include "index/entries.h"
#include "index/trie/core.h"

namespace perdure::index {

namespace {

template <typename Policy>
struct Trie {
  template <typename Content>
  using Core = trie::Core<Policy, Content>;

  static trie::Options parse(const OptionMap& options) {
    require_empty(options, Policy::kName);
    return {};
  }
  static EntryWithPresets entry(const char* paper) {
    return CoreEntry<tree::Tries, Core, parse>::make(Policy::kName, paper);
  }
};

}  // namespace

EntryWithPresets p_art_entry() {
  return Trie<trie::PArt>::entry("Leis et al., ICDE 2013; Lee et al., SOSP 2019");
}
EntryWithPresets p_art_vl_entry() {
  return Trie<trie::PArtVl>::entry("Leis et al., ICDE 2013; Lee et al., SOSP 2019");
}
EntryWithPresets art_cow_entry() { return Trie<trie::CowTree>::entry("Lee et al., FAST 2017"); }
EntryWithPresets woart_entry() { return Trie<trie::WoartTree>::entry("Lee et al., FAST 2017"); }
EntryWithPresets wort_entry() { return Trie<trie::WortTree>::entry("Lee et al., FAST 2017"); }

}  // namespace perdure::index
