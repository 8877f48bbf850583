// RocksDB and LevelDB behind AnyIndex. Their interfaces are alike, so one template does for both.
#pragma once

#include <fmt/core.h>

#include <memory>
#include <string>

#include "lab/peers/peer.h"

namespace perdure::lab::peers {

// `Api` names the types: Db, Slice, Status, ReadOptions, WriteOptions, Iterator.
//
// Inserts, updates and upserts are blind puts, as these stores are meant to be used: they find out
// nothing, so nothing is compared. The benchmark's workloads insert only what is absent.
template <typename Api>
class KeyValueStore final : public PeerIndex {
 public:
  // `parts` is whatever must outlive the database: caches, filters.
  KeyValueStore(Kind key_kind, Kind value_kind, std::shared_ptr<void> parts,
                std::unique_ptr<typename Api::Db> db, bool synced)
      : PeerIndex(key_kind, value_kind), parts_(std::move(parts)), db_(std::move(db)) {
    write_.sync = synced;
  }

  bool insert(Datum key, Datum value) override { return put(key, value); }
  bool update(Datum key, Datum value) override { return put(key, value); }
  void upsert(Datum key, Datum value) override { put(key, value); }

  bool remove(Datum key) override {
    const Encoded encoded(key);
    require(db_->Delete(write_, slice(encoded)));
    return true;
  }

  bool lookup(Datum key, Value& out) const override {
    const Encoded encoded(key);
    thread_local std::string found;
    const typename Api::Status status = db_->Get(read_, slice(encoded), &found);
    if (status.IsNotFound()) return false;
    require(status);
    decode_into(value_kind(), found, out);
    return true;
  }

  void scan(Datum from, uint64_t limit,
            const std::function<bool(Datum, Datum)>& visit) const override {
    const Encoded encoded(from);
    const std::unique_ptr<typename Api::Iterator> at(db_->NewIterator(read_));
    uint64_t told = 0;
    for (at->Seek(slice(encoded)); told < limit && at->Valid(); at->Next(), ++told) {
      const std::string_view key(at->key().data(), at->key().size());
      const std::string_view value(at->value().data(), at->value().size());
      if (!visit(decode(key_kind(), key), decode(value_kind(), value))) return;
    }
    require(at->status());
  }

  void scan_back(std::optional<Datum> from, uint64_t limit,
                 const std::function<bool(Datum, Datum)>& visit) const override {
    const std::unique_ptr<typename Api::Iterator> at(db_->NewIterator(read_));
    if (from) {
      const Encoded encoded(*from);
      at->Seek(slice(encoded));
      if (!at->Valid()) {
        at->SeekToLast();
      } else if (std::string_view(at->key().data(), at->key().size()) != encoded.view()) {
        at->Prev();
      }
    } else {
      at->SeekToLast();
    }
    for (uint64_t told = 0; told < limit && at->Valid(); at->Prev(), ++told) {
      const std::string_view key(at->key().data(), at->key().size());
      const std::string_view value(at->value().data(), at->value().size());
      if (!visit(decode(key_kind(), key), decode(value_kind(), value))) return;
    }
    require(at->status());
  }

  static void require(const typename Api::Status& status) {
    if (!status.ok())
      throw Error(ErrorCode::kIo, fmt::format("{}: {}", Api::kName, status.ToString()));
  }

 private:
  static typename Api::Slice slice(const Encoded& encoded) {
    return {encoded.view().data(), encoded.view().size()};
  }

  bool put(Datum key, Datum value) {
    const Encoded encoded_key(key);
    const Encoded encoded_value(value);
    require(db_->Put(write_, slice(encoded_key), slice(encoded_value)));
    return true;
  }

  std::shared_ptr<void> parts_;
  std::unique_ptr<typename Api::Db> db_;
  typename Api::ReadOptions read_;
  typename Api::WriteOptions write_;
};

}  // namespace perdure::lab::peers
