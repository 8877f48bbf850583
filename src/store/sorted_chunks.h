// A multimap in chunks: items in the order of their keys, in arrays of up to 64. To come to an item
// costs a few misses where a binary tree has one a level, and an insert allocates once in some
// thirty.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace perdure::store {

// `Key` and `Value` move without throwing. Keys are compared by `<`, also with what is given to
// look for. Iterators and references are valid until the next insert() or erase_if(). One thread at
// a time.
template <typename Key, typename Value>
class SortedChunks {
 public:
  using Item = std::pair<Key, Value>;

 private:
  static constexpr size_t kItemsMax = 64;
  struct Chunk {
    std::array<Item, kItemsMax> items;
    size_t count = 0;
    Item* end() { return items.data() + count; }
  };

 public:
  // Of items; end() is behind the last one.
  class Iterator {
   public:
    Iterator(const SortedChunks& all, size_t chunk, size_t at)
        : all_(&all), chunk_(chunk), at_(at) {}
    Item& operator*() const { return all_->chunks_[chunk_]->items[at_]; }
    Item* operator->() const { return &**this; }
    Iterator& operator++() {
      if (++at_ == all_->chunks_[chunk_]->count) *this = {*all_, chunk_ + 1, 0};
      return *this;
    }
    Iterator& operator--() {
      if (at_ == 0) *this = {*all_, chunk_ - 1, all_->chunks_[chunk_ - 1]->count};
      --at_;
      return *this;
    }
    bool operator==(const Iterator& other) const {
      return chunk_ == other.chunk_ && at_ == other.at_;
    }

   private:
    const SortedChunks* all_;
    size_t chunk_;
    size_t at_;
  };

  uint64_t size() const { return size_; }
  Iterator begin() const { return {*this, 0, 0}; }
  Iterator end() const { return {*this, chunks_.size(), 0}; }

  // The first item whose key is not before this one, or end().
  template <typename Sought>
  Iterator lower_bound(const Sought& key) const {
    return first_that([&](const Item& item) { return !(item.first < key); });
  }
  // The first item whose key is behind this one, or end().
  template <typename Sought>
  Iterator upper_bound(const Sought& key) const {
    return first_that([&](const Item& item) { return key < item.first; });
  }

  // Behind those of the same key. Throws std::bad_alloc, having changed nothing.
  void insert(Key key, Value value) {
    size_t number = chunk_for(key);
    if (chunks_.empty()) {
      chunks_.push_back(std::make_unique<Chunk>());
    } else if (chunks_[number]->count == kItemsMax) {
      number = split(number, key);
    }
    Chunk& chunk = *chunks_[number];
    Item* const at = std::partition_point(chunk.items.data(), chunk.end(),
                                          [&](const Item& item) { return !(key < item.first); });
    std::move_backward(at, chunk.end(), chunk.end() + 1);
    *at = {std::move(key), std::move(value)};
    ++chunk.count;
    ++size_;
  }

  // Those of which `is_gone(item)` is true; it is asked once for each, in their order. Allocates
  // nothing.
  template <typename IsGone>
  void erase_if(IsGone is_gone) {
    for (const auto& chunk : chunks_) {
      Item* const end = std::remove_if(chunk->items.data(), chunk->end(), is_gone);
      for (Item* at = end; at != chunk->end(); ++at) *at = {};  // what the key has allocated goes
      size_ -= static_cast<uint64_t>(chunk->end() - end);
      chunk->count = static_cast<size_t>(end - chunk->items.data());
    }
    std::erase_if(chunks_, [](const auto& chunk) { return chunk->count == 0; });
  }

 private:
  // `is(item)` is true of all items from some one on.
  template <typename Is>
  Iterator first_that(Is is) const {
    const auto chunk = std::partition_point(
        chunks_.begin(), chunks_.end(), [&](const auto& one) { return !is(*(one->end() - 1)); });
    if (chunk == chunks_.end()) return end();
    Chunk& found = **chunk;
    const Item* const at = std::partition_point(found.items.data(), found.end(),
                                                [&](const Item& item) { return !is(item); });
    return {*this, static_cast<size_t>(chunk - chunks_.begin()),
            static_cast<size_t>(at - found.items.data())};
  }

  // The last chunk that begins with this key or before it, or the first one.
  size_t chunk_for(const Key& key) const {
    const auto behind = std::partition_point(
        chunks_.begin(), chunks_.end(),
        [&](const auto& chunk) { return !(key < chunk->items.front().first); });
    return behind == chunks_.begin() ? 0 : static_cast<size_t>(behind - chunks_.begin()) - 1;
  }

  // Makes two chunks of a full one, or an empty one behind it for a key that is behind all of them:
  // keys that ascend leave full chunks. Returns which of the two the key belongs to.
  size_t split(size_t number, const Key& key) {
    auto right = std::make_unique<Chunk>();
    Chunk& left = *chunks_[number];
    const bool ascends = number + 1 == chunks_.size() && !(key < (left.end() - 1)->first);
    const size_t kept = ascends ? kItemsMax : kItemsMax / 2;
    Chunk& made = *right;
    chunks_.insert(chunks_.begin() + static_cast<ptrdiff_t>(number) + 1, std::move(right));
    std::move(left.items.begin() + static_cast<ptrdiff_t>(kept), left.items.end(),
              made.items.begin());
    made.count = kItemsMax - kept;
    left.count = kept;
    return ascends || !(key < made.items.front().first) ? number + 1 : number;
  }

  std::vector<std::unique_ptr<Chunk>> chunks_;  // none is empty
  uint64_t size_ = 0;
};

}  // namespace perdure::store
