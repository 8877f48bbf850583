// memcached's binary protocol, with SASL PLAIN.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "perdure/error.h"
#include "perdure/version.h"
#include "server/acl.h"
#include "server/command_error.h"
#include "server/memcached.h"
#include "server/server.h"

namespace perdure::server {

namespace {

enum class Status : uint16_t {
  kOk = 0x00,
  kNotFound = 0x01,
  kExists = 0x02,
  kTooLarge = 0x03,
  kInvalid = 0x04,
  kNotStored = 0x05,
  kNotANumber = 0x06,
  kAuthError = 0x20,
  kUnknown = 0x81,
  kNoMemory = 0x82,
  kInternal = 0x84,
  kTemporary = 0x86
};

std::string_view text_of(Status status) {
  switch (status) {
    case Status::kOk:
      return "";
    case Status::kNotFound:
      return "Not found";
    case Status::kExists:
      return "Data exists for key.";
    case Status::kTooLarge:
      return "Too large.";
    case Status::kInvalid:
      return "Invalid arguments";
    case Status::kNotStored:
      return "Not stored.";
    case Status::kNotANumber:
      return "Non-numeric server-side value for incr or decr";
    case Status::kAuthError:
      return "Auth failure.";
    case Status::kUnknown:
      return "Unknown command";
    case Status::kNoMemory:
      return "Out of memory";
    case Status::kInternal:
      return "Internal error";
    case Status::kTemporary:
      return "Temporary failure: loading";
  }
  return "";
}

// What a request asks for, whether it is to be answered quietly or not.
enum class Opcode : uint8_t {
  kGet = 0x00,
  kSet = 0x01,
  kAdd = 0x02,
  kReplace = 0x03,
  kDelete = 0x04,
  kIncrement = 0x05,
  kDecrement = 0x06,
  kQuit = 0x07,
  kFlush = 0x08,
  kNoop = 0x0a,
  kVersion = 0x0b,
  kGetK = 0x0c,
  kAppend = 0x0e,
  kPrepend = 0x0f,
  kStat = 0x10,
  kVerbosity = 0x1b,
  kTouch = 0x1c,
  kGat = 0x1d,
  kSaslList = 0x20,
  kSaslAuth = 0x21,
  kSaslStep = 0x22,
  kGatK = 0x23
};

struct Asked {
  Opcode opcode;
  bool quiet;
};

Asked asked_of(uint8_t opcode) {
  switch (opcode) {
    case 0x09:
      return {Opcode::kGet, true};
    case 0x0d:
      return {Opcode::kGetK, true};
    case 0x1e:
      return {Opcode::kGat, true};
    case 0x24:
      return {Opcode::kGatK, true};
    case 0x19:
      return {Opcode::kAppend, true};
    case 0x1a:
      return {Opcode::kPrepend, true};
    default:
      break;
  }
  // SETQ to FLUSHQ stand in the order of SET to FLUSH.
  if (opcode >= 0x11 && opcode <= 0x18) return {static_cast<Opcode>(opcode - 0x10), true};
  return {static_cast<Opcode>(opcode), false};
}

struct Failure {
  Status status;
};

std::string big_endian(uint64_t number, size_t bytes) {
  std::string out(bytes, '\0');
  for (size_t i = bytes; i-- > 0; number >>= 8) out[i] = static_cast<char>(number & 0xff);
  return out;
}

constexpr size_t kUnauthenticatedValueBytes = size_t{4} << 10;

}  // namespace

void MemcachedSession::binary_reply(uint16_t status, std::string_view extras, std::string_view key,
                                    std::string_view value, uint64_t version) {
  const BinaryRequest& request = binary_.request();
  std::string header;
  header += static_cast<char>(0x81);
  header += static_cast<char>(request.opcode);
  header += big_endian(key.size(), 2);
  header += static_cast<char>(extras.size());
  header += '\0';
  header += big_endian(status, 2);
  header += big_endian(extras.size() + key.size() + value.size(), 4);
  header += big_endian(request.opaque, 4);
  header += big_endian(version, 8);
  for (const std::string_view part : {std::string_view(header), extras, key, value}) {
    connection_->out.append(part);
  }
}

void MemcachedSession::binary_fail(uint16_t status) {
  binary_reply(status, {}, {}, text_of(static_cast<Status>(status)), 0);
}

Session::Outcome MemcachedSession::execute_binary(Connection& connection) {
  const size_t begin = connection.out.size();
  const bool open = !server_.config().memcached_sasl || user_ != nullptr;
  binary_.set_value_bytes_max(open ? server_.config().value_bytes_max - 64
                                   : kUnauthenticatedValueBytes);
  for (size_t i = 0; i < kRequestsMax; ++i) {
    if (connection.out.size() - begin > kOutputMax) return Outcome::kMore;
    ask_ahead(connection, i);
    size_t consumed = 0;
    const auto result = binary_.parse(connection.in.view(), consumed);
    const bool was_authenticated = user_ != nullptr;
    switch (result) {
      case MemcachedBinaryParser::Result::kRequest:
        run_binary();
        break;
      case MemcachedBinaryParser::Result::kTooLarge:
        binary_fail(static_cast<uint16_t>(Status::kTooLarge));
        break;
      case MemcachedBinaryParser::Result::kInvalid:
        binary_fail(static_cast<uint16_t>(Status::kInvalid));
        break;
      case MemcachedBinaryParser::Result::kNeedMore:
        break;
      case MemcachedBinaryParser::Result::kError:
        return Outcome::kClose;
    }
    connection.in.consume(consumed);
    if (closes_) return Outcome::kClose;
    if (result == MemcachedBinaryParser::Result::kNeedMore) {
      if (consumed > 0 && !connection.in.empty()) continue;
      return Outcome::kIdle;
    }
    if ((user_ != nullptr) != was_authenticated) return Outcome::kMore;  // with another limit
  }
  return Outcome::kMore;
}

void MemcachedSession::run_binary() {
  ++server_.metrics().memcached_commands;
  as_command_ = nullptr;
  const uint64_t begin_ticks = server_.clock().now();
  const size_t begin = connection_->out.size();
  const KeyEvents::Carrying carrying(server_.events());
  const auto fail = [&](Status status) {
    connection_->out.truncate(begin);
    binary_fail(static_cast<uint16_t>(status));
    // As in the text protocol, where these are answers.
    const bool answers =
        status == Status::kNotFound || status == Status::kExists || status == Status::kNotStored;
    note_request(begin_ticks, !answers);
  };
  try {
    binary_command();
    if (server_.events().are_on()) [[unlikely]]
      server_.events().end({}, 0);
    note_request(begin_ticks, false);
  } catch (const Failure& failure) {
    fail(failure.status);
  } catch (const CommandError&) {
    fail(Status::kInvalid);
  } catch (const store::NotReady&) {
    fail(Status::kTemporary);
  } catch (const BufferFull&) {
    fail(Status::kNoMemory);
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::kPoolFull:
      case ErrorCode::kNoSpace:
        return fail(Status::kNoMemory);
      case ErrorCode::kTooLarge:
        return fail(Status::kTooLarge);
      default:
        return fail(Status::kInternal);
    }
  }
}

