// Byte strings: in leaves, in buffers, and how both are copied for scans.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <memory>

#include "index/sheaf/core.h"
#include "pm/checksum.h"

namespace perdure::index::sheaf {

using BytesCore = Core<tree::Bytes>;

namespace {

// Scans copy no more at once, but for the record that is beyond it.
constexpr uint64_t kCopyBytes = uint64_t{64} << 10;

uint64_t hash_of(std::string_view key) { return pm::checksum64(key.data(), key.size()); }

uint64_t shared_bytes(std::string_view a, std::string_view b) {
  return static_cast<uint64_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<int64_t>(std::min(a.size(), b.size())),
                    b.begin())
          .first -
      a.begin());
}

}  // namespace

// ---- records where they lie

template <typename Content>
typename Core<Content>::Item Core<Content>::item_at(const char* leaf, uint32_t bytes,
                                                    const Slot& slot) const
  requires(Content::kOutOfPlace)
{
  const RecordPlace place = RecordPlace::of(slot.value);
  if (place.at + place.bytes() > bytes || (place.external && place.value_bytes != 8)) [[unlikely]]
    throw_damaged("a leaf");
  const char* text = leaf + place.at;
  return {{text, place.key_bytes},
          {{text + place.key_bytes, place.value_bytes}, place.external},
          slot.value};
}

template <typename Content>
const LogEntry& Core<Content>::entry_at(uint64_t word) const
  requires(Content::kOutOfPlace)
{
  const uint64_t offset = LogEntry::offset_of(word);
  const LogEntry& entry = *pool_.at<LogEntry>(offset);
  // Chunks begin at multiples of their size, which is a power of two.
  if (entry.bytes() > root_.chunk_bytes - (offset & (root_.chunk_bytes - 1))) [[unlikely]]
    throw_damaged("the log");
  return entry;
}

// A value that is handed out is the one that was written for the key with this hash.
template <typename Content>
void Core<Content>::require_intact(uint64_t hash, const Stored& value, uint64_t word) const
  requires(Content::kOutOfPlace)
{
  if (pool_.verifies_payload() && Form::check_of(hash, value) != word >> Form::kCheckShift)
      [[unlikely]]
    throw_damaged("a record");
}

template <>
int BytesCore::find_buffered(const Ref& ref, uint32_t buffered, const Sought& key,
                             const uint32_t* stamp) const {
  for (uint64_t some = match_fingerprints(ref, buffered, fingerprint_of(key.hash)); some != 0;
       some &= some - 1) {
    const int i = std::countr_zero(some);
    if (i >= static_cast<int>(buffered)) break;
    if (pm::load_relaxed(ref.buffer()[i].key) != key.hash) continue;
    const uint64_t word = pm::load_relaxed(ref.buffer()[i].value);
    // It leads to a record only if both words are of one.
    if (stamp != nullptr && !ref.lock.validate(*stamp)) return kChanged;
    const std::string_view found = entry_at(word).key();
    if (found == key.bytes) return i;
    // Two keys hardly ever have one hash: the record is damaged, and what the leaf has of the key
    // is older.
    if (hash_of(found) != key.hash) [[unlikely]]
      throw_damaged("the log");
  }
  return -1;
}

template <>
BytesCore::Stored BytesCore::buffered_value(const Ref& ref, int buffered) const {
  return entry_at(ref.buffer()[buffered].value).value();
}

template <>
uint64_t BytesCore::buffered_units(const Ref& ref, int buffered) const {
  return Form::units_of(entry_at(ref.buffer()[buffered].value).item());
}

// Of a key that does not begin as the leaf's keys do it says nothing, but then the leaf does not
// have it.
template <>
uint64_t BytesCore::head_of(const Ref& ref, const Sought& key) {
  return head_at(key.bytes, pm::load_relaxed(ref.prefix));
}

