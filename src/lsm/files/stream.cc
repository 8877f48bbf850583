#include "lsm/files/stream.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace perdure::files {

std::string_view OpenFile::read(uint64_t offset, size_t bytes, char* scratch) const {
  const uint64_t end = size();
  if (offset >= end) return "";
  bytes = static_cast<size_t>(std::min<uint64_t>(bytes, end - offset));
  const Extent* extent = &node_->extents->find(offset);
  uint64_t in = offset - extent->begin;
  if (extent->bytes - in >= bytes) return {base_ + extent->offset + in, bytes};
  for (size_t done = 0; done < bytes;) {
    const auto piece = static_cast<size_t>(std::min<uint64_t>(bytes - done, extent->bytes - in));
    std::memcpy(scratch + done, base_ + extent->offset + in, piece);
    done += piece;
    if (done < bytes) extent = &node_->extents->find(offset + done);
    in = 0;
  }
  return {scratch, bytes};
}

Stream::Stream(std::shared_ptr<FileSystem> system, std::string_view path, FileSystem::Make make)
    : system_(std::move(system)),
      node_(system_->acquire(path, make)),
      memory_(system_->pool().memory()),
      position_(node_->size.load(std::memory_order_relaxed)),
      committed_(position_) {}

Stream::~Stream() {
  try {
    close();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): as the header says
  }
}

void Stream::require_open() const {
  if (!open_) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: a file was written to after it was closed",
                            system_->pool().mapping().path()));
  }
  system_->pool().require_writable();
}

// Within one line, which other appends share.
void Stream::write_in_line(char* target, std::string_view bytes) {
  std::memcpy(target, bytes.data(), bytes.size());
  const char* line = target - reinterpret_cast<uintptr_t>(target) % pm::kLineBytes;
  unflushed_ = line;
  if (target + bytes.size() != line + pm::kLineBytes) return;
  memory_.flush(line, pm::kLineBytes);  // it is full
  unflushed_ = nullptr;
}

// Whole lines, past the caches.
void Stream::write_lines(char* target, std::string_view bytes) const {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % sizeof(uint64_t) == 0) {
    memory_.copy_nontemporal(target, bytes.data(), bytes.size());
    return;
  }
  alignas(pm::kLineBytes) std::array<char, 8 * pm::kLineBytes> aligned;
  for (size_t done = 0; done < bytes.size(); done += aligned.size()) {
    const size_t piece = std::min(aligned.size(), bytes.size() - done);
    std::memcpy(aligned.data(), bytes.data() + done, piece);
    memory_.copy_nontemporal(target + done, aligned.data(), piece);
  }
}

void Stream::write(uint64_t position, std::string_view bytes) {
  const bool by_line = memory_.domain() != Domain::kByte;
  while (!bytes.empty()) {
    const Extent& extent = node_->extents->find(position);
    const uint64_t in = position - extent.begin;
    char* target = system_->pool().base() + extent.offset + in;
    size_t piece = static_cast<size_t>(std::min<uint64_t>(bytes.size(), extent.bytes - in));
    if (!by_line) {  // a store is durable once it is visible: nothing to go past
      std::memcpy(target, bytes.data(), piece);
    } else {
      const size_t in_line = in % pm::kLineBytes;
      if (in_line != 0 || piece < pm::kLineBytes) {
        piece = std::min(piece, pm::kLineBytes - in_line);
        write_in_line(target, bytes.substr(0, piece));
      } else {
        piece -= piece % pm::kLineBytes;
        write_lines(target, bytes.substr(0, piece));
      }
    }
    position += piece;
    bytes.remove_prefix(piece);
  }
}

void Stream::append(std::string_view bytes) {
  require_open();
  if (bytes.empty()) return;
  if (position_ + bytes.size() > node_->extents->end()) {
    system_->ensure(*node_, position_ + bytes.size());
  }
  if (is_tail(bytes.size())) {
    add_to_tail(bytes);
  } else {
    spill_tail();
    write(position_, bytes);
    has_last_line_ = false;
  }
  position_ += bytes.size();
  changed_ = true;
}

bool Stream::is_tail(size_t more) const {
  return memory_.domain() == Domain::kLine && position_ == committed_ + tail_bytes_ &&
         tail_bytes_ + more <= kTailBytesMax;
}

