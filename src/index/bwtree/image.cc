#include "index/bwtree/image.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "pm/checksum.h"

namespace perdure::index::bwtree {

namespace {

uint64_t in_lines(uint64_t bytes) {
  return (bytes + pm::kLineBytes - 1) / pm::kLineBytes * pm::kLineBytes;
}

}  // namespace

uint32_t checksum_of(const Node& node) {
  const uint32_t header = pm::checksum32(&node, offsetof(Node, committed), 0);
  uint32_t end = std::max(node.low_text.offset() + node.low_text.bytes(),
                          node.high_text.offset() + node.high_text.bytes());
  for (uint32_t i = 0; i < node.count && node.level > 0; ++i) {
    end = std::max(end, text_of(node.items()[i]).offset() + text_of(node.items()[i]).bytes());
  }
  end = std::min(std::max(end, node.items_end()), node.deltas_at());
  return pm::checksum32(node.items(), end - sizeof(Node), header);
}

uint64_t Image::used_bytes() const {
  uint64_t bytes =
      sizeof(Node) + items.size_bytes() + range.low.text.size() + range.high.text.size();
  for (const std::string_view text : texts) bytes += text.size();
  return bytes;
}

uint64_t Image::bytes() const {
  const uint64_t slots = range.level == 0 ? chain : 0;
  return std::max(in_lines(used_bytes()) + slots * sizeof(Delta),
                  in_lines(sizeof(Node) + uint64_t{node_keys} * sizeof(Slot)) +
                      uint64_t{chain} * sizeof(Delta));
}

void Image::write(char* block, const pm::Memory& memory) const {
  const uint64_t used = used_bytes();
  thread_local std::vector<uint64_t> buffer;
  buffer.assign((used + 7) / 8, 0);
  char* const bytes = reinterpret_cast<char*>(buffer.data());
  auto* const node = reinterpret_cast<Node*>(bytes);
  node->bytes = static_cast<uint32_t>(this->bytes());
  node->id = id;
  node->level = static_cast<uint16_t>(range.level);
  node->slots = static_cast<uint16_t>(range.level == 0 ? chain : 0);
  node->count = static_cast<uint32_t>(items.size());
  node->right = range.right;
  node->from = from;
  node->home = home;
  node->fresh = fresh;
  node->low = range.low.word;
  node->high = range.high.word;
  uint32_t end = node->items_end();
  const auto put = [&](std::string_view text) {
    if (!text.empty()) std::memcpy(bytes + end, text.data(), text.size());
    const Text placed = Text::make(end, text.size());
    end += static_cast<uint32_t>(text.size());
    return placed;
  };
  node->low_text = put(range.low.text);
  node->high_text = put(range.high.text);
  auto* const slots = reinterpret_cast<Slot*>(node + 1);
  std::copy(items.begin(), items.end(), slots);
  for (size_t i = 0; i < texts.size(); ++i) slots[i].value |= uint64_t{put(texts[i]).word} << 32;
  node->checksum = checksum_of(*node);
  std::memcpy(block, bytes, used);
  memory.flush(block, used);
}

}  // namespace perdure::index::bwtree
