// The keys that clients see, as records of a store.
//
// A string under a key of database 0 is a record of that key and value, so that other programs find
// it in the pool. All else is told apart by its first bytes:
//
//   key    0 'k' database key      a key of another database, or one that begins with a zero byte
//          0 'e' id element        an element of the collection `id`
//          0 'x' time id           the elements of `id` are to be removed from then on; value: its key
//          0 'm' name              what the server notes for itself
//          0 'l' name              the same, of this pool alone: followers do not get it
//   value  marker 's' flags text   a string with flags (memcached), or one that begins with the marker
//          marker 'h' header       a hash; 't' a set, 'l' a list, 'z' a sorted set
//
// A collection costs what is touched: its header and its elements are records in the order of their
// keys. To remove one takes two writes, of which a crash keeps both or none: its header goes and a
// note that names its id comes. Its elements are removed later, a few at a time, and the note last:
// nothing leaks.
//
// One thread at a time: whoever holds the server's execution lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/turn.h"

namespace perdure::server {

// Of a string, beside what it is marked with.
inline constexpr uint64_t kStringBytesMax = Store::kValueBytesMax - 16;

enum class Type : uint8_t { kNone, kString, kHash, kSet, kList, kSortedSet };
const char* to_string(Type type) noexcept;

constexpr uint32_t kDatabases = 16;

// The header of a collection.
struct Collection {
  uint64_t id = 0;
  uint64_t count = 0;
  uint64_t first = 0;  // of a list: the index of its first element
};

// What a key has. Valid until the next write.
struct Item {
  Type type = Type::kNone;
  std::string_view text = {};  // of a string
  uint32_t flags = 0;          // memcached's
  uint64_t version = 0;        // 0: written in the open group
  uint64_t expiry_ms = store::kNoExpiry;
  Collection collection = {};

  explicit operator bool() const { return type != Type::kNone; }
};

// Who is to be told when a watched key changes.
class Watcher {
 protected:
  ~Watcher() = default;

 private:
  friend class Keyspace;
  bool dirty_ = false;
  size_t bytes_ = 0;                                // of its keys
  std::vector<std::pair<std::string, bool>> keys_;  // and whether it was there
};

// Who waits for a write to one of some keys.
class Waiter {
 public:
  // With the execution lock, in the middle of somebody's command: it must not use the keyspace, but
  // look again later.
  virtual void wake() = 0;

 protected:
  virtual ~Waiter() = default;

 private:
  friend class Keyspace;
  std::vector<std::string> awaited_;
};

class Keyspace {
 public:
  // Ids of collections count from `first_id`, which is random: none is used twice, over openings
  // and also in a store that was made of a backup, whose pool counts its openings anew.
  Keyspace(store::StoreImpl& store, uint64_t first_id);

  // The key's record in the store. `scratch` may come to hold it.
  static std::string_view raw_key(uint32_t database, std::string_view key, std::string& scratch);
  // The key and database of a record, if it is one that clients see.
  struct Name {
    uint32_t database;
    std::string_view key;
  };
  static std::optional<Name> name_of(std::string_view raw);
  // Of what a record with this value is.
  static Type type_of(std::string_view value);
  // Whether a cache may lose the record: a string, whatever its database. A collection would lose a
  // part of itself.
  static bool may_evict(std::string_view raw, std::string_view value);

  // What the server notes of this pool alone: its record. All names but those of the journal's
  // pieces, which are there only while nothing is told.
  static constexpr std::string_view kFollowState = "s";
  static constexpr std::string_view kJournal = "c";
  static constexpr std::string_view kObeyedAnew = "t";
  static constexpr std::string_view kStaging = "n";
  static std::string local_key(std::string_view name);
  // What is read before anything is served, and with the first turns.
  static std::vector<std::string> keys_at_start() {
    return {local_key(kFollowState), local_key(kStaging), note_key('c'), note_key('d')};
  }
  static bool is_local(std::string_view raw);
  // A record that is there as long as kFollowState is, in another partition: so that one that
  // cannot be read does not hide that the pool follows. Empty if all of the server's own lie in one
  // partition.
  const std::string& follow_mark() const { return follow_mark_; }

  // What a follower does. Its clients write nothing: kReadOnly. While it makes a copy, what is
  // there is a part of the leader's, and all that would tell of it throws store::NotReady.
  void set_follower(bool is_follower) { is_follower_ = is_follower; }
  void set_hidden(bool is_hidden) { is_hidden_ = is_hidden; }
  bool is_hidden() const { return is_hidden_; }
  // Records as they are, whose writes come from the leader, and the server's own.
  store::StoreTurn& turn() { return turn_; }
  // Before that: what the keyspace has in mind of the record is forgotten.
  void note_foreign_write(std::string_view raw);

