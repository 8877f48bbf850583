#include "crash/observed/log_program.h"

#include <fmt/core.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/crash/program_subject.h"
#include "perdure/error.h"
#include "pm/torn_bit_log.h"

namespace perdure::lab::crash {
namespace {

constexpr uint32_t kKeys = 4;
constexpr uint32_t kChunks = 3;
constexpr uint64_t kChunkBytes = 256;
constexpr uint32_t kBatchMax = 3;
// In a record's third word: the batch is whole; what came before is no part of any batch.
constexpr uint64_t kLast = 2;
constexpr uint64_t kForget = 4;

const pm::Memory memory(Domain::kLine);

struct Root {
  struct Entry {
    alignas(64) uint64_t value;
  } table[kKeys];  // what chunks that were released told
  alignas(256) char log[kChunks * kChunkBytes];
};

class LogOfBatches : public RootProgram<Root> {
 public:
  uint32_t operation_count() const override { return 60; }
  uint32_t further_count() const override { return 3; }
  uint32_t work_count() const override { return 20; }  // more than a pass over the ring

 protected:
  void set_up(Root& root) override {
    open(root);
    log_->format();
    memory.fence();
  }

  void perform(Root& root, uint32_t number) override {
    const uint64_t drawn = (number + 1) * 0x9e3779b97f4a7c15U;
    const auto count = static_cast<uint32_t>(1 + (drawn >> 40) % kBatchMax);
    make_room(root, count);
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t key = (drawn >> (50 + 4 * i)) % kKeys;
      values_[key] = uint64_t{number} * kBatchMax + i + 1;
      log_->append({values_[key], key, 1 | (i + 1 == count ? kLast : 0)});
    }
    memory.fence();  // the batch, before anybody is told
  }

  std::string restore(Root& root) override {
    open(root);
    for (uint32_t key = 0; key < kKeys; ++key) values_[key] = root.table[key].value;
    std::vector<std::pair<uint64_t, uint64_t>> batch;
    const bool sound = log_->replay([&](const pm::RedoRecord& record, uint64_t /*sequence*/) {
      if (record.b >= kKeys) throw Error(ErrorCode::kCorrupt, "a record has no key");
      if ((record.c & kForget) != 0) return batch.clear();
      batch.emplace_back(record.b, record.a);
      if ((record.c & kLast) == 0) return;
      for (const auto& [key, value] : batch) values_[key] = value;
      batch.clear();
    });
    if (!sound) throw Error(ErrorCode::kCorrupt, "a header of the log is damaged");
    if (!batch.empty()) {
      make_room(root, 1);
      log_->append({0, 0, 1 | kForget});
      memory.fence();  // before the next batch, which would begin with what a crash cut short
    }
    std::string text;
    for (const uint64_t value : values_) text += fmt::format("{} ", value);
    return text;
  }

 private:
  void open(Root& root) { log_.emplace(memory, root.log, kChunkBytes, kChunks); }

  void make_room(Root& root, uint32_t records) {
    if (log_->has_room(records)) return;
    if (!log_->next_is_free()) release(root);
    log_->advance();
  }

  // All that the log tells stands in the table, before its chunks are used again.
  void release(Root& root) {
    for (uint32_t key = 0; key < kKeys; ++key) {
      root.table[key].value = values_[key];
      memory.flush(&root.table[key], sizeof root.table[key]);
    }
    memory.fence();
    log_->release_before(log_->sequence());
  }

  std::optional<pm::TornBitLog> log_;
  std::array<uint64_t, kKeys> values_{};
};

}  // namespace

std::unique_ptr<Subject> log_of_batches() {
  return std::make_unique<ProgramSubject>("log of batches",
                                          [] { return std::make_unique<LogOfBatches>(); });
}

}  // namespace perdure::lab::crash
