#include "lab/study/buffer/tpcc.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <vector>

#include "common/permutation.h"
#include "perdure/error.h"

namespace perdure::lab::study {
namespace {

// Rows: what transactions use, and the rest as bytes that are carried along. Money in cents.
struct WarehouseRow {
  int64_t ytd;
  int32_t tax;
  char rest[84];
};
struct DistrictRow {
  int64_t ytd;
  int32_t tax;
  uint32_t next_order;
  char rest[96];
};
struct CustomerRow {
  int64_t balance;
  int64_t paid;
  uint32_t payments;
  int32_t discount;
  char rest[632];
};
struct HistoryRow {
  int64_t amount;
  uint64_t commit;
  uint32_t terminal;
  char rest[28];
};
struct OrderRow {
  uint64_t commit;
  uint32_t terminal;
  uint32_t customer;
  uint32_t lines;
  char rest[12];
};
struct OrderLineRow {
  int64_t amount;
  uint32_t item;
  uint32_t supplier;
  uint32_t quantity;
  char rest[36];
};
struct ItemRow {
  int64_t price;
  char rest[74];
};
struct StockRow {
  int64_t ytd;
  int32_t quantity;
  uint32_t orders;
  uint32_t remote;
  char rest[286];
};

template <typename Row>
std::string_view bytes_of(const Row& row) {
  return {reinterpret_cast<const char*>(&row), sizeof row};
}

template <typename Row>
Row row_of(std::string_view bytes) {
  Row row;
  if (bytes.size() != sizeof row)
    throw Error(ErrorCode::kCorrupt, "a row of TPC-C has another size");
  std::memcpy(static_cast<void*>(&row), bytes.data(), sizeof row);
  return row;
}

// Numbers, big-endian, so that keys sort as they do.
class RowKey {
 public:
  template <typename... Numbers>
  explicit RowKey(Numbers... numbers) {
    (add(numbers), ...);
  }
  operator std::string_view() const { return {bytes_.data(), size_}; }

 private:
  void add(uint32_t number) { append(__builtin_bswap32(number)); }
  void add(uint64_t number) { append(__builtin_bswap64(number)); }
  template <typename Word>
  void append(Word word) {
    std::memcpy(bytes_.data() + size_, &word, sizeof word);
    size_ += sizeof word;
  }
  std::array<char, 32> bytes_{};
  size_t size_ = 0;
};

uint32_t number_at(std::string_view key, size_t place) {
  uint32_t number = 0;
  if (key.size() < (place + 1) * sizeof number)
    throw Error(ErrorCode::kCorrupt, "a key of TPC-C has another size");
  std::memcpy(&number, key.data() + place * sizeof number, sizeof number);
  return __builtin_bswap32(number);
}

template <typename Row>
Row must_get(TransactionalStore::Transaction& transaction, unsigned table, const RowKey& key,
             bool to_change) {
  thread_local std::string value;
  if (!(to_change ? transaction.get_to_change(table, key, value)
                  : transaction.get(table, key, value))) {
    throw Error(ErrorCode::kCorrupt, fmt::format("a row of TPC-C's table {} is missing", table));
  }
  return row_of<Row>(value);
}

constexpr int64_t kWarehouseYtd = 30'000'000;
constexpr uint32_t kNoItem = 0;  // items count from 1, as all others

// Puts many rows, some hundred to a transaction.
class Loader {
 public:
  explicit Loader(TransactionalStore& store) : store_(store) {}
  template <typename Row>
  void put(unsigned table, const RowKey& key, const Row& row) {
    rows_.push_back({table, std::string(key), std::string(bytes_of(row))});
    if (rows_.size() >= 200) flush();
  }
  void flush() {
    store_.write([&](TransactionalStore::Transaction& transaction) {
      for (const Put& each : rows_) transaction.put(each.table, each.key, each.value);
    });
    rows_.clear();
  }

