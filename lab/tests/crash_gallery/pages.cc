// On an ordinary file durability comes by the page, from msync, and between two calls of it the
// system writes back what it likes. Flushes of lines mean nothing there.
#include <fmt/core.h>

#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

const pm::Memory file(Domain::kPage);

struct Pages {
  alignas(4096) uint64_t payload[8];
  alignas(4096) uint64_t ready[8];
};

// Two pages go out in one msync, and the flag's may be written without the data's.
template <bool kRepaired>
class PagesTogether : public RootProgram<Pages> {
 public:
  uint32_t operation_count() const override { return 4; }

 protected:
  void perform(Pages& root, uint32_t number) override {
    root.payload[number] = 70 + number;  // lost in pages_together
    file.flush(&root.payload[number], sizeof root.payload[0]);
    if (kRepaired) file.fence();
    root.ready[number] = 1;
    file.persist(&root.ready[number], sizeof root.ready[0]);
  }
  std::string restore(Pages& root) override {
    std::string text;
    for (uint64_t i = 0; i < 8; ++i) {
      if (root.ready[i] != 0) text += fmt::format("{} ", root.payload[i]);
    }
    return text;
  }
};

}  // namespace

void add_pages(std::vector<Entry>& entries) {
  entries.push_back(make_entry<PagesTogether>("pages_together", "pages.cc", Domain::kPage));
}

}  // namespace perdure::crash_gallery
