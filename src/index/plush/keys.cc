#include "index/plush/keys.h"

#include <bit>

#include "pm/checksum.h"

namespace perdure::index::plush {

Keys::Keys(const Shape& shape)
    : ordered_(shape.ordered != 0),
      order_shift_(ordered_ ? static_cast<uint32_t>(std::countl_zero(shape.key_max - shape.key_min))
                            : 0),
      min_(ordered_ ? shape.key_min : 0),
      max_(ordered_ ? shape.key_max : ~uint64_t{0}) {}

Key Keys::key_of(std::string_view bytes) const {
  if (ordered_) return {position_of(word_of(bytes)), bytes};
  return {pm::checksum64(bytes.data(), bytes.size()), bytes};
}

uint64_t Keys::position_of(uint64_t key) const {
  const uint64_t place = key - min_;
  if (order_shift_ == 0) return place;
  // The bits below the place tell keys apart where levels are deeper than the range is wide.
  return place << order_shift_ | hash_of(place) >> (64 - order_shift_);
}

}  // namespace perdure::index::plush