template <>
bool BytesCore::find_in_leaf(uint64_t offset, uint32_t bytes, uint32_t records, uint32_t begin,
                             uint32_t end, uint64_t head, const Sought& key, Stored& value) const {
  const Slot* all = pool_.at<Leaf>(offset)->records();
  const uint32_t from = std::min(begin * kLineRecords, records);
  const uint32_t to = std::min((end + 1) * kLineRecords, records);
  if (from >= to) return false;
  // All lines that may have it at once, where they are few.
  for (uint32_t i = from; i < to && i < from + 4 * kLineRecords; i += kLineRecords)
    pm::prefetch(all + i);
  uint32_t last = from;
  for (uint32_t count = to - from; count > 1;) {
    const uint32_t half = count / 2;
    last += all[last + half].key <= head ? half : 0;
    count -= half;
  }
  if (all[last].key != head) return false;
  const char* leaf = pool_.at<char>(offset);
  // Few have the same head.
  const Slot* first = all + last;
  if (last > from && first[-1].key == head) {
    first = std::partition_point(all + from, all + last, [&](const Slot& slot) {
      return slot.key < head || (slot.key == head && item_at(leaf, bytes, slot).key < key.bytes);
    });
  }
  const Item item = item_at(leaf, bytes, *first);
  if (item.key != key.bytes) return false;
  require_intact(key.hash, item.value, first->value);
  value = item.value;
  return true;
}

template <typename Content>
uint32_t Core<Content>::lower_bound(const char* leaf, uint32_t bytes, uint32_t records,
                                    std::string_view key) const
  requires(Content::kOutOfPlace)
{
  if (records == 0) return 0;
  const auto& header = *reinterpret_cast<const Leaf*>(leaf);
  const Slot* all = header.records();
  const std::string_view shared = item_at(leaf, bytes, all[0]).key.substr(0, header.prefix_bytes);
  if (const int order = key.substr(0, shared.size()).compare(shared); order != 0)
    return order < 0 ? 0 : records;
  const uint64_t head = head_at(key, shared.size());
  return static_cast<uint32_t>(std::partition_point(all, all + records,
                                                    [&](const Slot& slot) {
                                                      return slot.key != head
                                                                 ? slot.key < head
                                                                 : item_at(leaf, bytes, slot).key <
                                                                       key;
                                                    }) -
                               all);
}

// ---- scans

