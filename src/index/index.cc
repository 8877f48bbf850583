#include "perdure/index.h"

#include <fmt/core.h>

#include "index/adapter.h"
#include "perdure/typed.h"

namespace perdure {

const char* to_string(Kind kind) noexcept { return kind == Kind::kU64 ? "u64" : "bytes"; }

Kind parse_kind(std::string_view text) {
  if (text == "u64") return Kind::kU64;
  if (text == "bytes") return Kind::kBytes;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is not a kind of key or value; use u64 or bytes", text));
}

const char* to_string(WriteResult result) noexcept {
  switch (result) {
    case WriteResult::kDone:
      return "done";
    case WriteResult::kUnchanged:
      return "unchanged";
    case WriteResult::kPoolFull:
      return "pool-full";
    case WriteResult::kNoSpace:
      return "no-space";
  }
  return "unknown";
}

WriteResult AnyIndex::try_insert(Datum key, Datum value) {
  return try_write([&] { return insert(key, value); });
}

WriteResult AnyIndex::try_update(Datum key, Datum value) {
  return try_write([&] { return update(key, value); });
}

WriteResult AnyIndex::try_upsert(Datum key, Datum value) {
  return try_write([&] { upsert(key, value); });
}

WriteResult AnyIndex::try_remove(Datum key) {
  return try_write([&] { return remove(key); });
}

void AnyIndex::scan(Datum, uint64_t, const std::function<bool(Datum, Datum)>&) const {
  throw Error(ErrorCode::kWrongType, "this structure keeps no order; scans need an ordered one");
}

void AnyIndex::scan_back(std::optional<Datum>, uint64_t,
                         const std::function<bool(Datum, Datum)>&) const {
  throw Error(ErrorCode::kWrongType,
              "this index has no scans in descending order; they need an ordered structure of the "
              "catalogue");
}

uint64_t AnyIndex::remove_range(Datum first, std::optional<Datum> last) {
  constexpr uint64_t kAtOnce = 128;
  if (first.kind() != key_kind()) index::throw_wrong_kind("key", first.kind(), key_kind());
  if (last && last->kind() != key_kind()) index::throw_wrong_kind("key", last->kind(), key_kind());
  const auto is_before_end = [&](Datum key) {
    if (!last) return true;
    return key.kind() == Kind::kU64 ? key.word() < last->word() : key.bytes() < last->bytes();
  };
  uint64_t removed = 0;
  Value next(first);
  std::vector<Value> keys;
  for (bool more = true; more;) {
    keys.clear();
    scan(next.datum(), kAtOnce, [&](Datum key, Datum) {
      if (!is_before_end(key)) return false;
      keys.emplace_back(key);
      return true;
    });
    more = keys.size() == kAtOnce;
    for (const Value& key : keys) removed += remove(key.datum()) ? 1 : 0;
    if (!more) break;
    // On behind the last one, which another thread may have written again.
    if (key_kind() == Kind::kU64) {
      const uint64_t word = keys.back().word();
      if (word == ~uint64_t{0}) break;
      next.set(word + 1);
    } else {
      next.set_bytes().assign(keys.back().bytes()).push_back('\0');
    }
  }
  return removed;
}

uint64_t AnyIndex::remove_prefix(std::string_view text) {
  std::string end(text);
  if (!typed::to_end_of_prefix(end)) return remove_range(text, std::nullopt);
  return remove_range(text, Datum(end));
}

bool AnyIndex::contains(Datum key) const {
  return visit(key, [](Datum) {});
}

std::optional<Value> AnyIndex::get(Datum key) const {
  std::optional<Value> found;
  visit(key, [&](Datum value) { found.emplace(value); });
  return found;
}

uint64_t AnyIndex::size() const {
  uint64_t count = 0;
  for_each([&](const Datum&, const Datum&) { ++count; });
  return count;
}

namespace {

Datum least_of(Kind kind) { return kind == Kind::kU64 ? Datum(0) : Datum(std::string_view()); }

AnyCursor on_first(AnyCursor cursor) {
  cursor.first();
  return cursor;
}

}  // namespace

AnyCursor AnyIndex::all() const {
  const Datum least = least_of(key_kind());
  return on_first(AnyCursor(*this, least, AnyCursor::Until::kEnd, least));
}

AnyCursor AnyIndex::from(Datum first) const {
  return on_first(AnyCursor(*this, first, AnyCursor::Until::kEnd, first));
}

AnyCursor AnyIndex::range(Datum first, Datum last) const {
  return on_first(AnyCursor(*this, first, AnyCursor::Until::kKey, last));
}

AnyCursor AnyIndex::lower_bound(Datum key) const {
  const Datum least = least_of(key_kind());
  AnyCursor cursor(*this, least, AnyCursor::Until::kEnd, least);
  cursor.seek(key);
  return cursor;
}

AnyCursor AnyIndex::upper_bound(Datum key) const {
  const Datum least = least_of(key_kind());
  AnyCursor cursor(*this, least, AnyCursor::Until::kEnd, least);
  cursor.seek_above(key);
  return cursor;
}

AnyCursor AnyIndex::prefix(std::string_view text) const {
  return on_first(AnyCursor(*this, text, AnyCursor::Until::kOtherPrefix, text));
}

bool AnyIndex::compare_exchange(Datum, Datum, Datum) {
  throw Error(ErrorCode::kWrongType, "this index cannot compare and write in one step");
}

bool AnyIndex::compare_remove(Datum, Datum) {
  throw Error(ErrorCode::kWrongType, "this index cannot compare and remove in one step");
}

Change AnyIndex::modify(Datum key,
                        const std::function<Change(const Value* before, Value& after)>& change) {
  Value before;
  Value after;
  for (;;) {
    if (lookup(key, before)) {
      const Change wanted = change(&before, after);
      if (wanted == Change::kKeep) return wanted;
      if (wanted == Change::kWrite ? compare_exchange(key, before.datum(), after.datum())
                                   : compare_remove(key, before.datum())) {
        return wanted;
      }
    } else {
      if (change(nullptr, after) != Change::kWrite) return Change::kKeep;
      if (insert(key, after.datum())) return Change::kWrite;
    }
  }
}

uint64_t AnyIndex::increment(Datum key, int64_t by) {
  if (value_kind() != Kind::kU64) {
    throw Error(ErrorCode::kWrongType,
                "only words can be incremented; this index has byte strings as values");
  }
  uint64_t sum = 0;
  modify(key, [&](const Value* before, Value& after) {
    sum = (before != nullptr ? before->word() : 0) + static_cast<uint64_t>(by);
    after.set(sum);
    return Change::kWrite;
  });
  return sum;
}

bool AnyIndex::visit(Datum key, const std::function<void(Datum value)>& use) const {
  Value found;
  if (!lookup(key, found)) return false;
  use(found.datum());
  return true;
}

uint64_t AnyIndex::multi_lookup(std::span<const Datum> keys, std::span<Value> values,
                                std::span<bool> found) const {
  index::require_results(keys.size(), std::min(values.size(), found.size()));
  uint64_t count = 0;
  for (size_t i = 0; i < keys.size(); ++i) count += found[i] = lookup(keys[i], values[i]);
  return count;
}

uint64_t AnyIndex::multi_insert(std::span<const AnyRecord> records, std::span<bool> inserted) {
  index::require_results(records.size(), inserted.size());
  std::ranges::fill(inserted, false);
  uint64_t count = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    count += inserted[i] = insert(records[i].key, records[i].value);
  }
  return count;
}

