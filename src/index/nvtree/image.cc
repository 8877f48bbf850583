// The inner part in PM, from a clean close to the first replacement of a leaf after it.
#include <algorithm>
#include <cstring>

#include "index/nvtree/core.h"
#include "pm/checksum.h"

namespace perdure::index::nvtree {

namespace {

// A separator's text with its padding.
uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

uint64_t checksum_of(const Image& image) {
  return pm::checksum64(&image.bytes, sizeof image - offsetof(Image, bytes) + image.bytes);
}

}  // namespace

// What the root leads to, if it is an image by its size. The content is not judged.
template <typename Content>
const Image& Core<Content>::image() const {
  const uint64_t at = root_.image;
  // The block's size stands in its first line: in the pool, at least, before that is read.
  if (at % pm::kLineBytes != 0 || !pool_.leads_inside(at, sizeof(Image))) throw_damaged("the root");
  const Image& image = *pool_.at<Image>(at);
  if (image.bytes > pool_.end_offset() - at ||
      !pool_.heap().is_allocated(at, sizeof(Image) + image.bytes)) {
    throw_damaged("the spilled inner part");
  }
  return image;
}

template <typename Content>
ChildList Core<Content>::read_image() const {
  const Image& image = this->image();
  if (checksum_of(image) != image.checksum) throw_damaged("the spilled inner part");
  const char* from = reinterpret_cast<const char*>(&image + 1);
  const char* const end = from + image.bytes;
  ChildList children;
  while (from != end) {
    uint64_t words[2];
    if (static_cast<uint64_t>(end - from) < sizeof words) throw_damaged("the spilled inner part");
    std::memcpy(words, from, sizeof words);
    from += sizeof words;
    Child child{words[0], nullptr, words[1]};
    if constexpr (Content::kOutOfPlace) {
      child.leaf = words[0];
      const auto left = static_cast<uint64_t>(end - from);
      if (words[1] > left || padded(words[1]) > left) throw_damaged("the spilled inner part");
      child.text = new std::string(from, words[1]);
      child.word = tree::prefix_of(*child.text);
      from += padded(words[1]);
    }
    children.push_back(child);
    if (!pool_.heap().is_allocated(child.leaf, leaf_bytes(leaf_records_))) {
      throw_damaged("the spilled inner part");
    }
  }
  if (children.empty() || children.size() != image.leaves || children[0].leaf != root_.head) {
    throw_damaged("the spilled inner part");
  }
  // The first separator counts for nothing.
  for (size_t i = 2; i < children.size(); ++i) {
    const Child& low = children[i - 1];
    const Child& high = children[i];
    const bool ascends = Content::kOutOfPlace ? *low.text < *high.text : low.word < high.word;
    if (!ascends) throw_damaged("the spilled inner part");
  }
  return children;
}

// Throws kPoolFull, kNoSpace, having changed nothing.
template <typename Content>
void Core<Content>::write_image() {
  const std::vector<Child> children = inner_.children();
  uint64_t bytes = 0;
  for (const Child& child : children) {
    bytes += 16 + (child.text != nullptr ? padded(child.text->size()) : 0);
  }
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t at = txn.allocate(sizeof(Image) + bytes);
  auto* const image = pool_.at<Image>(at);
  char* const begin = reinterpret_cast<char*>(image + 1);
  char* to = begin;
  for (const Child& child : children) {
    uint64_t words[2] = {child.word, child.leaf};
    if constexpr (Content::kOutOfPlace) {
      words[0] = child.leaf;
      words[1] = child.text->size();
    }
    std::memcpy(to, words, sizeof words);
    to += sizeof words;
    if constexpr (Content::kOutOfPlace) {
      char* const end = to + padded(child.text->size());
      std::fill(std::copy(child.text->begin(), child.text->end(), to), end, '\0');
      to = end;
    }
  }
  *image = Image{};
  image->bytes = bytes;
  image->leaves = children.size();
  image->checksum = checksum_of(*image);
  memory_.flush(image, sizeof(Image) + bytes);
  // The image and the intent, before the pointer that says it may be believed.
  txn.publish(at, root_.image);
}

template <typename Content>
void Core<Content>::drop_image() {
  if (!pm::acquire(has_image_)) [[likely]]
    return;
  const std::lock_guard lock(image_mutex_);
  if (!has_image_.load(std::memory_order_relaxed)) return;
  const uint64_t at = pool_.offset_of(&image());
  pm::Heap::Txn txn(pool_.heap(), true);
  // The intent, before the pointer that it follows.
  txn.retire(at, root_.image, uint64_t{0});
  pm::publish(has_image_, false);  // only now may leaves be replaced
}

PERDURE_INSTANTIATE_PART(PERDURE_NVTREE_INSTANTIATE)

}  // namespace perdure::index::nvtree
