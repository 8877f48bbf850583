#include "crash/observed/mwcas_programs.h"

#include <fmt/core.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lab/crash/keyed_subject.h"
#include "lab/crash/program_subject.h"
#include "perdure/error.h"
#include "pm/mwcas.h"

namespace perdure::lab::crash {
namespace {

constexpr uint32_t kDescriptors = pm::Mwcas::kDescriptorsMin;

const pm::Memory memory(Domain::kLine);

struct Root {
  alignas(64) uint64_t words[24];
  alignas(64) pm::MwcasDescriptor descriptors[kDescriptors];
};

// The volatile side of a region.
class Opened {
 public:
  explicit Opened(void* base)
      : root_(*static_cast<Root*>(base)),
        mwcas_(memory, static_cast<char*>(base), epochs_, offsetof(Root, descriptors),
               kDescriptors) {
    mwcas_.recover(0, sizeof(Root), "the region");
  }
  uint64_t& word(uint32_t i) { return root_.words[i]; }
  pm::Mwcas& mwcas() { return mwcas_; }
  pm::EpochManager& epochs() { return epochs_; }
  uint64_t read(uint32_t i) {
    const pm::EpochManager::Guard guard(epochs_);
    return mwcas_.read(word(i));
  }

 private:
  Root& root_;
  pm::Mwcas mwcas_;
  pm::EpochManager epochs_;
};

// Left to itself when its program ends, as by a crash: the region is gone by then.
class OpenedOnce {
 public:
  ~OpenedOnce() { static_cast<void>(opened_.release()); }
  Opened& get(void* base) {
    const std::lock_guard lock(mutex_);
    if (!opened_) opened_ = std::make_unique<Opened>(base);
    return *opened_;
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<Opened> opened_;
};

void format(void* base) {
  pm::Mwcas::format(memory, static_cast<Root*>(base)->descriptors, kDescriptors);
  memory.fence();
}

class Transfers : public Program {
 public:
  uint64_t region_bytes() const override {
    return (sizeof(Root) + kImagePageBytes - 1) / kImagePageBytes * kImagePageBytes;
  }
  void create(void* base) override {
    for (uint64_t& word : static_cast<Root*>(base)->words) word = 100;
    format(base);
  }
  uint32_t operation_count() const override { return 12; }
  uint32_t further_count() const override { return 3; }

  void operate(void* base, uint32_t number) override {
    Opened& opened = opened_.get(base);
    const uint32_t words = number % 3 == 2 ? 12 : 2 + number % 4;
    const pm::EpochManager::Guard guard(opened.epochs());
    pm::Mwcas::Operation operation(opened.mwcas());
    for (uint32_t i = 0; i < words; ++i) {
      const uint32_t at = (number * 5 + i * 2) % 24;  // some on one line, some not
      const uint64_t have = opened.mwcas().read(opened.word(at));
      operation.add(opened.word(at), have, i == 0 ? have - (words - 1) : have + 1);
    }
    if (!operation.execute()) throw Error(ErrorCode::kCorrupt, "a lone operation failed");
  }

  std::string recover(void* base) override {
    Opened& opened = opened_.get(base);
    std::string text;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 24; ++i) {
      const uint64_t value = opened.read(i);
      sum += value;
      text += fmt::format("{} ", value);
    }
    if (sum != 2400) throw Error(ErrorCode::kCorrupt, fmt::format("the sum is {}", sum));
    return text;
  }

 private:
  OpenedOnce opened_;
};

class Map : public KeyedProgram {
 public:
  uint64_t region_bytes() const override {
    return (sizeof(Root) + kImagePageBytes - 1) / kImagePageBytes * kImagePageBytes;
  }
  void create(void* base) override { format(base); }
  std::vector<std::vector<Step>> steps() const override {
    std::vector<std::vector<Step>> all(2);
    for (uint32_t i = 0; i < 5; ++i) {
      all[0].push_back({Verb::kUpsert, i % 2, 10 + i});
      all[1].push_back({i % 2 == 0 ? Verb::kLookup : Verb::kUpsert, (i + 1) % 2, 20 + i});
    }
    return all;
  }

  Answer perform(void* base, const Step& step) override {
    Opened& opened = opened_.get(base);
    if (step.verb == Verb::kLookup) {
      const uint64_t value = opened.read(step.key * 8);
      return {.yes = value != 0, .value = static_cast<uint32_t>(value)};
    }
    for (;;) {
      const pm::EpochManager::Guard guard(opened.epochs());
      pm::Mwcas::Operation operation(opened.mwcas());
      const uint64_t before = opened.mwcas().read(opened.word(step.key * 8));
      const uint64_t sum = opened.mwcas().read(opened.word(kSum));
      operation.add(opened.word(step.key * 8), before, step.value);
      operation.add(opened.word(kSum), sum, sum - before + step.value);
      if (operation.execute()) return {};
    }
  }

  Contents recover(void* base) override {
    Opened opened(base);
    Contents contents;
    uint64_t sum = 0;
    for (uint32_t key = 0; key < 2; ++key) {
      const uint64_t value = opened.read(key * 8);
      sum += value;
      if (value != 0) contents[key] = static_cast<uint32_t>(value);
    }
    if (opened.read(kSum) != sum) throw Error(ErrorCode::kCorrupt, "the sum does not agree");
    return contents;
  }

 private:
  static constexpr uint32_t kSum = 20;

  OpenedOnce opened_;
};

}  // namespace

std::unique_ptr<Subject> mwcas_transfers() {
  return std::make_unique<ProgramSubject>("mwcas transfers",
                                          [] { return std::make_unique<Transfers>(); });
}

std::unique_ptr<Subject> mwcas_map(uint64_t schedule) {
  return std::make_unique<KeyedSubject>(
      "mwcas map", [] { return std::make_unique<Map>(); }, schedule);
}

}  // namespace perdure::lab::crash
