// A client that speaks memcached's text protocol, classic or meta. Keys are those of database 0 of
// RESP; `cas unique` is the record's version, which also changes when the time of expiry does.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/commands.h"
#include "server/connection.h"
#include "server/keyspace.h"
#include "server/memcached_binary_parser.h"
#include "server/memcached_parser.h"

namespace perdure::server {

class AclUser;
class Server;

class MemcachedSession final : public Session {
 public:
  explicit MemcachedSession(Server& server);
  void look_ahead(Connection& connection, std::vector<std::string_view>& keys) override;
  Outcome execute(Connection& connection) override;
  void refuse_turn(Connection& connection) override;
  size_t bytes_wanted(const Connection& connection) const override;
  // Whom SASL has named; null: nobody.
  const AclUser* user() const { return user_.get(); }

 private:
  using Words = std::vector<std::string_view>;
  enum class Mode : uint8_t { kSet, kAdd, kReplace, kAppend, kPrepend };
  enum class Stored : uint8_t { kStored, kNotStored, kExists, kNotFound };
  struct MetaFlags;
  struct Change {
    std::string_view data;
    uint32_t flags = 0;
    uint64_t expiry_ms = 0;
    const uint64_t* version = nullptr;  // that the record must have
  };

  void note_protocol(const Connection& connection);
  void ask_ahead(Connection& connection, size_t done);
  void run(Connection& connection);
  bool run_classic(const Words& words);
  bool run_meta(const Words& words);
  void get(const Words& words, size_t first_key, bool with_version, const uint64_t* expiry_ms);
  void classic_store(const Words& words, Mode mode, bool with_version);
  void add_number(const Words& words, bool decrement);
  void touch(const Words& words);
  void remove(const Words& words);
  void flush_all(const Words& words);
  void stats(const Words& words);
  void meta_get(const Words& words);
  void meta_set(const Words& words);
  void meta_delete(const Words& words);
  void meta_add(const Words& words);
  void meta_debug(const Words& words);
  static MetaFlags meta_flags(const Words& words, size_t first);
  void meta_reply(std::string_view code, const MetaFlags& flags, std::string_view key_word,
                  const Item& item, const uint64_t* size = nullptr);

  // memcached_binary.cc
  Outcome execute_binary(Connection& connection);
  void run_binary();
  void binary_command();
  void require_binary_permission(uint8_t opcode);
  void binary_get(bool with_key, bool touches, bool quiet);
  void binary_store(Mode mode, bool quiet);
  void binary_add(bool decrement, bool quiet);
  void binary_sasl();
  void binary_reply(uint16_t status, std::string_view extras, std::string_view key,
                    std::string_view value, uint64_t version);
  void binary_fail(uint16_t status);

  Stored store(std::string_view raw, Mode mode, const Change& change);
  std::string_view raw_key(std::string_view key);
  Item find(std::string_view raw);
  uint64_t expiry_of(std::string_view word);
  uint64_t expiry_at(int64_t seconds);
  void require_permission(const char* command, bool reads, bool writes);
  // Counts the request that began then, and whether it failed, if it was told what it asks for.
  void note_request(uint64_t begin, bool failed);
  void require_permission_for(const Words& words);
  using AddFigure = std::function<void(std::string_view name, const std::string& value)>;
  void general_stats(const AddFigure& add);
  void say(std::string_view line);
  Keyspace& keys();

  Server& server_;
  MemcachedParser parser_;
  std::vector<std::string_view> keys_;  // that are asked for ahead
  MemcachedBinaryParser binary_;
  enum class Protocol : uint8_t { kUnknown, kText, kBinary };
  Protocol protocol_ = Protocol::kUnknown;  // what the first byte says
  std::shared_ptr<AclUser> user_;           // that SASL has given
  const Command* as_command_ = nullptr;     // what the request would be in Redis
  // Of the request: what it does to its keys, where that is to be looked at.
  const AclUser* asks_ = nullptr;
  bool reads_ = false;
  bool writes_ = false;
  Connection* connection_ = nullptr;
  std::string scratch_;
  std::string decoded_;
  bool quiet_ = false;
  bool closes_ = false;
};

}  // namespace perdure::server
