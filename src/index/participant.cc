#include "index/participant.h"

#include <fmt/core.h>

#include <cstring>

#include "pm/heap.h"
#include "pm/pause.h"
#include "pm/pool_impl.h"
#include "pm/transaction_log.h"

namespace perdure::index {

namespace {

struct OperationHead {
  uint32_t structure;
  uint32_t form;
  uint32_t key_bytes;
  uint32_t value_bytes;
};
static_assert(sizeof(OperationHead) == 16);

void append_datum(std::vector<char>& out, const Datum& datum) {
  const uint64_t word = datum.word();
  const std::string_view bytes =
      datum.kind() == Kind::kU64
          ? std::string_view(reinterpret_cast<const char*>(&word), sizeof word)
          : datum.bytes();
  out.insert(out.end(), bytes.begin(), bytes.end());
}

uint32_t stored_bytes(const Datum& datum) {
  return datum.kind() == Kind::kU64 ? 8 : static_cast<uint32_t>(datum.bytes().size());
}

Datum read_datum(const char* at, uint32_t bytes, bool is_word) {
  if (!is_word) return std::string_view(at, bytes);
  uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// Operations of one structure, of those of a record.
void apply_operations(Participant& participant, std::span<const char> operations,
                      uint32_t structure) {
  const pm::PoolImpl& pool = participant.gate().pool();
  while (!operations.empty()) {
    OperationHead head{};
    const bool whole = operations.size() >= sizeof head;
    if (whole) std::memcpy(&head, operations.data(), sizeof head);
    const uint64_t bytes = (sizeof head + uint64_t{head.key_bytes} + head.value_bytes + 7) / 8 * 8;
    const bool key_is_word = (head.form & kKeyIsWord) != 0;
    const bool value_is_word = (head.form & kValueIsWord) != 0;
    if (!whole || bytes > operations.size() || (key_is_word && head.key_bytes != 8) ||
        (value_is_word && head.value_bytes != 8)) {
      pool.throw_corrupt("an operation of an unfinished transaction is damaged");
    }
    if (head.structure == structure) {
      pm::come_to_place("transaction: finishes");
      const char* at = operations.data() + sizeof head;
      const Datum key = read_datum(at, head.key_bytes, key_is_word);
      if ((head.form & kRemoves) != 0) {
        participant.remove(key);
      } else {
        participant.upsert(key, read_datum(at + head.key_bytes, head.value_bytes, value_is_word));
      }
    }
    operations = operations.subspan(bytes);
  }
}

}  // namespace

void append_operation(std::vector<char>& out, uint32_t structure, Datum key, const Datum* value) {
  OperationHead head{structure, 0, stored_bytes(key), 0};
  if (key.kind() == Kind::kU64) head.form |= kKeyIsWord;
  if (value == nullptr) {
    head.form |= kRemoves;
  } else {
    head.value_bytes = stored_bytes(*value);
    if (value->kind() == Kind::kU64) head.form |= kValueIsWord;
  }
  const auto* bytes = reinterpret_cast<const char*>(&head);
  out.insert(out.end(), bytes, bytes + sizeof head);
  append_datum(out, key);
  if (value != nullptr) append_datum(out, *value);
  out.resize((out.size() + 7) / 8 * 8);
}

void finish_transactions(Participant& participant) {
  pm::WriteGate& gate = participant.gate();
  try {
    gate.pool().transactions().finish(gate.root(),
                                      [&](std::span<const char> operations, uint32_t number) {
                                        apply_operations(participant, operations, number);
                                      });
  } catch (const Error& error) {
    // Who salvages a damaged pool reads what there is.
    if (gate.pool().lenient()) return;
    if (!pm::is_full(error)) throw;
    throw Error(
        error.code(),
        fmt::format("{}; '{}' has a committed transaction to finish: {}", error.what(), gate.name(),
                    gate.pool().read_only()
                        ? "open the pool for writing once, or without what the transaction did: "
                          "PoolOptions::lenient"
                        : "make room in other structures"));
  }
}

}  // namespace perdure::index
