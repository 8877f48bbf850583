// A medium that is not as the memory under a pool: it is called for every line that is written back
// and for every fence. It may take its time, for measurements (`perdure bench --emulate`), or fail,
// for tests. Without one, nothing here is called, and `Memory` makes no other decisions than it
// makes for its domain anyway.
#pragma once

#include <cstddef>
#include <cstdint>

#include "perdure/pool.h"

namespace perdure::pm {

class EmulatedMedia {
 public:
  virtual ~EmulatedMedia() = default;
  // Whether pools of this domain (`line` or `byte`) are on the medium. `page` has a medium of its
  // own.
  virtual bool serves(Domain domain) const { return domain == Domain::kLine; }
  // The lines of [address, address + bytes) were flushed, or written past the caches.
  virtual void written_back(uintptr_t address, size_t bytes) = 0;
  // This thread waits until what it wrote back is durable. May throw Error(kIo): the medium refuses
  // the writes since the thread's last fence, and the pool fails as it does when an msync fails.
  virtual void fenced() = 0;
};

// Pools that are mapped from now on are on this medium, if it serves their domain, until null is
// set; it must outlive them. Not thread-safe.
void emulate_media(EmulatedMedia* medium);
EmulatedMedia* emulated_media();

}  // namespace perdure::pm
