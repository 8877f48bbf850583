#include "buffer/replay.h"

#include <fmt/core.h>

#include <cstring>

#include "buffer/btree/node.h"
#include "buffer/change.h"
#include "perdure/error.h"

namespace perdure::buffer {

namespace {

[[noreturn]] void does_not_fit(const LogRecord& record) {
  throw Error(
      ErrorCode::kCorrupt,
      fmt::format("a log record of page {} does not fit what the page holds", record.header.page));
}

void apply_image(const PageFormat& format, char* page, PageEdit& edit, const LogRecord& record) {
  const uint64_t bytes = record.key.size() + record.value.size();
  if (bytes > format.body_bytes()) does_not_fit(record);
  edit.will_change_all();
  header_of(page).type = static_cast<PageType>(record.header.slot);
  std::memcpy(page + format.body(), record.key.data(), record.key.size());
  if (!record.value.empty()) {
    std::memcpy(page + format.page_bytes() - record.value.size(), record.value.data(),
                record.value.size());
  }
}

void apply_patch(const PageFormat& format, char* page, PageEdit& edit, const LogRecord& record) {
  const uint32_t at = format.body() + record.header.slot;
  if (at + record.value.size() > format.page_bytes()) does_not_fit(record);
  edit.will_change(at, static_cast<uint32_t>(record.value.size()));
  std::memcpy(page + at, record.value.data(), record.value.size());
  edit.end_step();
}

void apply_to_node(const PageFormat& format, char* page, PageEdit& edit, const LogRecord& record) {
  Node node(format, page);
  const uint32_t slot = record.header.slot;
  const auto flags = record.overflow() ? kSlotOverflow : uint16_t{0};
  if (header_of(page).type != PageType::kNode) does_not_fit(record);
  if (record.op() == Op::kInsert) {
    if (slot > node.count() || !node.has_room(record.key, record.value.size())) {
      does_not_fit(record);
    }
    return node.insert(edit, slot, record.key, record.value, flags);
  }
  if (slot >= node.count()) does_not_fit(record);
  if (record.op() == Op::kErase) return node.erase(edit, slot);
  if (node.free_bytes() + node.value(slot).size() < record.value.size()) does_not_fit(record);
  node.replace(edit, slot, record.value, flags);
}

}  // namespace

bool is_well_formed(const PageFormat& format, const char* page) {
  switch (header_of(page).type) {
    case PageType::kNode:
      return Node(format, const_cast<char*>(page)).is_well_formed();
    case PageType::kOverflow: {
      OverflowBody body;
      std::memcpy(&body, page + format.body(), sizeof body);
      return body.bytes != 0 && body.bytes <= format.body_bytes() - sizeof body;
    }
    case PageType::kNone:
    case PageType::kSpace:
    case PageType::kFree:
      return true;
  }
  return false;
}

PartMask apply_record(const PageFormat& format, char* page, uint64_t lsn, const LogRecord& record,
                      Checksums checksums, PageUndo* undo) {
  PageEdit edit(format, page, checksums, undo);
  switch (record.op()) {
    case Op::kImage:
      apply_image(format, page, edit, record);
      break;
    case Op::kPatch:
      apply_patch(format, page, edit, record);
      break;
    case Op::kInsert:
    case Op::kErase:
    case Op::kReplace:
      apply_to_node(format, page, edit, record);
      break;
    default:
      does_not_fit(record);
  }
  return edit.finish(record.header.page, lsn);
}

}  // namespace perdure::buffer
