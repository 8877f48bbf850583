// Names: looking them up, and changing them.
#include <fmt/core.h>

#include <cstring>
#include <ctime>

#include "lsm/files/file_system.h"
#include "pm/checksum.h"

namespace perdure::files {

struct FileSystem::Place {
  Node* directory;             // the name is in it, or would be
  std::string_view leaf;       // empty: the root directory itself
  std::shared_ptr<Node> node;  // null: there is none
};

void FileSystem::fail(ErrorCode code, std::string_view path, const char* what) const {
  throw Error(code, fmt::format("{}: '{}': '{}' {}", pool_.mapping().path(), name_, path, what));
}

std::string_view FileSystem::take_name(std::string_view& path, std::string_view whole) const {
  while (!path.empty()) {
    const std::string_view name = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(name.size() + 1, path.size()));
    if (name.empty() || name == ".") continue;
    if (name == "..") fail(ErrorCode::kInvalidArgument, whole, "has a \"..\"; give a path without");
    if (name.size() > kNameBytesMax || name.find('\0') != std::string_view::npos) {
      fail(ErrorCode::kInvalidArgument, whole,
           "has a name of more than 255 bytes, or with a NUL; give another one");
    }
    return name;
  }
  return {};
}

FileSystem::Place FileSystem::place_of(std::string_view path) const {
  Place place{const_cast<Node*>(&root_directory_), {}, nullptr};
  std::string_view left = path;
  for (auto part = take_name(left, path); !part.empty(); part = take_name(left, path)) {
    if (!place.leaf.empty()) {
      if (!place.node) fail(ErrorCode::kNotFound, path, "is in a directory that is not there");
      if (!place.node->directory) fail(ErrorCode::kNotAFile, path, "goes through a file");
      place.directory = place.node.get();
    }
    place.leaf = part;
    const auto found = place.directory->children.find(part);
    place.node = found == place.directory->children.end() ? nullptr : found->second;
  }
  return place;
}

Node& FileSystem::directory_at(std::string_view path) const {
  const Place place = place_of(path);
  if (place.leaf.empty()) return *place.directory;
  if (!place.node) fail(ErrorCode::kNotFound, path, "is not there");
  if (!place.node->directory) fail(ErrorCode::kNotAFile, path, "is a file, no directory");
  return *place.node;
}

NameRecord FileSystem::name_record(const Node& node, uint64_t parent, std::string_view name) const {
  NameRecord record{};
  record.parent = parent;
  record.kind = node.directory ? FileKind::kDirectory : FileKind::kFile;
  record.name_bytes = static_cast<uint16_t>(name.size());
  record.number = node.number;
  std::memcpy(record.name, name.data(), name.size());
  record.checksum = pm::checksum64(&record, offsetof(NameRecord, checksum), root_.salt);
  return record;
}

// A new file or directory without content. Durable on return.
std::shared_ptr<Node> FileSystem::add_node(Node& parent, std::string_view name, bool directory) {
  auto node = std::make_shared<Node>();
  node->directory = directory;
  node->parent = &parent;
  node->name = name;
  if (!directory) node->extents = std::make_unique<ExtentList>();
  node->number = take_number();
  auto place = parent.children.end();
  try {
    place = parent.children.emplace(node->name, node).first;
    pm::Heap::Txn txn(pool_.heap());
    node->inode = txn.allocate(sizeof(Inode));
    Inode& inode = inode_of(*node);
    std::memset(static_cast<void*>(&inode), 0, sizeof inode);
    inode.size_word = pm::seal_word(0, salt_of(*node, kSizeSalt));
    inode.state_word =
        pm::seal_word(static_cast<uint64_t>(State::kLive), salt_of(*node, kStateSalt));
    inode.modified_word =
        pm::seal_word(static_cast<uint64_t>(std::time(nullptr)), salt_of(*node, kTimeSalt));
    // By way of the stack: what a call returns straight into the pool is no store that an observed
    // build sees.
    const NameRecord record = name_record(*node, parent.number, name);
    inode.name = record;
    memory_.flush(&inode, sizeof inode);
    txn.publish(node->inode, *entry_of(node->number));
  } catch (...) {
    if (place != parent.children.end()) parent.children.erase(place);
    free_numbers_.push_back(node->number);  // in a pool that failed it matters no more
    throw;
  }
  return node;
}