 private:
  struct Put {
    unsigned table;
    std::string key;
    std::string value;
  };
  TransactionalStore& store_;
  std::vector<Put> rows_;
};

struct Unused {};  // ends a new order with an item that does not exist

}  // namespace

void Tpcc::load(TransactionalStore& store) const {
  Loader loader(store);
  const auto filled = [](auto row) {
    std::fill(std::begin(row.rest), std::end(row.rest), 'r');
    return row;
  };
  for (uint32_t i = 1; i <= size_.items; ++i) {
    const auto price = static_cast<int64_t>(100 + mix_word(i) % 9900);
    loader.put(kItem, RowKey(i), filled(ItemRow{price, {}}));
  }
  for (uint32_t w = 1; w <= size_.warehouses; ++w) {
    const int64_t district_ytd = kWarehouseYtd / size_.districts;
    loader.put(kWarehouse, RowKey(w), filled(WarehouseRow{district_ytd * size_.districts, 12, {}}));
    for (uint32_t i = 1; i <= size_.items; ++i) {
      const auto quantity = static_cast<int32_t>(10 + mix_word(i ^ w << 20) % 91);
      loader.put(kStock, RowKey(w, i), filled(StockRow{0, quantity, 0, 0, {}}));
    }
    for (uint32_t d = 1; d <= size_.districts; ++d) {
      loader.put(kDistrict, RowKey(w, d), filled(DistrictRow{district_ytd, 15, 1, {}}));
      for (uint32_t c = 1; c <= size_.customers; ++c)
        loader.put(kCustomer, RowKey(w, d, c), filled(CustomerRow{0, 0, 0, 20, {}}));
    }
  }
  loader.flush();
}

uint32_t Tpcc::Terminal::below(uint32_t bound) {
  word_ = mix_word(word_ + 0x5bd1e995);
  return static_cast<uint32_t>((word_ >> 32) * bound >> 32);
}

// NURand of the specification, 1 to count.
uint32_t Tpcc::Terminal::skewed(uint32_t mask, uint32_t count) {
  return ((below(mask + 1) | below(count)) + 42) % count + 1;
}

Tpcc::Terminal::Done Tpcc::Terminal::run(TransactionalStore& store) {
  if (below(88) < 45) return new_order(store) ? Done::kNewOrder : Done::kNone;
  payment(store);
  return Done::kPayment;
}

bool Tpcc::Terminal::new_order(TransactionalStore& store) {
  struct Line {
    uint32_t item;
    uint32_t supplier;
    uint32_t quantity;
  };
  const uint32_t w = below(size_.warehouses) + 1;
  const uint32_t d = below(size_.districts) + 1;
  const uint32_t c = skewed(1023, size_.customers);
  std::vector<Line> lines(5 + below(11));
  for (Line& line : lines) {
    line.item = skewed(8191, size_.items);
    line.supplier = below(100) == 0 ? below(size_.warehouses) + 1 : w;
    line.quantity = below(10) + 1;
  }
  if (below(100) == 0) lines.back().item = kNoItem;
  // In one order for all, so that locks do not meet crosswise.
  std::ranges::sort(lines, {}, [](const Line& line) {
    return std::pair(line.supplier, line.item == kNoItem ? ~0U : line.item);
  });
  try {
    store.write([&](TransactionalStore::Transaction& one) {
      const auto warehouse = must_get<WarehouseRow>(one, kWarehouse, RowKey(w), false);
      auto district = must_get<DistrictRow>(one, kDistrict, RowKey(w, d), true);
      const auto customer = must_get<CustomerRow>(one, kCustomer, RowKey(w, d, c), false);
      const uint32_t number = district.next_order++;
      one.put(kDistrict, RowKey(w, d), bytes_of(district));
      OrderRow order{committed_ + 1, number_, c, static_cast<uint32_t>(lines.size()), {}};
      one.put(kOrder, RowKey(w, d, number), bytes_of(order));
      one.put(kNewOrder, RowKey(w, d, number), std::string_view("new"));
      for (uint32_t i = 0; i < lines.size(); ++i) {
        const Line& line = lines[i];
        if (line.item == kNoItem) throw Unused{};
        const auto item = must_get<ItemRow>(one, kItem, RowKey(line.item), false);
        auto stock = must_get<StockRow>(one, kStock, RowKey(line.supplier, line.item), true);
        const auto quantity = static_cast<int32_t>(line.quantity);
        stock.quantity += stock.quantity >= quantity + 10 ? -quantity : 91 - quantity;
        stock.ytd += quantity;
        ++stock.orders;
        if (line.supplier != w) ++stock.remote;
        one.put(kStock, RowKey(line.supplier, line.item), bytes_of(stock));
        const int64_t amount = item.price * quantity * (100 - customer.discount) / 100 *
                               (100 + warehouse.tax + district.tax) / 100;
        const OrderLineRow row{amount, line.item, line.supplier, line.quantity, {}};
        one.put(kOrderLine, RowKey(w, d, number, i), bytes_of(row));
      }
    });
  } catch (const Unused&) {
    return false;
  }
  ++committed_;
  return true;
}

void Tpcc::Terminal::payment(TransactionalStore& store) {
  const uint32_t w = below(size_.warehouses) + 1;
  const uint32_t d = below(size_.districts) + 1;
  // One in seven or so at another warehouse.
  const uint32_t of = below(100) < 15 ? below(size_.warehouses) + 1 : w;
  const uint32_t c = skewed(1023, size_.customers);
  const auto amount = int64_t{100} + below(499'901);
  store.write([&](TransactionalStore::Transaction& one) {
    auto warehouse = must_get<WarehouseRow>(one, kWarehouse, RowKey(w), true);
    warehouse.ytd += amount;
    one.put(kWarehouse, RowKey(w), bytes_of(warehouse));
    auto district = must_get<DistrictRow>(one, kDistrict, RowKey(w, d), true);
    district.ytd += amount;
    one.put(kDistrict, RowKey(w, d), bytes_of(district));
    auto customer = must_get<CustomerRow>(one, kCustomer, RowKey(of, d, c), true);
    customer.balance -= amount;
    customer.paid += amount;
    ++customer.payments;
    one.put(kCustomer, RowKey(of, d, c), bytes_of(customer));
    const HistoryRow history{amount, committed_ + 1, number_, {}};
    one.put(kHistory, RowKey(of, d, c, number_, committed_ + 1), bytes_of(history));
  });
  ++committed_;
}

uint64_t Tpcc::check(TransactionalStore& store,
                     const std::function<void(const std::string&)>& report) const {
  uint64_t problems = 0;
  const auto require = [&](bool holds, const std::string& sentence) {
    if (holds) return;
    ++problems;
    report(sentence);
  };
  struct District {
    int64_t ytd = 0;
    uint32_t next_order = 1;
    uint64_t orders = 0;
    uint64_t new_orders = 0;
    uint64_t lines_told = 0;
    uint64_t lines = 0;
    uint32_t last = 0;
  };
  std::map<uint32_t, int64_t> warehouses;
  std::map<std::pair<uint32_t, uint32_t>, District> districts;
  const auto district_of = [&](std::string_view key) -> District& {
    return districts[{number_at(key, 0), number_at(key, 1)}];
  };
  store.scan(kWarehouse, [&](std::string_view key, std::string_view value) {
    warehouses[number_at(key, 0)] = row_of<WarehouseRow>(value).ytd;
  });
  store.scan(kDistrict, [&](std::string_view key, std::string_view value) {
    const auto row = row_of<DistrictRow>(value);
    district_of(key).ytd = row.ytd;
    district_of(key).next_order = row.next_order;
  });
  store.scan(kOrder, [&](std::string_view key, std::string_view value) {
    District& district = district_of(key);
    ++district.orders;
    district.last = std::max(district.last, number_at(key, 2));
    district.lines_told += row_of<OrderRow>(value).lines;
  });
  store.scan(kNewOrder,
             [&](std::string_view key, std::string_view) { ++district_of(key).new_orders; });
  store.scan(kOrderLine, [&](std::string_view key, std::string_view) { ++district_of(key).lines; });
  int64_t paid = 0;
  store.scan(kCustomer, [&](std::string_view, std::string_view value) {
    const auto row = row_of<CustomerRow>(value);
    paid += row.paid;
    require(row.balance == -row.paid, "a customer's balance is not what was paid");
  });
  int64_t history = 0;
  store.scan(kHistory, [&](std::string_view, std::string_view value) {
    history += row_of<HistoryRow>(value).amount;
  });
  int64_t received = 0;
  std::map<uint32_t, int64_t> sums;
  for (const auto& [at, district] : districts) {
    sums[at.first] += district.ytd;
    const std::string name = fmt::format("district {} of warehouse {}", at.second, at.first);
    require(district.orders == district.next_order - 1 && district.last == district.orders &&
                district.new_orders == district.orders,
            fmt::format("{} has {} orders, {} new ones, the last is {}, the next {}", name,
                        district.orders, district.new_orders, district.last, district.next_order));
    require(district.lines == district.lines_told,
            fmt::format("{} has {} order lines of {}", name, district.lines, district.lines_told));
  }
  const int64_t begin = kWarehouseYtd / size_.districts * size_.districts;
  for (const auto& [number, ytd] : warehouses) {
    require(ytd == sums[number],
            fmt::format("warehouse {} has {} and its districts {}", number, ytd, sums[number]));
    received += ytd - begin;
  }
  require(warehouses.size() == size_.warehouses, "warehouses are missing");
  require(received == paid && paid == history,
          fmt::format("warehouses received {}, customers paid {}, the history has {}", received,
                      paid, history));
  return problems;
}

void Tpcc::visit_commits(
    TransactionalStore& store,
    const std::function<void(uint32_t terminal, uint64_t commit)>& visit) const {
  store.scan(kOrder, [&](std::string_view, std::string_view value) {
    const auto row = row_of<OrderRow>(value);
    visit(row.terminal, row.commit);
  });
  store.scan(kHistory, [&](std::string_view, std::string_view value) {
    const auto row = row_of<HistoryRow>(value);
    visit(row.terminal, row.commit);
  });
}

}  // namespace perdure::lab::study
