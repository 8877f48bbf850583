// Making, opening, and reading.
#include "index/bztree/core.h"

#include <fmt/core.h>

#include <bit>
#include <cstring>
#include <new>

namespace perdure::index::bztree {

namespace {

void require(const Options& options) {
  require_range("node_bytes", options.node_bytes, kNodeBytesMin, kNodeBytesMax);
  require_range("descriptors", options.descriptors, pm::Mwcas::kDescriptorsMin,
                pm::Mwcas::kDescriptorsMax);
  if (options.node_bytes % pm::kLineBytes != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("node_bytes is {}; it must be a multiple of {}", options.node_bytes,
                            pm::kLineBytes));
  }
}

// Of a root whose seal holds: what follows allocates and computes with these.
void require_in_range(const pm::PoolImpl& pool, const std::string& name, const Root& root) {
  if (root.node_bytes >= kNodeBytesMin && root.node_bytes <= kNodeBytesMax &&
      root.node_bytes % pm::kLineBytes == 0 &&
      root.descriptor_count >= pm::Mwcas::kDescriptorsMin &&
      root.descriptor_count <= pm::Mwcas::kDescriptorsMax) {
    return;
  }
  throw pool.damaged(
      Error(ErrorCode::kCorrupt,
            fmt::format("{}: the root of '{}' says {} bytes for each node and {} descriptors, "
                        "which no tree has; restore the file from a backup",
                        pool.mapping().path(), name, root.node_bytes, root.descriptor_count)));
}

uint32_t default_descriptors(uint64_t capacity_bytes) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(capacity_bytes >> 14, 96, 1024));
}

}  // namespace

template <typename Content>
Core<Content>::Core(pm::PoolImpl& pool, Root& root, std::string name)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      node_bytes_(static_cast<uint32_t>(root.node_bytes)),
      mwcas_(pool.memory(), pool.base(), epochs_, root.descriptors,
             static_cast<uint32_t>(root.descriptor_count)),
      records_(pool, epochs_),
      retired_(
          epochs_, [this](const Blocks& blocks) { forget_and_release(blocks); }, kRetireTogether) {}

