// Money moves between accounts: all of a transfer or nothing, durable when it returns.
//
//   bank [FOLDER]
#include <cstdio>
#include <string>

#include "perdure/database.h"

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "/tmp";
  std::remove((folder + "/bank.pool").c_str());
  std::remove((folder + "/bank.pages").c_str());
  try {
    perdure::Pool pool = perdure::Pool::create(folder + "/bank.pool");
    perdure::Database bank =
        perdure::Database::create(pool, "bank", {.page_file = folder + "/bank.pages"});
    const perdure::Tree accounts = bank.tree("accounts");
    bank.transact([&](perdure::Transaction& transaction) {
      transaction.put(accounts, "alice", "100");
      transaction.put(accounts, "bob", "20");
    });
    bank.transact([&](perdure::Transaction& transaction) {
      const int alice = std::stoi(*transaction.get(accounts, "alice"));
      const int bob = std::stoi(*transaction.get(accounts, "bob"));
      transaction.put(accounts, "alice", std::to_string(alice - 30));
      transaction.put(accounts, "bob", std::to_string(bob + 30));
    });
    perdure::Transaction reading = bank.begin();
    perdure::Cursor cursor = reading.cursor(accounts);
    for (bool more = cursor.seek_first(); more; more = cursor.next()) {
      std::printf("%s has %s\n", std::string(cursor.key()).c_str(),
                  std::string(cursor.value()).c_str());
    }
  } catch (const perdure::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