std::shared_ptr<Node> FileSystem::acquire(std::string_view path, Make make) {
  if (make != Make::kNo) pool_.require_writable();
  const std::lock_guard lock(names_mutex_);
  Place place = place_of(path);
  if (place.leaf.empty() || (place.node && place.node->directory)) {
    fail(ErrorCode::kNotAFile, path, "is a directory");
  }
  if (!place.node) {
    if (make == Make::kNo) fail(ErrorCode::kNotFound, path, "is not there");
    place.node = add_node(*place.directory, place.leaf, false);
  }
  Node& node = *place.node;
  if (make != Make::kNo) {
    if (node.written) fail(ErrorCode::kInUse, path, "is being written by somebody else");
    node.written = true;
  }
  ++node.opens;
  return place.node;
}

void FileSystem::release(const std::shared_ptr<Node>& node, bool writer) noexcept {
  try {
    {
      const std::lock_guard lock(names_mutex_);
      if (writer) node->written = false;
      if (--node->opens > 0) return;
      // Under the mutex: nobody opens it meanwhile, and finds extents that go.
      if (!node->doomed && !pool_.read_only()) trim(*node, node->size.load());
      if (!node->doomed) return;
    }
    reclaim(*node);
  } catch (const std::exception&) {
    return;  // the medium fails, or the pool is closed: opening returns the space
  }
}

bool FileSystem::is_shared(const Node& node) const {
  const std::lock_guard lock(names_mutex_);
  return node.opens > 1;
}

std::string FileSystem::name_of(const Node& node) const {
  const std::lock_guard lock(names_mutex_);
  return node.name;
}

bool FileSystem::make_directory(std::string_view path) {
  pool_.require_writable();
  const std::lock_guard lock(names_mutex_);
  const Place place = place_of(path);
  if (place.leaf.empty()) return false;
  if (place.node) {
    if (!place.node->directory) fail(ErrorCode::kNotAFile, path, "is a file");
    return false;
  }
  add_node(*place.directory, place.leaf, true);
  return true;
}

void FileSystem::make_directories(std::string_view path) {
  for (size_t at = 0; at < path.size();) {
    at = std::min(path.find('/', at + 1), path.size());
    make_directory(path.substr(0, at));
  }
}

// Out of the tree; the node itself lives on while somebody has it.
void FileSystem::detach(Node& node) {
  Node* parent = node.parent;
  node.parent = nullptr;
  parent->children.erase(parent->children.find(node.name));
}

void FileSystem::doom(const std::shared_ptr<Node>& node) {
  node->doomed = true;
  detach(*node);
}

void FileSystem::remove(std::string_view path) {
  pool_.require_writable();
  std::shared_ptr<Node> node;
  {
    const std::lock_guard lock(names_mutex_);
    const Place place = place_of(path);
    node = place.node;
    if (place.leaf.empty()) {
      fail(ErrorCode::kInvalidArgument, path, "is the root directory, which stays");
    }
    if (!node) fail(ErrorCode::kNotFound, path, "is not there");
    if (!node->children.empty()) fail(ErrorCode::kExists, path, "is a directory with files in it");
    Inode& inode = inode_of(*node);
    pm::store_release(inode.state_word, pm::seal_word(static_cast<uint64_t>(State::kDoomed),
                                                      salt_of(*node, kStateSalt)));
    // Before the space is returned, and before the caller relies on it.
    memory_.persist(&inode.state_word, sizeof inode.state_word);
    doom(node);
    if (node->opens > 0) return;  // whoever closes it last returns the space
  }
  reclaim(*node);
}

bool FileSystem::is_within(const Node& node, const Node& directory) const {
  for (const Node* at = &node; at != nullptr; at = at->parent) {
    if (at == &directory) return true;
  }
  return false;
}

