// An AnyIndex, spoken to in numbers (see data.h) whatever its key and value kinds are.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "perdure/index.h"
#include "support/data.h"

namespace perdure::test {

class TypedIndex {
 public:
  // What lookup() gives for a value that no operation wrote.
  static constexpr uint64_t kTorn = ~uint64_t{0};

  explicit TypedIndex(AnyIndex& index)
      : index_(&index), key_kind_(index.key_kind()), value_kind_(index.value_kind()) {}

  bool insert(uint64_t key, uint64_t value) const {
    return index_->insert(make_key(key_kind_, key).datum(), make_value(value_kind_, value).datum());
  }
  bool update(uint64_t key, uint64_t value) const {
    return index_->update(make_key(key_kind_, key).datum(), make_value(value_kind_, value).datum());
  }
  void upsert(uint64_t key, uint64_t value) const {
    index_->upsert(make_key(key_kind_, key).datum(), make_value(value_kind_, value).datum());
  }
  bool remove(uint64_t key) const { return index_->remove(make_key(key_kind_, key).datum()); }
  std::optional<uint64_t> lookup(uint64_t key) const;
  bool compare_exchange(uint64_t key, uint64_t expected, uint64_t desired) const {
    return index_->compare_exchange(make_key(key_kind_, key).datum(),
                                    make_value(value_kind_, expected).datum(),
                                    make_value(value_kind_, desired).datum());
  }
  bool compare_remove(uint64_t key, uint64_t expected) const {
    return index_->compare_remove(make_key(key_kind_, key).datum(),
                                  make_value(value_kind_, expected).datum());
  }
  // AnyIndex::modify(), in numbers.
  using Modify = std::function<Change(std::optional<uint64_t> before, uint64_t& after)>;
  Change modify(uint64_t key, const Modify& change) const;
  // Adds 1, by modify(), to a value that is a number of any kind; returns the sum.
  uint64_t count(uint64_t key) const;

  // Calls `visit` for each record; kTorn stands for a key or value that no operation wrote.
  void for_each(const std::function<void(uint64_t key, uint64_t value)>& visit) const;

  AnyIndex& any() const { return *index_; }

 private:
  AnyIndex* index_;
  Kind key_kind_;
  Kind value_kind_;
};

// Compares everything that lookup() and for_each() tell with the model; also looks up each key
// number below `universe` that the model does not have. Returns the first differences in words, or
// an empty string if there are none.
std::string difference(TypedIndex index, const Model& model, uint64_t universe);

}  // namespace perdure::test