void MemcachedSession::require_binary_permission(uint8_t opcode) {
  switch (static_cast<Opcode>(opcode)) {
    case Opcode::kGet:
    case Opcode::kGetK:
      return require_permission("get", true, false);
    case Opcode::kGat:
    case Opcode::kGatK:
      return require_permission("getex", true, true);
    case Opcode::kSet:
    case Opcode::kAdd:
    case Opcode::kReplace:
      return require_permission("set", false, true);
    case Opcode::kAppend:
    case Opcode::kPrepend:
      return require_permission("append", false, true);
    case Opcode::kIncrement:
    case Opcode::kDecrement:
      return require_permission("incrby", true, true);
    case Opcode::kDelete:
      return require_permission("del", false, true);
    case Opcode::kTouch:
      return require_permission("expire", false, true);
    case Opcode::kFlush:
      return require_permission("flushdb", false, true);
    default:
      return require_permission("info", false, false);
  }
}

void MemcachedSession::binary_command() {
  const BinaryRequest& request = binary_.request();
  const auto [opcode, quiet] = asked_of(request.opcode);
  const auto ok = [&] { binary_reply(0, {}, {}, {}, 0); };
  switch (opcode) {
    case Opcode::kQuit:
      closes_ = true;
      if (!quiet) ok();
      return;
    case Opcode::kNoop:
      return ok();
    case Opcode::kVersion:
      return binary_reply(0, {}, {}, fmt::format("1.6.18-perdure-{}", kVersion), 0);
    case Opcode::kSaslList:
    case Opcode::kSaslAuth:
    case Opcode::kSaslStep:
      return binary_sasl();
    default:
      break;
  }
  if (server_.config().memcached_sasl && user_ == nullptr) throw Failure{Status::kAuthError};
  if (server_.keys() == nullptr) throw Failure{Status::kTemporary};
  try {
    require_binary_permission(static_cast<uint8_t>(opcode));
  } catch (const CommandError&) {
    throw Failure{Status::kAuthError};
  }
  switch (opcode) {
    case Opcode::kGet:
    case Opcode::kGetK:
    case Opcode::kGat:
    case Opcode::kGatK:
      return binary_get(opcode == Opcode::kGetK || opcode == Opcode::kGatK,
                        opcode == Opcode::kGat || opcode == Opcode::kGatK, quiet);
    case Opcode::kSet:
      return binary_store(Mode::kSet, quiet);
    case Opcode::kAdd:
      return binary_store(Mode::kAdd, quiet);
    case Opcode::kReplace:
      return binary_store(Mode::kReplace, quiet);
    case Opcode::kAppend:
      return binary_store(Mode::kAppend, quiet);
    case Opcode::kPrepend:
      return binary_store(Mode::kPrepend, quiet);
    case Opcode::kIncrement:
    case Opcode::kDecrement:
      return binary_add(opcode == Opcode::kDecrement, quiet);
    case Opcode::kDelete: {
      const std::string_view raw = raw_key(request.key);
      const Item item = find(raw);
      if (!item) throw Failure{Status::kNotFound};
      if (request.cas != 0 && request.cas != item.version) throw Failure{Status::kExists};
      keys().remove(raw);
      if (!quiet) ok();
      return;
    }
    case Opcode::kTouch: {
      if (request.extras.size() != 4) throw Failure{Status::kInvalid};
      const std::string_view raw = raw_key(request.key);
      const Item item = find(raw);
      if (!item) throw Failure{Status::kNotFound};
      keys().set_expiry(raw, item,
                        expiry_at(static_cast<int64_t>(read_big_endian(request.extras))));
      return ok();
    }
    case Opcode::kFlush:
      if (!request.extras.empty() && read_big_endian(request.extras) != 0) {
        throw Failure{Status::kInvalid};  // there is no delay
      }
      keys().flush(0);
      server_.events().forget_expiries(0);
      if (!quiet) ok();
      return;
    case Opcode::kStat:
      if (!request.key.empty()) throw Failure{Status::kNotFound};
      general_stats([this](std::string_view name, const std::string& value) {
        binary_reply(0, {}, name, value, 0);
      });
      return ok();
    case Opcode::kVerbosity:
      return ok();
    default:
      throw Failure{Status::kUnknown};
  }
}