template <typename Content>
bool Core<Content>::copy(const Ref& ref, const Bound& bound, uint64_t limit, Copies& out) const
  requires(Content::kOutOfPlace)
{
  out.text.clear();
  out.pieces.clear();
  out.cut = false;
  std::array<Slot, kBufferRecordsMax> slots;
  const uint32_t stamp = ref.lock.begin_read();
  const uint32_t buffered = std::min<uint32_t>(pm::load_relaxed(ref.buffered), buffer_records_);
  const uint64_t offset = pm::load_relaxed(ref.offset);
  const uint32_t records = pm::load_relaxed(ref.records);
  const uint32_t bytes = pm::load_relaxed(ref.block_bytes);
  const uint64_t removed = pm::load_relaxed(ref.removed);
  for (uint32_t i = 0; i < buffered; ++i)
    slots[i] = {pm::load_relaxed(ref.buffer()[i].key), pm::load_relaxed(ref.buffer()[i].value)};
  const bool obsolete = pm::load_relaxed(ref.obsolete) != 0;
  if (!ref.lock.validate(stamp) || obsolete) return false;
  // What these lead to stays as it is for as long as the caller has a guard.
  for (uint32_t i = 0; i < buffered; ++i)
    pm::prefetch(pool_.at<char>(LogEntry::offset_of(slots[i].value)));
  struct Buffered {
    Item item;
    bool removal;
  };
  std::array<Buffered, kBufferRecordsMax> fresh;
  uint32_t count = 0;
  const auto is_wanted = [&](std::string_view key) {
    if (bound.from == nullptr) return true;
    const int order = key.compare(*bound.from);
    return bound.back ? order < 0 || (order == 0 && !bound.before) : order >= 0;
  };
  for (uint32_t i = 0; i < buffered; ++i) {
    Item item = entry_at(slots[i].value).item();
    item.slot = slots[i].value;
    // With another key than it was written for it would leave an older record of that one to be
    // seen.
    if (pool_.verifies_payload() && hash_of(item.key) != slots[i].key) [[unlikely]]
      throw_damaged("the log");
    if (is_wanted(item.key)) fresh[count++] = {item, (removed >> i & 1) != 0};
  }
  // In the order of the visits.
  std::sort(fresh.begin(), fresh.begin() + count, [&](const Buffered& a, const Buffered& b) {
    return bound.back ? b.item.key < a.item.key : a.item.key < b.item.key;
  });
  const char* leaf = pool_.at<char>(offset);
  const Slot* all = pool_.at<Leaf>(offset)->records();
  // `at`: the next record of the leaf; when going back, how many are left.
  uint32_t at = bound.from == nullptr ? records : lower_bound(leaf, bytes, records, *bound.from);
  if (bound.back && bound.from != nullptr && !bound.before && at < records &&
      item_at(leaf, bytes, all[at]).key == *bound.from) {
    ++at;
  }
  const auto add = [&](const Item& item) {
    uint64_t hash = 0;
    if (pool_.verifies_payload() || item.value.external) hash = hash_of(item.key);
    require_intact(hash, item.value, item.slot);
    const Value value = value_of(item.value, hash);
    out.text.append(item.key).append(value);
    out.pieces.push_back({item.key.size(), value.size()});
  };
  for (uint32_t next = 0; out.pieces.size() < limit;) {
    const bool has_leaf = bound.back ? at > 0 : at < records;
    if (!has_leaf && next == count) break;
    if (out.text.size() >= kCopyBytes) {
      out.cut = true;
      break;
    }
    int order = has_leaf ? -1 : 1;
    Item item;
    if (has_leaf) {
      item = item_at(leaf, bytes, all[bound.back ? at - 1 : at]);
      if (next < count) order = item.key.compare(fresh[next].item.key);
      if (next < count && bound.back) order = -order;
    }
    if (order <= 0) at = bound.back ? at - 1 : at + 1;
    if (order < 0) {
      add(item);
      continue;
    }
    if (!fresh[next].removal) add(fresh[next].item);
    ++next;
  }
  return true;
}

// ---- merges

template <>
uint32_t BytesCore::sort_buffer(const Ref& ref, Fresh* to) const {
  for (uint32_t i = 0; i < ref.buffered; ++i)
    pm::prefetch(pool_.at<char>(LogEntry::offset_of(ref.buffer()[i].value)));
  for (uint32_t i = 0; i < ref.buffered; ++i) {
    const Slot& slot = ref.buffer()[i];
    const LogEntry& entry = entry_at(slot.value);
    Item item = entry.item();
    // Damage is not copied, as a leaf would give it a checksum that is right.
    if (hash_of(item.key) != slot.key ||
        Form::check_of(slot.key, item.value) != slot.value >> Form::kCheckShift) [[unlikely]]
      throw_damaged("the log");
    item.slot = slot.value;
    to[i] = {item, (ref.removed >> i & 1) != 0};
  }
  std::sort(to, to + ref.buffered,
            [](const Fresh& a, const Fresh& b) { return a.item.key < b.item.key; });
  return ref.buffered;
}

