// A small database in a small pool, and what it must hold.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "perdure/database.h"
#include "pm/pool_impl.h"
#include "support/random.h"

namespace perdure::test {

using Records = std::map<std::string, std::string>;

inline PoolOptions small_pool(uint64_t capacity_bytes = uint64_t{8} << 20) {
  PoolOptions options;
  options.capacity_bytes = capacity_bytes;
  options.growth_bytes = uint64_t{1} << 20;
  options.force_domain = true;
  options.domain = Domain::kLine;
  options.seal_on_close = false;
  return options;
}

// Few frames, so that pages come and go, and a short log, so that it is let go of.
inline DatabaseOptions small_database() {
  DatabaseOptions options;
  options.dram_bytes = uint64_t{24} * 4096;
  options.pm_bytes = uint64_t{40} * 4096;
  options.log_bytes = uint64_t{1} << 20;
  options.pages_max = 1024;
  options.background = false;
  return options;
}

inline Records contents_of(Database& database, const Tree& tree) {
  Records records;
  Transaction transaction = database.begin();
  Cursor cursor = transaction.cursor(tree);
  for (bool more = cursor.seek_first(); more; more = cursor.next()) {
    records.emplace(cursor.key(), cursor.value());
  }
  return records;
}

// Where two contents differ first, in words; empty: nowhere.
inline std::string difference(const Records& there, const Records& wanted) {
  for (const auto& [key, value] : wanted) {
    const auto found = there.find(key);
    if (found == there.end()) return "'" + key + "' is missing";
    if (found->second != value) return "'" + key + "' has another value";
  }
  for (const auto& [key, value] : there) {
    if (!wanted.contains(key)) return "'" + key + "' is there";
  }
  return "";
}

inline void expect_sound(const Database& database) {
  database.check([](const std::string& sentence) { ADD_FAILURE() << sentence; });
}

inline double statistic(const Database& database, const std::string& name) {
  for (const Statistic& one : database.statistics()) {
    if (one.name == name) return one.value;
  }
  ADD_FAILURE() << "no statistic " << name;
  return 0;
}

// Random writes, of short keys with a common beginning and of long ones, of short values and of
// such as need pages of their own.
class RandomWrites {
 public:
  RandomWrites(Random& random, uint64_t keys, uint64_t long_percent = 2)
      : random_(random), keys_(keys), long_percent_(long_percent) {}

  std::string key() {
    const uint64_t n = random_.below(keys_);
    std::string key = (n % 7 == 0 ? "accounts/of/somebody/" : "k") + std::to_string(n * 7919);
    if (n % 31 == 0) key += std::string(n % 400, 'x');
    return key;
  }
  std::string value() {
    const uint64_t bytes =
        random_.chance(long_percent_) ? random_.below(20'000) : random_.below(120);
    std::string value(bytes, static_cast<char>('a' + random_.below(26)));
    for (size_t i = 0; i < value.size(); i += 97) value[i] = static_cast<char>(random_.next());
    return value;
  }
  // One write, to both.
  void write(Transaction& transaction, const Tree& tree, Records& model, uint64_t erase_percent) {
    const std::string key = this->key();
    if (random_.chance(erase_percent)) {
      EXPECT_EQ(transaction.erase(tree, key), model.erase(key) > 0) << key;
    } else {
      const std::string value = this->value();
      transaction.put(tree, key, value);
      model[key] = value;
    }
  }

 private:
  Random& random_;
  uint64_t keys_;
  uint64_t long_percent_;
};

}  // namespace perdure::test