  // While the store is being opened: all that needs a partition which is not ready throws
  // store::NotReady; keys in order, counts and searches need all of them.

  // To be called when a turn begins: it sets the time.
  void begin_turn() {
    now_ms_ = store::StoreImpl::now_ms();
    in_parts_ = 0;
    if (!notes_read_) [[unlikely]]
      read_notes();
  }
  // Makes the writes of the turn durable. Throws kIo: nothing of it may be told.
  void finish_turn() { turn_.finish(); }
  uint64_t now_ms() const { return now_ms_; }
  bool is_ordered() const { return ordered_; }
  bool has_written() const { return turn_.wrote(); }
  uint64_t groups() const { return groups_; }  // of several writes

  // As the store's turn has it: it throws nothing.
  void prefetch(std::span<const std::string_view> raw_keys) const { turn_.prefetch(raw_keys); }
  Item find(std::string_view raw) const;

  // Writes a string, over whatever the key has. Throws as StoreTurn::write().
  void set_string(std::string_view raw, std::string_view text, uint32_t flags, uint64_t expiry_ms);
  // The same where nothing but a string can be, which is known: `item` is what find() has given.
  void set_string_over(const Item& item, std::string_view raw, std::string_view text,
                       uint32_t flags, uint64_t expiry_ms);
  // Returns whether the key was there.
  bool remove(std::string_view raw);
  void set_expiry(std::string_view raw, const Item& item, uint64_t expiry_ms);
  // Moves what `from` has to `to`, over what that has.
  void rename(std::string_view from, const Item& item, std::string_view to);

  // A new, empty collection; put_header() makes it visible. Throws CommandError in a store whose
  // index has no order.
  Collection new_collection();
  // Writes the header; of an empty collection, removes it.
  void put_header(std::string_view raw, Type type, const Collection& collection,
                  uint64_t expiry_ms);
  // An element's record, written or removed; `raw` is the collection's key.
  void put_element(std::string_view raw, std::string_view element, std::string_view value);
  void remove_element(std::string_view raw, std::string_view element);
  // The value of an element, valid until the next write.
  bool find_element(std::string_view element, std::string_view& value) const;
  // Notes that the elements of `id` are garbage from `at_ms` on (0: now).
  void doom(uint64_t id, uint64_t at_ms, std::string_view raw);
  void undoom(uint64_t id, uint64_t at_ms);
  // The same of a collection whose elements come in parts before its header, which undooms it: they
  // are garbage unless this turn comes to its end.
  void doom_parts(uint64_t id, std::string_view raw);

  // Calls `visit` for records in the order of their keys, upwards from the first that is not less
  // than `from`, or downwards from the last that is not greater, until it returns false. With what
  // an open group has. Needs an ordered index. `wanted`: how many will be asked for. `keys_only`:
  // the values are of no use. Holds a mebibyte of each partition, and one long value.
  using Visit = std::function<bool(std::string_view raw, std::string_view value)>;
  void scan(std::string_view from, bool downwards, uint64_t wanted, const Visit& visit,
            bool keys_only = false) const;
  // Calls `visit` for keys of a database; the first `from` on, if the index is ordered. Until it
  // returns false. Without `with_types` an ordered index says kNone of all, and reads no values;
  // with them it looks each key up.
  using VisitKey = std::function<bool(std::string_view raw, std::string_view key, Type type)>;
  void visit_keys(uint32_t database, std::string_view from, uint64_t wanted, const VisitKey& visit,
                  bool with_types = false) const;
  // Calls `visit` for some keys of a database, which the number chooses: of one block. Looks at
  // more only where they are of other databases. Needs an index without order.
  void visit_some_keys(uint32_t database, uint64_t random, const VisitKey& visit) const;
  // SCAN: visits some keys from a cursor (0: the beginning); returns the next one, 0 at the end.
  // Throws CommandError for a cursor that is not known any more.
  uint64_t scan_keys(uint32_t database, uint64_t cursor, uint64_t count, const VisitKey& visit,
                     bool with_types = false);
  // How many keys a database has. Cost: looks at all records once a collection or another database
  // has been used, and at none before. Not more than `limit` are counted.
  uint64_t count_keys(uint32_t database, uint64_t limit = ~uint64_t{0}) const;
  // Removes all keys of a database, or of all (~0). Durable on return.
  void flush(uint32_t database);