void FileSystem::rename(std::string_view from, std::string_view to) {
  pool_.require_writable();
  std::shared_ptr<Node> replaced;
  {
    const std::lock_guard lock(names_mutex_);
    const Place source = place_of(from);
    const Place target = place_of(to);
    if (source.leaf.empty() || target.leaf.empty()) {
      fail(ErrorCode::kInvalidArgument, from, "or its new name is the root directory");
    }
    if (!source.node) fail(ErrorCode::kNotFound, from, "is not there");
    Node& node = *source.node;
    if (node.directory && is_within(*target.directory, node)) {
      fail(ErrorCode::kInvalidArgument, from, "cannot be moved into itself");
    }
    replaced = target.node;
    if (replaced == source.node) return;
    if (replaced && replaced->directory != node.directory) {
      fail(ErrorCode::kNotAFile, to, "and what would replace it are not both files");
    }
    if (replaced && !replaced->children.empty()) {
      fail(ErrorCode::kExists, to, "is a directory with files in it");
    }
    // What may fail for want of memory comes first.
    auto taken = std::make_shared<Node>();
    std::string name(target.leaf);
    if (!replaced) target.directory->children.emplace(name, taken);
    const NameRecord record = name_record(node, target.directory->number, name);
    const uint64_t doomed = replaced ? pm::seal_word(static_cast<uint64_t>(State::kDoomed),
                                                     salt_of(*replaced, kStateSalt))
                                     : 0;
    try {
      pm::Heap::Txn txn(pool_.heap(), true);
      txn.redo(&inode_of(node).name, &record, sizeof record);
      if (replaced) txn.redo(&inode_of(*replaced).state_word, &doomed, sizeof doomed);
      txn.commit_redo([] {});
    } catch (...) {
      if (!replaced) target.directory->children.erase(name);
      throw;
    }
    if (replaced) {
      replaced->doomed = true;
      replaced->parent = nullptr;
    }
    const auto place = target.directory->children.find(name);
    place->second = source.node;
    source.directory->children.erase(source.directory->children.find(node.name));
    node.name.swap(name);
    node.parent = target.directory;
    if (!replaced || replaced->opens > 0) return;
  }
  reclaim(*replaced);
}

FileInfo FileSystem::info_of(const Node& node) const {
  FileInfo info{.name = node.name,
                .directory = node.directory,
                .bytes = node.size.load(std::memory_order_acquire),
                .modified_unix_s = 0};
  if (&node == &root_directory_) return info;
  const uint64_t word = pm::load_relaxed(inode_of(node).modified_word);
  static_cast<void>(pm::unseal_word(word, salt_of(node, kTimeSalt), info.modified_unix_s));
  return info;
}

std::optional<FileInfo> FileSystem::find(std::string_view path) const {
  const std::lock_guard lock(names_mutex_);
  try {
    const Place place = place_of(path);
    if (place.leaf.empty()) return info_of(root_directory_);
    if (place.node) return info_of(*place.node);
  } catch (const Error& error) {  // a directory on the way is not there
    if (error.code() != ErrorCode::kNotFound && error.code() != ErrorCode::kNotAFile) throw;
  }
  return std::nullopt;
}

std::vector<FileInfo> FileSystem::list(std::string_view path) const {
  const std::lock_guard lock(names_mutex_);
  std::vector<FileInfo> all;
  for (const auto& [name, node] : directory_at(path).children) all.push_back(info_of(*node));
  return all;
}

// All spellings of a path are one: a store opens "/db" by "/db/LOCK", and "/db/" by "/db//LOCK".
std::string FileSystem::spelling_of(std::string_view path) const {
  std::string spelling;
  std::string_view left = path;
  for (auto name = take_name(left, path); !name.empty(); name = take_name(left, path))
    spelling.append("/").append(name);
  return spelling;
}

bool FileSystem::lock(std::string_view path) {
  const std::lock_guard lock(names_mutex_);
  const Place place = place_of(path);
  if (place.leaf.empty() || (place.node && place.node->directory))
    fail(ErrorCode::kNotAFile, path, "is a directory");
  return locks_.insert(spelling_of(path)).second;
}

void FileSystem::unlock(std::string_view path) {
  const std::lock_guard lock(names_mutex_);
  locks_.erase(spelling_of(path));
}

}  // namespace perdure::files