template <typename Content>
Core<Content>::~Core() = default;

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::create(pm::PoolImpl& pool, const std::string& name,
                                                     Kind key, Kind value, const Options& options) {
  require(options);
  Root root{};
  root.seal.magic = kMagic;
  root.node_bytes = options.node_bytes != 0 ? options.node_bytes : kNodeBytesDefault;
  root.descriptor_count =
      options.descriptors != 0 ? options.descriptors : default_descriptors(pool.capacity_bytes());
  const auto count = static_cast<uint32_t>(root.descriptor_count);
  const std::array<NewBlock, 2> blocks = {
      NewBlock{pm::Mwcas::bytes_for(count), offsetof(Root, descriptors),
               [&](char* block) { pm::Mwcas::format(pool.memory(), block, count); }},
      NewBlock{root.node_bytes, offsetof(Root, root),
               [&](char* block) { write_zeros(pool.memory(), block, root.node_bytes); }}};
  const uint64_t at =
      make_structure(pool, name, "bztree", key, value, &root, sizeof root, kSealedBytes, blocks);
  return std::unique_ptr<Core>(new Core(pool, *pool.at<Root>(at), name));
}

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::open(pm::PoolImpl& pool, const std::string& name,
                                                   Kind key, Kind value, const Options& options) {
  require(options);
  const uint64_t at =
      find_structure(pool, name, "bztree", key, value, kMagic, sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  require_in_range(pool, name, root);
  require_same(pool, name, "node_bytes", options.node_bytes, root.node_bytes);
  require_same(pool, name, "descriptors", options.descriptors, root.descriptor_count);
  if (!pool.heap().is_allocated(
          root.descriptors, pm::Mwcas::bytes_for(static_cast<uint32_t>(root.descriptor_count)))) {
    throw pool.damaged(
        Error(ErrorCode::kCorrupt,
              fmt::format("{}: the root of '{}' leads to no descriptors; restore the file from a "
                          "backup",
                          pool.mapping().path(), name)));
  }
  std::unique_ptr<Core> core(new Core(pool, root, name));
  core->recovered_operations_ = core->mwcas_.recover(pool.header().data_offset, pool.end_offset(),
                                                     pool.mapping().path() + ": '" + name + "'");
  core->require_sound();
  return core;
}

// That the root leads to a node.
template <typename Content>
void Core<Content>::require_sound() const {
  const pm::EpochManager::Guard guard(epochs_);
  const uint64_t top = mwcas_.read(root_.root);
  const Node& node = *top_node(top);
  if (top % pm::kLineBytes == 0 && pool_.heap().is_allocated(top, bytes_of(node))) return;
  throw_damaged(top, "is no node, but the root leads there");
}

template <typename Content>
void Core<Content>::throw_damaged(uint64_t offset, const char* what) const {
  pool_.throw_corrupt(fmt::format("'{}': what is at {} {}", name_, offset, what));
}

// The topmost node, whose level only bounds the depth of what is below.
template <typename Content>
Node* Core<Content>::top_node(uint64_t offset) const {
  const uint32_t level = pool_.follow<Node>(offset, node_bytes_)->level;
  if (level >= kLevelsMax) throw_damaged(offset, "has too high a level for the topmost node");
  return node_at(offset, level);
}

template <typename Content>
bool Core<Content>::is_separator(const Node& node, uint32_t i) const {
  if constexpr (!Content::kOutOfPlace) {
    return (void)node, (void)i, true;  // all are inside of the node
  } else {
    const char* after = node.bytes() + ends_offset(node.count);
    const auto* ends = reinterpret_cast<const uint32_t*>(after);
    const uint32_t begin = i == 0 ? 0 : ends[i - 1];
    const char* texts = after + uint64_t{node.count - 1} * 4;
    return begin <= ends[i] && ends[i] <= kSeparatorsBytesMax &&
           pool_.offset_of(texts) + ends[i] <= pool_.end_offset();
  }
}

template <typename Content>
template <typename Begins>
uint32_t Core<Content>::child_by(const Node& node, Begins begins) const {
  uint32_t low = 0;
  uint32_t high = node.count - 1;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (begins(separator_of(node, middle))) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

template <typename Content>
uint32_t Core<Content>::child_index(const Node& node, Text text) const {
  return child_by(node, [&](Text separator) { return separator <= text; });
}

template <typename Content>
void Core<Content>::descend(Text text, Path& path) const {
  descend_by(path, [&](const Node& node) { return child_index(node, text); });
}

template <typename Content>
template <typename Choose>
void Core<Content>::descend_by(Path& path, Choose choose) const {
  uint64_t offset = mwcas_.read(root_.root);
  Node* node = top_node(offset);
  for (uint32_t depth = 0;; ++depth) {
    Step& step = path.steps[depth];
    step.node = node;
    step.offset = offset;
    path.depth = depth;
    if (node->level == 0) return;
    step.index = choose(*node);
    offset = mwcas_.read(node->words()[step.index]);
    node = node_at(offset, node->level - 1);
  }
}

// The nodes, whole.
template <typename Content>
bool Core<Content>::approach(const Key& key, Approach& at) const {
  if (at.level == kLevelsMax) {
    at.node = mwcas_.read(root_.root);
    at.level = top_node(at.node)->level;
  } else {
    const Node& node = *node_at(at.node, at.level);
    at.node = mwcas_.read(node.words()[child_index(node, Codec::text_of(key))]);
    --at.level;
  }
  const char* node = pool_.follow<char>(at.node, node_bytes_);
  for (uint64_t line = 0; line < node_bytes_; line += pm::kLineBytes) pm::prefetch(node + line);
  return at.level > 0;
}

template <typename Content>
uint64_t Core<Content>::record_at(const Node& leaf, Meta meta) const {
  uint64_t record = 0;
  std::memcpy(&record, leaf.bytes() + meta.offset(), sizeof record);
  return record;
}

template <typename Content>
typename Core<Content>::Item Core<Content>::item_of(const Node& leaf, Meta meta) const {
  if (!is_record(meta)) [[unlikely]]
    throw_damaged(pool_.offset_of(&leaf), "has a record outside of its space of records");
  const char* at = leaf.bytes() + meta.offset();
  if constexpr (!Content::kOutOfPlace) {
    Item item;
    std::memcpy(&item.key, at, 8);
    std::memcpy(&item.value, at + 8, 8);
    return item;
  } else {
    if (meta.out()) {
      const uint64_t record = record_at(leaf, meta);
      return {records_.key(record), records_.value(record), record};
    }
    const char* text = at + sizeof(uint32_t);
    const size_t value_bytes = meta.bytes() - meta.key_bytes() - sizeof(uint32_t);
    return {{text, meta.key_bytes()}, {text + meta.key_bytes(), value_bytes}, 0};
  }
}

template <typename Content>
typename Core<Content>::Item Core<Content>::intact_item_of(const Node& leaf, Meta meta,
                                                           bool verifies) const {
  const Item item = item_of(leaf, meta);
  if constexpr (Content::kOutOfPlace) {
    if (verifies && !meta.out() && !Codec::is_intact(leaf.bytes() + meta.offset(), meta))
        [[unlikely]] {
      throw_damaged(pool_.offset_of(&leaf), "has a record whose checksum does not hold");
    }
  }
  return item;
}

template <typename Content>
typename Core<Content>::Text Core<Content>::key_of(const Node& leaf, Meta meta) const {
  if constexpr (Content::kOutOfPlace) {
    // Without its value, which may be long, or damaged.
    if (meta.out() && is_record(meta)) return records_.key(record_at(leaf, meta));
  }
  return item_of(leaf, meta).key;
}

template <typename Content>
typename Core<Content>::Found Core<Content>::find(const Node& leaf, uint32_t slots,
                                                  Text text) const {
  const uint64_t* metas = leaf.words();
  for (uint32_t slot = slots; slot > leaf.count; --slot) {
    const Meta meta{mwcas_.read(metas[slot - 1])};
    if (meta.visible() && key_of(leaf, meta) == text) return {slot - 1, meta};
  }
  // Among the sorted ones. The key of a removed record may be in a block that is no longer there.
  const auto readable = [](Meta meta) { return meta.visible() || !meta.out(); };
  uint32_t low = 0;
  uint32_t high = leaf.count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    uint32_t probe = middle;
    Meta meta{mwcas_.read(metas[probe])};
    while (!readable(meta) && ++probe < high) meta.word = mwcas_.read(metas[probe]);
    if (probe == high) {
      high = middle;
      continue;
    }
    const Text key = key_of(leaf, meta);
    if (key == text) return meta.visible() ? Found{probe, meta} : Found{};
    if (key < text) {
      low = probe + 1;
    } else {
      high = middle;
    }
  }
  return {};
}

template <typename Content>
void Core<Content>::collect(const Node& leaf, LeafStatus status, std::vector<Item>& out) const {
  out.clear();
  const uint64_t* metas = leaf.words();
  for (uint32_t slot = 0; slot < status.slots(); ++slot) {
    const Meta meta{mwcas_.read(metas[slot])};
    // Whoever copies it to another node gives it another checksum.
    if (meta.visible()) out.push_back(intact_item_of(leaf, meta, true));
  }
  std::sort(out.begin(), out.end(), [](const Item& a, const Item& b) { return a.key < b.key; });
}

template <typename Content>
void Core<Content>::collect_whole(const Node& leaf, std::vector<Item>& out) const {
  LeafStatus before{};
  do {
    before = status_of(leaf);
    collect(leaf, before, out);
  } while (LeafStatus{mwcas_.read(leaf.status)}.commits() != before.commits());
}

// Copies the next records of a scan, from one leaf.
template <typename Content>
void Core<Content>::copy_batch(Batch& batch, uint64_t limit) const {
  const pm::EpochManager::Guard guard(epochs_);
  thread_local std::vector<Item> items;
  Path path;
  const Text from = batch.next;
  descend(from, path);
  const Node& leaf = path.leaf();
  collect_whole(leaf, items);
  const auto first = std::lower_bound(items.begin(), items.end(), from,
                                      [](const Item& item, Text text) { return item.key < text; });
  items.erase(items.begin(), first);
  // Where the leaf ends: at the separator that follows on the lowest level that has one.
  batch.more = false;
  Text after{};
  for (uint32_t depth = path.depth; depth > 0 && !batch.more; --depth) {
    const Step& step = path.steps[depth - 1];
    if (step.index + 1 >= step.node->count) continue;
    const Text next = separator_of(*step.node, step.index);
    if (!(from < next)) throw_damaged(step.offset, "has separators that do not ascend");
    after = next;
    batch.more = true;
  }
  if (batch.more)
    batch.next = typename Codec::OwnedText(after);  // not before: `from` is a part of it
  if (items.size() > limit) items.resize(limit);
  if (!take_into(batch, items)) {
    if constexpr (Content::kOutOfPlace) {
      // The rest of the leaf comes next: what follows the last key, which is the key and a zero.
      batch.next.assign(batch.items.back().key).push_back('\0');
      batch.more = true;
    }
  }
}

// The same, downwards: all that is known of the tree is where the leaf begins, and that inner nodes
// never change.
template <typename Content>
void Core<Content>::copy_batch_back(Batch& batch, tree::Ceiling<Content>& ceiling,
                                    uint64_t limit) const {
  const pm::EpochManager::Guard guard(epochs_);
  thread_local std::vector<Item> items;
  const auto under = [&](Text text) {
    return ceiling.admits([&](const Key& key) { return text <=> Codec::text_of(key); });
  };
  Path path;
  descend_by(path, [&](const Node& node) { return child_by(node, under); });
  collect_whole(path.leaf(), items);
  const auto end = std::partition_point(items.begin(), items.end(),
                                        [&](const Item& item) { return under(item.key); });
  items.erase(end, items.end());
  std::reverse(items.begin(), items.end());
  if (items.size() > limit) items.resize(limit);
  // The leaf begins at the separator before it on the lowest level that has one.
  batch.more = false;
  Text low{};
  for (uint32_t depth = path.depth; depth > 0 && !batch.more; --depth) {
    const Step& step = path.steps[depth - 1];
    if (step.index == 0) continue;
    low = separator_of(*step.node, step.index - 1);
    if (!under(low)) throw_damaged(step.offset, "has separators that do not ascend");
    batch.more = true;
  }
  if (!take_into(batch, items)) {
    ceiling.lower_to_below(Key(batch.items.back().key));
    batch.more = true;
  } else if (batch.more) {
    ceiling.lower_to_below(Key(low));
  }
}

template <typename Content>
bool Core<Content>::take_into(Batch& batch, std::span<const Item> items) const {
  if constexpr (!Content::kOutOfPlace) {
    batch.items.assign(items.begin(), items.end());
    return true;
  } else {
    size_t count = 0;
    size_t bytes = 0;
    while (count < items.size() && (count == 0 || bytes < kBatchBytesMax)) {
      bytes += items[count].key.size() + items[count].value.size();
      ++count;
    }
    batch.bytes.clear();
    batch.bytes.reserve(bytes);
    batch.items.clear();
    for (size_t i = 0; i < count; ++i) {
      const char* at = batch.bytes.data() + batch.bytes.size();
      const size_t key_bytes = items[i].key.size();
      const size_t value_bytes = items[i].value.size();
      batch.bytes.append(items[i].key).append(items[i].value);
      batch.items.push_back({{at, key_bytes}, {at + key_bytes, value_bytes}, 0});
    }
    return count == items.size();
  }
}

PERDURE_INSTANTIATE_PART(PERDURE_BZTREE_INSTANTIATE)

}  // namespace perdure::index::bztree