template <>
void BytesCore::collect(const Ref& ref, Items& out) const {
  Fresh fresh[kBufferRecordsMax];
  const uint32_t count = sort_buffer(ref, fresh);
  const Leaf& header = leaf_of(ref);
  if (header.content_checksum !=
      pm::checksum32(header.records(), ref.used * Form::kUnitBytes, ref.offset)) [[unlikely]]
    throw_damaged("a leaf");
  const char* leaf = pool_.at<char>(ref.offset);
  const Slot* all = header.records();
  out.reserve(out.size() + ref.records + count);
  uint32_t next = 0;
  for (uint32_t at = 0; at < ref.records; ++at) {
    const Item item = item_at(leaf, ref.block_bytes, all[at]);
    int order = -1;
    for (; next < count; ++next) {
      order = item.key.compare(fresh[next].item.key);
      if (order <= 0) break;
      if (!fresh[next].removal) out.push_back(fresh[next].item);
    }
    if (next == count || order < 0) out.push_back(item);
  }
  for (; next < count; ++next) {
    if (!fresh[next].removal) out.push_back(fresh[next].item);
  }
}

template <>
uint64_t BytesCore::units_of(Low low, std::span<const Item> records) {
  uint64_t units = Form::units_of(low.size());
  for (const Item& record : records) units += Form::units_of(record);
  return units;
}

template <>
BytesCore::Low BytesCore::low_between(const Item& before, const Item& first) {
  return first.key.substr(0, shared_bytes(before.key, first.key) + 1);
}

template <>
std::vector<BytesCore::Part> BytesCore::parts_of(const Ref& ref, const Items& records,
                                                 uint64_t more) const {
  const uint64_t count = records.size();
  const uint64_t most = Leaf::room_of<tree::Bytes>(root_.leaf_bytes);
  const uint64_t low = Form::units_of(low_of(ref).size());
  const uint64_t units = units_of(low_of(ref), records);
  if (units + more <= most || count < 2) return {{0, count}};
  std::vector<Part> parts;
  // Keys that come in ascending order: the leaf will get no more of them.
  const bool ascending =
      ref.records > 0 && ref.buffered > 0 && ref.records + ref.buffered == count &&
      records[ref.records - 1].key == item_at(pool_.at<char>(ref.offset), ref.block_bytes,
                                              leaf_of(ref).records()[ref.records - 1])
                                          .key;
  const uint64_t pieces = ascending ? 2 : std::max<uint64_t>(2, pieces_for(units, most));
  for (uint64_t begin = 0; begin < count;) {
    // The low of a new leaf may be longer than the old one's.
    const uint64_t own =
        begin == 0 ? low : Form::units_of(low_between(records[begin - 1], records[begin]).size());
    const uint64_t each =
        ascending ? most - std::min(own, most) : (units - low + pieces - 1) / pieces;
    uint64_t part = Form::units_of(records[begin]);
    uint64_t end = begin + 1;
    for (; end < count; ++end) {
      const uint64_t one = Form::units_of(records[end]);
      // Halves end where they come nearest to their share.
      if (part + (ascending ? one : one / 2) > each) break;
      part += one;
    }
    parts.push_back({begin, end});
    begin = end;
  }
  // They fit into one leaf, but not with what is to come.
  if (parts.size() == 1) parts = {{0, count - 1}, {count - 1, count}};
  return parts;
}

