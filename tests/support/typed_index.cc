#include "support/typed_index.h"

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

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

Change TypedIndex::modify(uint64_t key, const Modify& change) const {
  return index_->modify(make_key(key_kind_, key).datum(), [&](const Value* before, Value& after) {
    std::optional<uint64_t> number;
    if (before != nullptr) number = value_number(before->datum()).value_or(kTorn);
    uint64_t wanted = 0;
    const Change what = change(number, wanted);
    after = make_value(value_kind_, wanted);
    return what;
  });
}

uint64_t TypedIndex::count(uint64_t key) const {
  uint64_t sum = 0;
  modify(key, [&](std::optional<uint64_t> before, uint64_t& after) {
    sum = after = before.value_or(0) + 1;
    return Change::kWrite;
  });
  return sum;
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
  std::vector<std::pair<uint64_t, uint64_t>> told;
  index.for_each([&](uint64_t key, uint64_t value) { told.emplace_back(key, value); });
  std::sort(told.begin(), told.end());
  auto expected = model.begin();
  for (size_t i = 0; i < told.size(); ++i) {
    const auto [key, value] = told[i];
    if (i > 0 && told[i - 1].first == key) {
      differences.add("for_each visits key ", key, " twice");
      continue;
    }
    for (; expected != model.end() && expected->first < key; ++expected) {
      differences.add("for_each does not visit key ", expected->first);
    }
    if (expected == model.end() || expected->first != key) {
      differences.add("for_each visits key ", key, ", which is not there");
      continue;
    }
    if (expected->second != value) {
      differences.add("for_each tells value ", value, " for key ", key, ", which has ",
                      expected->second);
    }
    ++expected;
  }
  for (; expected != model.end(); ++expected) {
    differences.add("for_each does not visit key ", expected->first);
  }

  uint64_t absent = 0;  // the next key that is not looked up yet
  const auto expect_absent_below = [&](uint64_t end) {
    for (; absent < end; ++absent) {
      const auto found = index.lookup(absent);
      if (found) differences.add("lookup finds value ", *found, " for absent key ", absent);
    }
  };
  for (const auto& [key, value] : model) {
    expect_absent_below(std::min(key, universe));
    absent = key + 1;
    const auto found = index.lookup(key);
    if (!found) {
      differences.add("lookup does not find key ", key, ", which has ", value);
    } else if (*found != value) {
      differences.add("lookup finds value ", *found, " for key ", key, ", which has ", value);
    }
  }
  expect_absent_below(universe);
  return differences.text();
}

}  // namespace perdure::test
