// A level of nodes of an ordered index, while it is built.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "store/ordered_index.h"

namespace perdure::store {

// The nodes of one level, in order, and what separates them. Frees those that have no parent.
class OrderedIndex::Row {
 public:
  Row(OrderedIndex& index, size_t nodes) : index_(index) {
    nodes_.reserve(nodes);
    separators_.reserve(nodes);
  }
  ~Row() {
    for (Node* node : nodes_) {
      if (node != nullptr) index_.free_subtree(node);
    }
  }
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;

  size_t size() const { return nodes_.size(); }
  // For one node, and what stands behind it. May throw std::bad_alloc.
  void make_room() {
    if (nodes_.size() == nodes_.capacity()) nodes_.reserve(2 * nodes_.size() + 1);
    if (separators_.size() == separators_.capacity()) separators_.reserve(2 * nodes_.size() + 1);
  }
  // There is room for it.
  void push_back(Node* node) {
    nodes_.push_back(node);
    separators_.emplace_back();
  }
  // What separates the last one from the next.
  std::string& behind_last() { return separators_.empty() ? none_ : separators_.back(); }
  Node* take(size_t i) { return std::exchange(nodes_[i], nullptr); }
  std::string take_separator(size_t behind) { return std::move(separators_[behind]); }
  void swap(Row& other) noexcept {
    nodes_.swap(other.nodes_);
    separators_.swap(other.separators_);
  }

 private:
  OrderedIndex& index_;
  std::vector<Node*> nodes_;
  std::vector<std::string> separators_;  // behind each
  std::string none_;
};

}  // namespace perdure::store