template <>
void BytesCore::write_leaf(pm::PoolImpl& pool, uint64_t offset, uint64_t bytes, Low low,
                           uint64_t number, std::span<const Item> records, Leaf& header) {
  struct alignas(pm::kLineBytes) Image {
    char bytes[kLeafBytesMax + kLeafBytesBeyond];
  };
  // On the heap: the room for what threads have of a library that is loaded late is small.
  static thread_local const auto owned = std::make_unique<Image>();
  Image& image = *owned;
  header = Leaf{};
  header.merged = number;
  header.count = static_cast<uint32_t>(records.size());
  header.bytes = static_cast<uint32_t>(bytes);
  header.low_bytes = static_cast<uint16_t>(low.size());
  const uint64_t shared =
      records.empty() ? 0 : shared_bytes(records.front().key, records.back().key);
  header.prefix_bytes = static_cast<uint16_t>(shared);
  auto* slots = reinterpret_cast<Slot*>(image.bytes + kLeafHeaderBytes);
  char* at = reinterpret_cast<char*>(slots + records.size());
  // Up to a multiple of 8 bytes.
  const auto put = [&](std::string_view text, std::string_view rest) {
    if (!text.empty()) std::memcpy(at, text.data(), text.size());
    if (!rest.empty()) std::memcpy(at + text.size(), rest.data(), rest.size());
    const uint64_t all = text.size() + rest.size();
    const uint64_t whole = Form::units_of(all) * Form::kUnitBytes;
    std::memset(at + all, 0, whole - all);
    at += whole;
  };
  put(low, {});
  header.low_checksum = pm::checksum32(low.data(), low.size(), offset);
  for (size_t i = 0; i < records.size(); ++i) {
    const Item& record = records[i];
    const RecordPlace place{
        static_cast<uint32_t>(at - image.bytes), static_cast<uint32_t>(record.key.size()),
        static_cast<uint32_t>(record.value.bytes.size()), record.value.external};
    slots[i] = {head_at(record.key, shared), place.word(record.slot >> Form::kCheckShift)};
    if (record.value.external) header.external = 1;
    put(record.key, record.value.bytes);
  }
  if (!records.empty()) {
    header.first = slots[0].key;
    header.last = slots[records.size() - 1].key;
  }
  header.content_bytes = static_cast<uint32_t>(at - reinterpret_cast<char*>(slots));
  header.content_checksum = pm::checksum32(slots, header.content_bytes, offset);
  fill_lines(header, slots);
  header.header_checksum = header.header_checksum_at(offset);
  std::memcpy(image.bytes, &header, sizeof header);
  const auto used = static_cast<uint64_t>(at - image.bytes);
  const uint64_t whole = (used + pm::kLineBytes - 1) / pm::kLineBytes * pm::kLineBytes;
  std::memset(at, 0, whole - used);
  pool.memory().copy_nontemporal(pool.at<char>(offset), image.bytes, whole);
}

// ---- verification

template <>
void BytesCore::check_records(const Ref& ref, const Child& child, const Child* next,
                              const std::function<void(const std::string&)>& fail) const {
  const Leaf& leaf = leaf_of(ref);
  const auto outside = [&](std::string_view key) {
    return key < child.low || (next != nullptr && key >= next->low);
  };
  try {
    std::string_view before;
    for (uint32_t i = 0; i < leaf.count; ++i) {
      const Slot& slot = leaf.records()[i];
      const Item item = item_at(pool_.at<char>(ref.offset), ref.block_bytes, slot);
      if (outside(item.key)) fail(": a key is outside of the leaf's range");
      if (i > 0 && before >= item.key) fail(": its keys are not in order");
      if (head_at(item.key, leaf.prefix_bytes) != slot.key)
        fail(": a slot has another head than its key");
      if (Form::check_of(hash_of(item.key), item.value) != slot.value >> Form::kCheckShift)
        fail(": the checksum of a record does not hold");
      before = item.key;
    }
    for (uint32_t i = 0; i < ref.buffered; ++i) {
      const std::string_view key = entry_at(ref.buffer()[i].value).key();
      if (outside(key)) fail(": a buffered key is outside of the leaf's range");
      for (uint32_t j = 0; j < i; ++j) {
        if (entry_at(ref.buffer()[j].value).key() == key) fail(": a key is buffered twice");
      }
    }
    Items records;
    collect(ref, records);
    for (const Item& record : records) {
      if (!record.value.external) continue;
      const uint64_t block = record.value.block();
      if (!records_.intact(block)) {
        fail(": a value is damaged, or lies where none is");
      } else if (records_.key(block) != as_bytes(hash_of(record.key))) {
        fail(": a value is another key's");
      }
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    fail(std::string(": ") + error.what());
  }
}

PERDURE_INSTANTIATE_PART(PERDURE_SHEAF_INSTANTIATE)

}  // namespace perdure::index::sheaf