void AnyIndex::multi_upsert(std::span<const AnyRecord> records) {
  for (const AnyRecord& record : records) upsert(record.key, record.value);
}

namespace index {

void require_results(size_t keys, size_t results) {
  if (results >= keys) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("a batch of {} was given room for {} results; it needs one for each",
                          keys, results));
}

void throw_wrong_kind(const char* what, Kind given, Kind wanted) {
  throw Error(ErrorCode::kWrongType,
              fmt::format("a {} of kind {} was given to an index that has kind {}", what,
                          to_string(given), to_string(wanted)));
}

namespace {

template <typename Number>
void take_number(OptionMap& options, const std::string& name, Number& out) {
  const auto found = options.find(name);
  if (found == options.end()) return;
  const std::string& text = found->second;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (code != std::errc() || end != text.data() + text.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("option {} is '{}'; it must be a number", name, text));
  }
  options.erase(found);
}

}  // namespace

void take_option(OptionMap& options, const std::string& name, uint32_t& out) {
  take_number(options, name, out);
}
void take_option(OptionMap& options, const std::string& name, uint64_t& out) {
  take_number(options, name, out);
}

void require_empty(const OptionMap& options, const std::string& structure) {
  if (options.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} has no option '{}'; `perdure list` tells which there are", structure,
                          options.begin()->first));
}

}  // namespace index
}  // namespace perdure
