// Which partition has a key: by its hash, or, if the store was made with boundaries, by where it
// lies among them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace perdure::store {

class Boundaries {
 public:
  static constexpr uint64_t kBytesMax = 1 << 20;  // of all, with their lengths

  Boundaries() = default;
  // Throws kInvalidArgument unless they ascend and fit.
  explicit Boundaries(std::vector<std::string> texts);

  // Such that about as many of the keys lie in each of so many partitions; fewer where there are
  // too few different ones. Throws kInvalidArgument if that many cannot be.
  static Boundaries of_sample(std::vector<std::string> keys, uint32_t partitions);

  // As they stand in the pool: for each, its length (4 bytes), and its bytes.
  std::string encode() const;
  // False if the bytes are no boundaries that encode() would give.
  static bool decode(std::string_view bytes, Boundaries& out);

  const std::vector<std::string>& texts() const { return texts_; }
  bool empty() const { return texts_.empty(); }
  uint32_t partitions() const { return static_cast<uint32_t>(texts_.size() + 1); }
  // Partition i has the keys from boundary i - 1 on, and before boundary i.
  uint32_t partition_of(std::string_view key) const;
  bool operator==(const Boundaries&) const = default;

 private:
  std::vector<std::string> texts_;
};

}  // namespace perdure::store