  // A group: its writes are kept back, seen by reads, and written together: a crash keeps all or
  // none.
  void begin_group() { in_group_ = true; }
  bool in_group() const { return in_group_; }
  bool in_transaction() const { return in_transaction_; }
  // Throws as StoreTurn::apply(), having changed nothing.
  void commit_group();
  void abandon_group();
  // For a command that writes much: commits what there is of the group and goes on, if it has
  // become large and is not a transaction. What is there must make sense by itself.
  void checkpoint();
  bool wants_checkpoint() const {
    // All of it may go to one partition, and then must fit into a block.
    return !in_transaction_ && group_bytes_ >= turn_.block_bytes() / 3;
  }
  // The same for what no reader sees before its last part: also commits if long values of more than
  // kPartBytesMax wait, so that this and one value more is all that waits.
  static constexpr uint64_t kPartBytesMax = uint64_t{1} << 20;
  void checkpoint_part();
  // Of a transaction no more may wait than kTransactionBytesMax, with what each record of it takes
  // in memory: then writes throw Error(kTooLarge).
  static constexpr uint64_t kTransactionBytesMax = uint64_t{256} << 20;
  void begin_transaction() {
    in_group_ = in_transaction_ = true;
    held_bytes_ = 0;
  }
  void end_transaction() { in_transaction_ = false; }

  // Removes some of what is left of collections that are gone. Returns whether there may be more to
  // do. A turn has to end before it is called again.
  bool reap(uint64_t elements_max);

  // Notes for the watcher whether the key changes from now on; forget() ends that for all of its
  // keys.
  void watch(Watcher& watcher, std::string_view raw, bool is_there);
  // How many keys it watches, and their bytes; and whether that is one of them.
  static std::pair<size_t, size_t> watched(const Watcher& watcher) {
    return {watcher.keys_.size(), watcher.bytes_};
  }
  bool is_watching(const Watcher& watcher, std::string_view raw) const;
  // Whether one of its keys was written to, or has expired.
  bool has_changed(const Watcher& watcher) const;
  void forget(Watcher& watcher);
  // Wakes it whenever the key is written to, in the order in which they have come; stop_waiting()
  // ends that for all of its keys.
  void wait_for(Waiter& waiter, std::string_view raw);
  void stop_waiting(Waiter& waiter);
  // From now on, each key that is about to be changed is added to these, with whether it is there;
  // null: no more.
  using Touched = std::vector<std::pair<std::string, bool>>;
  void note_touched(Touched* touched) { touched_ = touched; }

 private:
  struct Pending {
    std::optional<std::string> value;  // none: removed
    uint64_t expiry_ms;
  };
  struct ScanPlace {
    std::string from;
    uint32_t database;
  };

  Item item_of(const store::Partition::Found& found) const;
  void put(std::string_view raw, std::string_view value, uint64_t expiry_ms);
  void write(std::string_view raw, std::string_view value, uint64_t expiry_ms);
  void keep_back(std::string_view raw, Pending pending);
  bool erase(std::string_view raw);
  void touch(std::string_view raw);
  void add_touched(std::string_view raw);
  void drop_old(const Item& item, std::string_view raw);
  static std::string note_key(char what);
  template <typename Write>
  void with_room(Write write);
  bool reap_some(uint64_t elements_max);
  uint64_t reap_one(const std::string& note, uint64_t at_ms, std::string_view raw,
                    uint64_t elements_max);
  void note_internal(char what);
  void read_notes();
  std::string_view encode_string(std::string_view text, uint32_t flags);
  void flush_all();
  uint64_t scan_tags(uint32_t database, uint64_t cursor, uint64_t count, const VisitKey& visit);
  uint64_t scan_ordered(uint32_t database, uint64_t cursor, uint64_t count, const VisitKey& visit,
                        bool with_types);

  uint64_t own_records() const;
  void require_shown() const {
    if (is_hidden_) [[unlikely]]
      throw store::NotReady();
  }
  void require_leader() const;

  mutable store::StoreTurn turn_;
  const bool ordered_;
  std::string follow_mark_;
  bool is_follower_ = false;
  bool is_hidden_ = false;
  uint64_t now_ms_ = 0;
  uint64_t next_id_;
  // Now or at any time before; until the notes can be read, whether there may be some.
  bool has_collections_ = true;
  bool has_databases_ = true;
  bool collections_noted_ = false;  // as far as is known
  bool databases_noted_ = false;
  bool notes_read_ = false;
  bool has_doomed_ = true;
  uint64_t in_parts_ = 0;  // the id of what this turn writes in parts: it is no garbage yet
  uint64_t next_expiry_ms_ = 0;
  bool in_group_ = false;
  bool in_transaction_ = false;
  uint64_t groups_ = 0;
  uint64_t group_bytes_ = 0;
  uint64_t held_bytes_ = 0;  // of memory, by the group
  std::map<std::string, Pending, std::less<>> group_;
  std::string encoded_;
  Touched* touched_ = nullptr;
  std::unordered_map<std::string, std::vector<Watcher*>> watchers_;
  std::unordered_map<std::string, std::vector<Waiter*>> waiters_;
  std::map<uint64_t, ScanPlace> cursors_;
  uint64_t next_cursor_ = 1;
};

}  // namespace perdure::server
