// What the commands of hashes, sets, lists and sorted sets have in common.
//
// Elements by name (fields of a hash, members of a set or sorted set) stand in the order of a hash
// of their name: a random place among them is a random hash, and SCAN's cursor is one, too.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/commands.h"
#include "server/keyspace.h"
#include "server/resp_reply.h"

namespace perdure::server {

// The key of a record, in a place of its own.
std::string element_of_name(uint64_t collection, std::string_view name);
std::string element_of_index(uint64_t collection, uint64_t index);
std::string element_of_score(uint64_t collection, double score, std::string_view name);
// What these begin with.
std::string names_of(uint64_t collection);
std::string scores_of(uint64_t collection);
// Back from a record's key.
std::string_view name_of_element(std::string_view raw);
uint64_t index_of_element(std::string_view raw);
double score_of_element(std::string_view raw);
std::string_view name_of_score(std::string_view raw);

// A collection that a command is about, and its header as it will be.
class Opened {
 public:
  // Throws CommandError if the key has something of another type.
  Opened(Call& call, size_t key_argument, Type type);
  Opened(Keyspace& keys, std::string_view raw, Type type);

  bool exists() const { return exists_; }
  uint64_t count() const { return header_.count; }
  uint64_t id() const { return header_.id; }
  Collection& header() { return header_; }
  std::string_view raw() const { return raw_; }
  Keyspace& keys() const { return *keys_; }
  // Before the first element is written: a collection that is not there begins.
  void begin();
  // Writes the header: at the end, if anything has changed.
  void end();
  // After an element of a command that has many: a part of them may be written now.
  void checkpoint();

  bool find(std::string_view name, std::string_view& value) const;
  void put(std::string_view name, std::string_view value);  // the count is the caller's
  void remove(std::string_view name);
  // Elements by name, from a hash on, until `visit` returns false.
  using Visit = std::function<bool(std::string_view name, std::string_view value)>;
  void visit(uint64_t from_hash, uint64_t wanted, const Visit& visit) const;
  // The same without values, which are not read.
  using VisitName = std::function<bool(std::string_view name)>;
  void visit_names(uint64_t from_hash, uint64_t wanted, const VisitName& visit) const;
  // The names, and if asked for the values, of some, each with about the same chance; distinct.
  // Fewer if there are fewer. Throws BufferFull.
  std::vector<std::pair<std::string, std::string>> choose(uint64_t count, bool values,
                                                          ReplyRoom& room) const;

 private:
  Keyspace* keys_;
  std::string raw_;
  Type type_;
  Collection header_;
  uint64_t expiry_ms_;
  bool exists_;

  void scan(uint64_t from_hash, uint64_t wanted, const Visit& visit, bool names_only) const;
};

// Where the elements of a list begin, so that both ends have room.
inline constexpr uint64_t kListMiddle = uint64_t{1} << 63;

// Throws CommandError.
int64_t random_count_of(std::string_view text);
// As HRANDFIELD and SRANDMEMBER count: below 0, one may come several times. Throws BufferFull.
std::vector<std::pair<std::string, std::string>> choose_with_repeats(const Opened& opened,
                                                                     int64_t count, bool values,
                                                                     ReplyRoom room);

uint64_t cursor_of(std::string_view text);
struct ScanArguments {
  uint64_t count = 10;
  std::string_view pattern = "*";
  std::string_view type = {};
};
// What stands behind the cursor. TYPE is SCAN's alone.
ScanArguments parse_scan(const Call& call, size_t first);
void reply_scan(Call& call, uint64_t next, const std::vector<std::string>& found);
// HSCAN, SSCAN and ZSCAN: `tell` appends the reply for one element.
void scan_elements(Call& call, Type type,
                   const std::function<void(std::string_view name, std::string_view value,
                                            std::vector<std::string>& out)>& tell);

// A new collection that takes the place of what `to` has: of any size, at once. Elements are
// written in parts, noted as garbage until the header comes and the note goes, together. So what it
// is made of need not be collected first: but for a transaction, which keeps all back, a part and
// one value are in memory. If it is given up, the next parts are not written, and the note stays.
class Replacement {
 public:
  Replacement(Keyspace& keys, std::string_view to, Type type) : keys_(keys), to_(to), type_(type) {}
  // Begins it, with the first call. The count is the caller's. Throws as new_collection().
  Collection& header();
  void put(std::string_view element, std::string_view value);
  // Without a header, or with a count of 0, `to` is removed.
  void finish(uint64_t expiry_ms);
  uint64_t count() const { return header_.count; }

 private:
  Keyspace& keys_;
  std::string to_;
  Type type_;
  Collection header_;
  bool has_begun_ = false;
};

void copy_collection(Keyspace& keys, const Item& item, std::string_view to);

}  // namespace perdure::server
