#include "support/typed_index.h"

#include <set>
#include <sstream>

namespace perdure::test {

namespace {

// Collects sentences, the first ten of them in full.
class Differences {
 public:
  template <typename... Parts>
  void add(const Parts&... parts) {
    if (++count_ > 10) return;
    (text_ << ... << parts) << '\n';
  }
  std::string text() const {
    if (count_ <= 10) return text_.str();
    return text_.str() + "and " + std::to_string(count_ - 10) + " more\n";
  }

 private:
  std::ostringstream text_;
  uint64_t count_ = 0;
};

}  // namespace

std::optional<uint64_t> TypedIndex::lookup(uint64_t key) const {
  // An absent key leaves `out` as it was: a value that no test writes.
  const std::string untouched = "untouched";
  Value out;
  out.set_bytes() = untouched;
  if (index_->lookup(make_key(key_kind_, key).datum(), out)) {
    if (out.kind() != value_kind_) return kTorn;
    return value_number(out.datum()).value_or(kTorn);
  }
  if (out.kind() != Kind::kBytes || out.bytes() != untouched) return kTorn;
  return std::nullopt;
}

void TypedIndex::for_each(const std::function<void(uint64_t, uint64_t)>& visit) const {
  index_->for_each([&](Datum key, Datum value) {
    const bool right_kinds = key.kind() == key_kind_ && value.kind() == value_kind_;
    visit(right_kinds ? key_number(key).value_or(kTorn) : kTorn,
          right_kinds ? value_number(value).value_or(kTorn) : kTorn);
  });
}

std::string difference(TypedIndex index, const Model& model, uint64_t universe) {
  Differences differences;
  std::set<uint64_t> seen;
  index.for_each([&](uint64_t key, uint64_t value) {
    const auto expected = model.find(key);
    if (expected == model.end()) {
      differences.add("for_each tells of key ", key, ", which is not there");
    } else if (expected->second != value) {
      differences.add("for_each tells value ", value, " for key ", key, ", which has ",
                      expected->second);
    }
    if (!seen.insert(key).second) differences.add("for_each tells of key ", key, " twice");
  });
  for (const auto& [key, value] : model) {
    if (!seen.contains(key)) differences.add("for_each does not tell of key ", key);
    const auto found = index.lookup(key);
    if (!found) {
      differences.add("lookup does not find key ", key, ", which has ", value);
    } else if (*found != value) {
      differences.add("lookup finds value ", *found, " for key ", key, ", which has ", value);
    }
  }
  for (uint64_t key = 0; key < universe; ++key) {
    if (model.contains(key)) continue;
    const auto found = index.lookup(key);
    if (found) differences.add("lookup finds value ", *found, " for absent key ", key);
  }
  return differences.text();
}

}  // namespace perdure::test
