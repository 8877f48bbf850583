// FAST&FAIR and its variants in the catalogue.
#include "index/core_entry.h"
#include "index/entries.h"
#include "index/fastfair/core.h"

namespace perdure::index {

namespace {

template <typename Policy>
struct FastFair {
  template <typename Content>
  using Core = fastfair::Core<Policy, Content>;

  static fastfair::Options parse(OptionMap options) {
    fastfair::Options parsed;
    take_option(options, "node_bytes", parsed.node_bytes);
    require_empty(options, Policy::kName);
    return parsed;
  }

  static EntryWithPresets entry(const char* paper) {
    EntryWithPresets entry = CoreEntry<tree::RangeTrees, Core, parse>::make(Policy::kName, paper);
    entry.options = {
        {"node_bytes", std::to_string(Policy::kNodeBytes),
         "bytes of a node, a power of two from 128 to 2048; small ones are for tests"}};
    // The reference runs with byte strings of all lengths in tiny pools, too: with smaller nodes
    // these would be about how the heap's classes share the segments.
    const bool with_words_only = Policy::kHeaderBytes == sizeof(fastfair::Node);
    entry.small_options = {{"node_bytes", with_words_only ? "128" : "512"}};
    entry.tiny_options = {{"node_bytes", "128"}};
    return entry;
  }
};

}  // namespace

EntryWithPresets fast_fair_entry() {
  return FastFair<fastfair::Reference>::entry("Hwang et al., FAST 2018");
}
EntryWithPresets fast_fair_rb_entry() {
  return FastFair<fastfair::Trimmed>::entry("Woo et al., IEEE Access 2021");
}
EntryWithPresets fast_fair_rb_xs_entry() {
  return FastFair<fastfair::Sized>::entry("Woo et al., IEEE Access 2021");
}

}  // namespace perdure::index
