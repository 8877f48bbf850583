#include "lab/bench/null_index.h"

namespace perdure::lab {
namespace {

class NullIndex final : public AnyIndex {
 public:
  NullIndex(Kind key_kind, Kind value_kind) : key_kind_(key_kind), value_kind_(value_kind) {}

  Kind key_kind() const override { return key_kind_; }
  Kind value_kind() const override { return value_kind_; }

  bool insert(Datum, Datum) override { return true; }
  bool update(Datum, Datum) override { return true; }
  void upsert(Datum, Datum) override {}
  bool remove(Datum) override { return true; }
  bool lookup(Datum, Value&) const override { return true; }
  void scan(Datum from, uint64_t limit,
            const std::function<bool(Datum, Datum)>& visit) const override {
    const Datum value = value_kind_ == Kind::kU64 ? Datum(uint64_t{0}) : Datum("");
    for (uint64_t told = 0; told < limit && visit(from, value); ++told) continue;
  }
  void scan_back(std::optional<Datum> from, uint64_t limit,
                 const std::function<bool(Datum, Datum)>& visit) const override {
    const Datum first = key_kind_ == Kind::kU64 ? Datum(uint64_t{0}) : Datum("");
    scan(from.value_or(first), limit, visit);
  }

  void for_each(const std::function<void(Datum, Datum)>&) const override {}
  uint64_t check(const std::function<void(const std::string&)>&) const override { return 0; }
  std::vector<Statistic> statistics() const override {
    return {{"dram_bytes", 0, "bytes"},
            {"pool_bytes", 0, "bytes"},
            {"recovered_operations", 0, "operations"}};
  }

 private:
  Kind key_kind_;
  Kind value_kind_;
};

}  // namespace

std::unique_ptr<AnyIndex> make_null_index(Kind key_kind, Kind value_kind) {
  return std::make_unique<NullIndex>(key_kind, value_kind);
}

}  // namespace perdure::lab
