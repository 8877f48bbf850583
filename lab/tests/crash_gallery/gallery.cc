#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {

std::vector<Entry> gallery() {
  std::vector<Entry> entries;
  add_flushes(entries);
  add_fences(entries);
  add_order(entries);
  add_atomicity(entries);
  add_journals(entries);
  add_heap(entries);
  add_hash_tables(entries);
  add_table(entries);
  add_tree(entries);
  add_tries(entries);
  add_directory(entries);
  add_recovery(entries);
  add_stale(entries);
  add_pages(entries);
  add_reader(entries);
  return entries;
}

}  // namespace perdure::crash_gallery
