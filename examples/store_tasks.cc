// Many transfers between accounts, as tasks on the workers of a store: each reads, decides and
// swaps, and tries again if another one was quicker. Those that wait hold no thread, and share
// fences.
//
//   store_tasks /dev/shm/accounts.pool
#include <perdure/store.h>

#include <filesystem>
#include <iostream>
#include <optional>
#include <string>

namespace {

constexpr int kAccounts = 100;

std::string account(int number) { return "account/" + std::to_string(number % kAccounts); }

perdure::Task<void> add(perdure::Store& store, std::string account, int64_t amount) {
  for (;;) {
    uint64_t version = 0;
    const std::optional<std::string> balance = co_await store.async_get(account, &version);
    const std::string sum = std::to_string(std::stoll(balance.value_or("0")) + amount);
    const bool done = balance ? co_await store.async_compare_and_swap(account, version, sum)
                              : co_await store.async_insert(account, sum);
    if (done) co_return;
  }
}

perdure::Task<void> transfer(perdure::Store& store, int from, int to, int64_t amount) {
  co_await add(store, account(from), -amount);
  co_await add(store, account(to), amount);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: store_tasks POOL\n";
    return 2;
  }
  try {
    const std::string path = argv[1];
    const bool there = std::filesystem::exists(path);
    const perdure::StoreOptions options = {.workers = 2};
    perdure::Pool pool = there ? perdure::Pool::open(path) : perdure::Pool::create(path);
    {
      perdure::Store store = there ? perdure::Store::open(pool, "accounts", options)
                                   : perdure::Store::create(pool, "accounts", options);
      for (int i = 0; i < 10'000; ++i) store.spawn(transfer(store, i, i * 7 + 1, i % 10));
      // The store's end waits for all of them.
    }
    const perdure::Store store = perdure::Store::open(pool, "accounts");
    int64_t sum = 0;
    store.for_each([&](std::string_view, std::string_view balance) {
      sum += std::stoll(std::string(balance));
    });
    std::cout << store.size() << " accounts, " << sum << " in all\n";
    return sum == 0 ? 0 : 1;
  } catch (const perdure::Error& error) {
    std::cerr << "store_tasks: " << error.what() << '\n';
    return 1;
  }
}
