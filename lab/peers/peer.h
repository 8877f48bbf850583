// What the peers have in common: keys and values of both kinds as byte strings, sizes of folders,
// and an index that only has to do what the benchmark asks for.
#pragma once

#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lab/bench/contender.h"
#include "perdure/error.h"

namespace perdure::lab::peers {

// A Datum as a byte string: words big-endian, so that byte strings sort as the words do.
class Encoded {
 public:
  explicit Encoded(const Datum& datum) {
    if (datum.kind() == Kind::kBytes) {
      view_ = datum.bytes();
      return;
    }
    word_ = __builtin_bswap64(datum.word());
    view_ = std::string_view(reinterpret_cast<const char*>(&word_), sizeof word_);
  }
  Encoded(const Encoded&) = delete;
  Encoded& operator=(const Encoded&) = delete;
  std::string_view view() const { return view_; }

 private:
  uint64_t word_ = 0;
  std::string_view view_;
};

inline uint64_t decode_word(std::string_view bytes) {
  uint64_t word = 0;
  if (bytes.size() != sizeof word) {
    throw Error(ErrorCode::kCorrupt, "a peer gave back a word of another size");
  }
  std::memcpy(&word, bytes.data(), sizeof word);
  return __builtin_bswap64(word);
}

inline Datum decode(Kind kind, std::string_view bytes) {
  return kind == Kind::kBytes ? Datum(bytes) : Datum(decode_word(bytes));
}

inline void decode_into(Kind kind, std::string_view bytes, Value& out) {
  if (kind == Kind::kBytes) {
    out.set_bytes().assign(bytes);
  } else {
    out.set(decode_word(bytes));
  }
}

inline uint64_t folder_bytes(const std::string& path) {
  uint64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path, ignored)) {
    if (entry.is_regular_file(ignored)) bytes += entry.file_size(ignored);
  }
  return bytes;
}

// The parts of AnyIndex that no benchmark calls.
class PeerIndex : public AnyIndex {
 public:
  PeerIndex(Kind key_kind, Kind value_kind) : key_kind_(key_kind), value_kind_(value_kind) {}
  Kind key_kind() const override { return key_kind_; }
  Kind value_kind() const override { return value_kind_; }

  void for_each(const std::function<void(Datum, Datum)>&) const override {}
  uint64_t check(const std::function<void(const std::string&)>&) const override { return 0; }
  std::vector<Statistic> statistics() const override { return {}; }

 private:
  Kind key_kind_;
  Kind value_kind_;
};

// A store in a folder of its own.
class FolderStore final : public BenchStore {
 public:
  FolderStore(std::string path, std::unique_ptr<AnyIndex> index)
      : path_(std::move(path)), index_(std::move(index)) {}
  AnyIndex& index() override { return *index_; }
  uint64_t stored_bytes() const override { return folder_bytes(path_); }

 private:
  std::string path_;
  std::unique_ptr<AnyIndex> index_;
};

// Opens, or makes, a store in the folder `path`; `synced`: each write reaches the medium.
using OpenStore = std::unique_ptr<BenchStore> (*)(const std::string& path,
                                                  const StoreOptions& options, bool synced);

inline Contender folder_store(const char* name, const char* durability, OpenStore open,
                              bool synced) {
  Contender contender;
  contender.name = name;
  contender.kind = "peer";
  contender.durability = durability;
  contender.open = [open, synced](const std::string& path, const StoreOptions& options) {
    return open(path, options, synced);
  };
  contender.create = contender.open;
  return contender;
}

}  // namespace perdure::lab::peers