void MemcachedSession::binary_get(bool with_key, bool touches, bool quiet) {
  const BinaryRequest& request = binary_.request();
  if (touches && request.extras.size() != 4) throw Failure{Status::kInvalid};
  const std::string_view raw = raw_key(request.key);
  Item item = find(raw);
  ++(item ? server_.metrics().keyspace_hits : server_.metrics().keyspace_misses);
  if (item && touches) {
    keys().set_expiry(raw, item, expiry_at(static_cast<int64_t>(read_big_endian(request.extras))));
    item = find(raw);
  }
  if (!item) {
    if (!quiet) throw Failure{Status::kNotFound};
    return;
  }
  binary_reply(0, big_endian(item.flags, 4), with_key ? request.key : std::string_view(), item.text,
               item.version);
}

void MemcachedSession::binary_store(Mode mode, bool quiet) {
  const BinaryRequest& request = binary_.request();
  const bool joins = mode == Mode::kAppend || mode == Mode::kPrepend;
  if (request.extras.size() != (joins ? 0 : 8)) throw Failure{Status::kInvalid};
  const std::string_view raw = raw_key(request.key);
  Change change{.data = request.value};
  if (!joins) {
    change.flags = static_cast<uint32_t>(read_big_endian(request.extras.substr(0, 4)));
    change.expiry_ms = expiry_at(static_cast<int64_t>(read_big_endian(request.extras.substr(4))));
  }
  if (request.cas != 0) change.version = &request.cas;
  switch (store(raw, mode, change)) {
    case Stored::kStored:
      break;
    case Stored::kExists:
      throw Failure{Status::kExists};
    case Stored::kNotFound:
      throw Failure{Status::kNotFound};
    case Stored::kNotStored:
      if (mode == Mode::kAdd) throw Failure{Status::kExists};
      throw Failure{mode == Mode::kReplace ? Status::kNotFound : Status::kNotStored};
  }
  if (!quiet) binary_reply(0, {}, {}, {}, find(raw).version);
}

