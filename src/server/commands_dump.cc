// DUMP and RESTORE: a key as one string, and back.
#include "server/collections.h"
#include "server/command_error.h"
#include "server/commands.h"
#include "server/dump_format.h"
#include "server/encoding.h"
#include "server/expiry.h"
#include "server/resp_session.h"

namespace perdure::server {

namespace {

void run_dump(Call& call) {
  const std::string_view raw = call.key(1);
  const Item item = call.keys().find(raw);
  if (!item) return call.reply.null();
  DumpWriter out(item.type, item.collection.count);
  if (item.type == Type::kString) {
    out.text(item.text);
    return call.reply.bulk(out.finish());
  }
  const std::string prefix = names_of(item.collection.id);
  const uint64_t count = item.collection.count;
  uint64_t seen = 0;
  ReplyRoom room = call.reply.room();
  call.keys().scan(prefix, false, count, [&](std::string_view key, std::string_view value) {
    if (!key.starts_with(prefix)) return false;
    room.take(name_of_element(key).size() + value.size());
    if (item.type == Type::kList) {
      out.text(value);
      return ++seen < count;
    }
    out.text(name_of_element(key));
    if (item.type == Type::kHash) out.text(value);
    if (item.type == Type::kSortedSet) {
      if (value.size() != sizeof(uint64_t)) {
        throw Error(ErrorCode::kCorrupt, "the score of a member is damaged");
      }
      out.score(real_of_ordered(read_ordered(value)));
    }
    return ++seen < count;
  });
  if (seen != count) throw Error(ErrorCode::kCorrupt, "an element of a collection is missing");
  call.reply.bulk(out.finish());
}

struct RestoreOptions {
  bool replace = false;
  bool absolute = false;
};

// IDLETIME and FREQ are taken, and mean nothing here.
RestoreOptions parse_restore(const Call& call) {
  RestoreOptions options;
  bool has_idle_time = false;
  bool has_frequency = false;
  for (size_t i = 4; i < call.size(); ++i) {
    const bool has_value = i + 1 < call.size();
    if (same_word(call[i], "REPLACE")) {
      options.replace = true;
    } else if (same_word(call[i], "ABSTTL")) {
      options.absolute = true;
    } else if (same_word(call[i], "IDLETIME") && has_value && !has_frequency) {
      if (integer_of(call[++i]) < 0) {
        throw CommandError("ERR Invalid IDLETIME value, must be >= 0");
      }
      has_idle_time = true;
    } else if (same_word(call[i], "FREQ") && has_value && !has_idle_time) {
      const int64_t frequency = integer_of(call[++i]);
      if (frequency < 0 || frequency > 255) {
        throw CommandError("ERR Invalid FREQ value, must be >= 0 and <= 255");
      }
      has_frequency = true;
    } else {
      throw_syntax();
    }
  }
  return options;
}

void restore_collection(Keyspace& keys, std::string_view raw, const Dump& dump,
                        uint64_t expiry_ms) {
  Replacement replacement(keys, raw, dump.type);
  Collection& header = replacement.header();
  const bool is_hash = dump.type == Type::kHash;
  header.count = is_hash ? dump.texts.size() / 2 : dump.texts.size();
  if (dump.type == Type::kList) header.first = kListMiddle;
  for (size_t i = 0; i < dump.texts.size(); i += is_hash ? 2 : 1) {
    const std::string& text = dump.texts[i];
    if (dump.type == Type::kList) {
      replacement.put(element_of_index(header.id, header.first + i), text);
      continue;
    }
    std::string value;
    if (is_hash) value = dump.texts[i + 1];
    if (dump.type == Type::kSortedSet) {
      append_ordered(value, ordered_of_real(dump.scores[i]));
      replacement.put(element_of_score(header.id, dump.scores[i], text), "");
    }
    replacement.put(element_of_name(header.id, text), value);
  }
  replacement.finish(expiry_ms);
}

void run_restore(Call& call) {
  const RestoreOptions options = parse_restore(call);
  const std::string_view raw = call.key(1);
  if (!options.replace && call.keys().find(raw)) {
    throw CommandError("BUSYKEY Target key name already exists.");
  }
  const int64_t ttl_ms = integer_of(call[2]);
  if (ttl_ms < 0) throw CommandError("ERR Invalid TTL value, must be >= 0");
  const int64_t at_ms = ttl_ms == 0 ? 0 : expiry_ms_of(call, call[2], 1, options.absolute);
  // Those of a transaction have one bound for all of them, which EXEC sets.
  if (!call.keys().in_transaction()) call.session.unpack_room_bytes = kUnpackedBytesMax;
  const Dump dump = read_dump(call[3], call.session.unpack_room_bytes);
  if (dump.type == Type::kString && dump.texts[0].size() > kStringBytesMax) {
    throw CommandError("ERR string exceeds maximum allowed size (64MB)");
  }
  const uint64_t expiry_ms = ttl_ms == 0 ? store::kNoExpiry : static_cast<uint64_t>(at_ms);
  if (ttl_ms != 0 && expiry_ms <= call.keys().now_ms()) {
    call.keys().remove(raw);
  } else if (dump.type == Type::kString) {
    call.keys().set_string(raw, dump.texts[0], 0, expiry_ms);
  } else {
    restore_collection(call.keys(), raw, dump, expiry_ms);
  }
  call.reply.ok();
}

constexpr Command kDumpCommands[] = {
    {"dump", 2, 0, 1, 1, 1, "generic", "Returns a key as one string, in the form of Redis",
     run_dump},
    {"restore", -4, kWrites | kGroup, 1, 1, 1, "generic", "Makes a key of what DUMP has returned",
     run_restore},
};

}  // namespace

std::span<const Command> dump_commands() { return kDumpCommands; }

}  // namespace perdure::server
