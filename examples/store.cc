// A small address book in a store: versions, numbers, expiry and batches.
//
//   store /dev/shm/people.pool
#include <perdure/store.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: store POOL\n";
    return 2;
  }
  try {
    const std::string path = argv[1];
    const bool there = std::filesystem::exists(path);
    perdure::Pool pool = there ? perdure::Pool::open(path) : perdure::Pool::create(path);
    perdure::Store store =
        there ? perdure::Store::open(pool, "people") : perdure::Store::create(pool, "people");

    std::cout << "run " << store.increment("runs") << ", " << store.size() << " records\n";

    // Written only if nobody else was quicker.
    store.insert("ada", "London");
    std::string town;
    uint64_t version = 0;
    if (store.get("ada", town, &version)) {
      const bool swapped = store.compare_and_swap("ada", version, town + "!");
      std::cout << "ada lives in " << town << (swapped ? "" : " (and has moved)") << '\n';
    }

    // Two writes, one fence.
    perdure::Store::Batch batch;
    batch.put("grace", "New York");
    batch.remove("nobody");
    store.apply(batch);

    // Gone in an hour.
    store.put("session", "ada", std::chrono::system_clock::now() + std::chrono::hours(1));

    store.for_each([](std::string_view key, std::string_view value) {
      std::cout << "  " << key << " = " << value << '\n';
    });
    return 0;
  } catch (const perdure::Error& error) {
    std::cerr << "store: " << error.what() << '\n';
    return 1;
  }
}