void Stream::add_to_tail(std::string_view bytes) {
  const size_t in_line = committed_ % pm::kLineBytes;
  if (!has_last_line_ && in_line != 0) {
    const Extent& extent = node_->extents->find(committed_);
    std::memcpy(tail_.data(),
                system_->pool().base() + extent.offset + (committed_ - in_line - extent.begin),
                in_line);
  }
  has_last_line_ = true;
  std::memcpy(tail_.data() + in_line + tail_bytes_, bytes.data(), bytes.size());
  tail_bytes_ += bytes.size();
}

// It became too long for one, or is not committed as one.
void Stream::spill_tail() {
  if (tail_bytes_ == 0) return;
  write(committed_, {tail_.data() + committed_ % pm::kLineBytes, tail_bytes_});
  tail_bytes_ = 0;
  has_last_line_ = false;
}

// Whole lines. What stands in the first one before the tail gets the bytes that it has, which
// readers may be reading; what comes behind the tail counts for nothing.
void Stream::write_tail() const {
  const uint64_t begin = committed_ - committed_ % pm::kLineBytes;
  const uint64_t end = (position_ + pm::kLineBytes - 1) / pm::kLineBytes * pm::kLineBytes;
  for (uint64_t at = begin; at < end;) {
    const Extent& extent = node_->extents->find(at);
    const uint64_t piece = std::min(end, extent.begin + extent.bytes) - at;
    memory_.copy_nontemporal(system_->pool().base() + extent.offset + (at - extent.begin),
                             tail_.data() + (at - begin), piece);
    at += piece;
  }
}

void Stream::commit() {
  if (position_ == committed_) return;
  if (tail_bytes_ != 0) {
    const size_t in_line = committed_ % pm::kLineBytes;
    const size_t used = in_line + tail_bytes_;
    const size_t rest = position_ % pm::kLineBytes;
    if (rest != 0) std::memset(tail_.data() + used, 0, pm::kLineBytes - rest);
    write_tail();
    system_->store_tail(*node_, committed_, {tail_.data() + in_line, tail_bytes_});
    // Bytes and tail, before the caller relies on them, readers see them, and the next tail makes
    // these bytes count without a sum. Neither needs to be there before the other: see store_tail.
    memory_.fence();
    committed_ = position_;
    unfenced_ = false;
    tail_bytes_ = 0;
    std::memmove(tail_.data(), tail_.data() + used - rest, rest);
    return;
  }
  if (unflushed_ != nullptr) memory_.flush(unflushed_, pm::kLineBytes);
  unflushed_ = nullptr;
  memory_.fence();  // the bytes, before the append offset that makes them count
  // The length so far is durable once its own fence has been, which this one was at the latest.
  system_->store_size(*node_, committed_, position_);
  committed_ = position_;
  unfenced_ = true;
}

void Stream::flush() {
  require_open();
  if (memory_.domain() != Domain::kPage) commit();
  node_->size.store(position_, std::memory_order_release);
}

void Stream::sync() {
  require_open();
  commit();
  if (unfenced_) memory_.fence();  // the append offset, before the caller relies on it
  unfenced_ = false;
  node_->size.store(position_, std::memory_order_release);
}

void Stream::truncate(uint64_t bytes) {
  require_open();
  if (bytes > position_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: '{}' has {} bytes; it cannot be cut to {}",
                    system_->pool().mapping().path(), system_->name_of(*node_), position_, bytes));
  }
  spill_tail();
  has_last_line_ = false;
  if (bytes < committed_) {
    system_->store_size(*node_, committed_, bytes);
    committed_ = bytes;
    memory_.fence();  // the append offset, before what is behind it is written over or returned
    unfenced_ = false;
  }
  // What stays of an unfinished line is not committed yet.
  if (unflushed_ != nullptr) memory_.flush(unflushed_, pm::kLineBytes);
  unflushed_ = nullptr;
  position_ = bytes;
  node_->size.store(std::min(bytes, node_->size.load(std::memory_order_relaxed)),
                    std::memory_order_release);
  changed_ = true;
  // Else readers may hold views of it: who closes the file last returns what it does not need.
  if (!system_->is_shared(*node_)) system_->trim(*node_, bytes);
}

void Stream::close() {
  if (!open_) return;
  open_ = false;
  struct Release {
    Stream& stream;
    ~Release() { stream.system_->release(stream.node_, true); }
  } release{*this};
  if (!changed_) return;
  system_->pool().require_writable();
  commit();
  system_->store_size(*node_, committed_, committed_);  // without a tail
  system_->store_modified(*node_);
  memory_.fence();  // append offset and time, before the file is another's
  node_->size.store(position_, std::memory_order_release);
}

}  // namespace perdure::files