void MemcachedSession::binary_add(bool decrement, bool quiet) {
  const BinaryRequest& request = binary_.request();
  if (request.extras.size() != 20) throw Failure{Status::kInvalid};
  const uint64_t by = read_big_endian(request.extras.substr(0, 8));
  const uint64_t initial = read_big_endian(request.extras.substr(8, 8));
  const uint64_t expiry = read_big_endian(request.extras.substr(16));
  constexpr uint64_t kMustBeThere = 0xffffffff;
  const std::string_view raw = raw_key(request.key);
  const Item item = find(raw);
  uint64_t result = initial;
  if (item) {
    if (request.cas != 0 && request.cas != item.version) throw Failure{Status::kExists};
    uint64_t value = 0;
    const std::string_view text = item.text;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || rest != text.data() + text.size()) {
      throw Failure{Status::kNotANumber};
    }
    result = decrement ? value - std::min(value, by) : value + by;
    keys().set_string_over(item, raw, fmt::format("{}", result), item.flags, item.expiry_ms);
  } else {
    if (expiry == kMustBeThere || request.cas != 0) throw Failure{Status::kNotFound};
    if (keys().find(raw)) throw Failure{Status::kNotANumber};  // a collection
    keys().set_string(raw, fmt::format("{}", initial), 0, expiry_at(static_cast<int64_t>(expiry)));
  }
  if (!quiet) binary_reply(0, {}, {}, big_endian(result, 8), find(raw).version);
}

// The name of the only user is `default`; PLAIN is "authorization 0 user 0 password".
void MemcachedSession::binary_sasl() {
  if (!server_.config().memcached_sasl) throw Failure{Status::kUnknown};
  const BinaryRequest& request = binary_.request();
  if (asked_of(request.opcode).opcode == Opcode::kSaslList) {
    return binary_reply(0, {}, {}, "PLAIN", 0);
  }
  user_ = nullptr;
  const size_t user = request.value.find('\0');
  const size_t secret = user == std::string_view::npos ? user : request.value.find('\0', user + 1);
  if (asked_of(request.opcode).opcode != Opcode::kSaslAuth || request.key != "PLAIN" ||
      secret == std::string_view::npos) {
    throw Failure{Status::kAuthError};
  }
  const std::string_view name = request.value.substr(user + 1, secret - user - 1);
  // Who needs no password is nobody in particular.
  const AclUser* known = server_.acl().find(name);
  if (known == nullptr || !known->needs_password()) throw Failure{Status::kAuthError};
  user_ = server_.acl().authenticate(name, request.value.substr(secret + 1));
  if (user_ == nullptr) throw Failure{Status::kAuthError};
  binary_reply(0, {}, {}, "Authenticated", 0);
}

}  // namespace perdure::server
