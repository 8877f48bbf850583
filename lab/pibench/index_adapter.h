// A structure of the catalogue as PiBench calls it: fixed-size keys and values as bytes.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "perdure/catalog.h"
#include "perdure/pibench.h"
#include "perdure/pool.h"

namespace perdure::pibench {

// Calls do not throw: what PiBench's interface has no word for (a full pool, a value that is too
// long) is told on standard error, once, and the call says that it did not succeed.
class IndexAdapter {
 public:
  // Keys and values of 8 bytes become words, in the machine's byte order; others byte strings.
  // Without a path the pool is private memory; a file that is there is opened; otherwise it is
  // made, in a folder under the structure's name. Throws what pools and structures throw.
  IndexAdapter(const CatalogEntry& entry, const TreeOptions& options);

  bool bulk_load(const char* pairs, size_t records, size_t key_size, size_t value_size) noexcept;
  bool find(const char* key, size_t key_size, char* value_out) const noexcept;
  bool insert(const char* key, size_t key_size, const char* value, size_t value_size) noexcept;
  bool update(const char* key, size_t key_size, const char* value, size_t value_size) noexcept;
  bool remove(const char* key, size_t key_size) noexcept;
  // 0 of structures without order.
  int scan(const char* key, size_t key_size, int records, char*& pairs_out) const noexcept;

 private:
  Datum key_of(const char* key, size_t size) const;
  Datum value_of(const char* value, size_t size) const;
  template <typename Call>
  auto guarded(const char* operation, const Call& call) const noexcept -> decltype(call());

  const CatalogEntry& entry_;
  const size_t key_size_;
  const size_t value_size_;
  const Kind key_kind_;
  const Kind value_kind_;
  mutable std::atomic<bool> told_ = false;
  Pool pool_;
  std::unique_ptr<AnyIndex> index_;  // closed before its pool
};

}  // namespace perdure::pibench
