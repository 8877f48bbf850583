// A medium that refuses a persist (EIO), at any point: the pool stops, loses nothing that was
// acknowledged, answers right or refuses, and can be closed and opened again.
#include "support/failing_medium.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "pm/memory.h"
#include "support/child.h"
#include "support/scale.h"
#include "support/scenario.h"
#include "support/workload.h"

namespace perdure::test {
namespace {

// PERDURE_EIO=all: every persist of the workload is refused in turn.
bool refuse_all() {
  const char* text = std::getenv("PERDURE_EIO");
  return text != nullptr && std::string_view(text) == "all";
}
constexpr uint64_t kPersistsOfEach = 2;  // about as many of one operation otherwise

constexpr uint64_t kKeys = 400;
constexpr uint64_t kOperations = 750;
constexpr uint64_t kBatch = 20;

constexpr char kClose[] = "a clean close";
constexpr char kInserts[] = "a batch of inserts";
constexpr char kUpserts[] = "a batch of upserts";
constexpr char kOpen[] = "opening";

using Operations = std::vector<Operation>;

class FailingMediumTest : public ScenarioTest {
 protected:
  static constexpr uint64_t kCapacityBytes = uint64_t{32} << 20;

  // One run of the workload. In a child of the medium it ends with what the child found.
  void run(FailingMedium& medium) {
    model_.clear();
    lengths_.clear();
    random_ = Random(base_seed());
    std::filesystem::remove(pool_path());
    std::optional<Store> store;
    store.emplace(Store{Pool::create(pool_path(), options(domain_)), nullptr});
    medium.begin();
    attempt(medium, store, "the creation of a structure", {},
            [&] { store->index = create(*store); });
    write(medium, store, 70);
    attempt(medium, store, kClose, {}, [&] { close(store); });
    attempt(medium, store, kOpen, {}, [&] { open(store); });
    write(medium, store, 35);
    crash(medium, store);
    attempt(medium, store, "opening after a crash", {}, [&] { open(store); });
    write(medium, store, 50);
    attempt(medium, store, kClose, {}, [&] { close(store); });
  }

  static PoolOptions options(Domain domain) {
    PoolOptions options;
    options.capacity_bytes = kCapacityBytes;
    options.growth_bytes = uint64_t{256} << 10;
    options.force_domain = true;
    options.domain = domain;
    return options;
  }

  Domain domain_ = Domain::kPage;

  std::unique_ptr<AnyIndex> create(Store& store) const {
    const auto& [structure, key, value] = GetParam();
    OptionMap options = small_options(structure);
    options.merge(one_thread());
    return create_index(store.pool, kIndexName, structure, key, value, options);
  }

  void open(std::optional<Store>& store) {
    store.emplace(Store{Pool::open(pool_path(), options(domain_)), nullptr});
    store->index = open_index(store->pool, kIndexName, one_thread());
  }

  static void close(std::optional<Store>& store) {
    store->index.reset();
    store->pool.close();
    store.reset();
  }

  // Leaves the pool as the death of the process would.
  void crash(FailingMedium& medium, std::optional<Store>& store) {
    const std::string image = medium.make_image(FailingMedium::Image::kAll, 0);
    store.reset();
    std::filesystem::rename(image, pool_path());
    medium.begin();
  }

  // Single operations, of which `insert_percent` insert or change a key, and batches now and then.
  void write(FailingMedium& medium, std::optional<Store>& store, uint64_t insert_percent) {
    static const char* const kNames[] = {"an insert", "an update", "an upsert", "a removal"};
    for (uint64_t i = 0; i < kOperations / 3; ++i) {
      if (i % 50 == 49) {
        write_batch(medium, store, i % 100 == 49);
        continue;
      }
      const uint64_t key = random_.below(kKeys);
      const uint64_t dice = random_.below(3);
      const Verb verb = !random_.chance(insert_percent) ? Verb::kRemove
                        : dice == 0                     ? Verb::kUpdate
                        : dice == 1                     ? Verb::kUpsert
                                                        : Verb::kInsert;
      const Operation operation{verb, key, next_value_++};
      attempt(medium, store, kNames[static_cast<uint32_t>(verb)], {operation},
              [&] { perform(store->typed(), operation); });
    }
  }

  void write_batch(FailingMedium& medium, std::optional<Store>& store, bool inserts) {
    Operations operations;
    std::set<uint64_t> keys;
    while (operations.size() < kBatch) {
      const uint64_t key = random_.below(kKeys);
      if (!keys.insert(key).second) continue;
      operations.push_back({inserts ? Verb::kInsert : Verb::kUpsert, key, next_value_++});
    }
    std::vector<Value> data;
    for (const Operation& one : operations) {
      data.push_back(key(one.key));
      data.push_back(value(one.value));
    }
    std::vector<AnyRecord> records;
    for (size_t i = 0; i < data.size(); i += 2)
      records.push_back({data[i].datum(), data[i + 1].datum()});
    bool inserted[kBatch] = {};
    attempt(
        medium, store, inserts ? kInserts : kUpserts, operations,
        [&] {
          if (inserts) {
            store->index->multi_insert(records, inserted);
          } else {
            store->index->multi_upsert(records);
          }
        },
        inserted);
  }

  // Does `body`, which performs `operations`. In the parent: notes how often it persists. In a
  // child born in it: judges, and ends the process. `acknowledged`: by operation, what a call that
  // threw has acknowledged all the same.
  void attempt(FailingMedium& medium, std::optional<Store>& store, const std::string& what,
               const Operations& operations, const std::function<void()>& body,
               const bool* acknowledged = nullptr) {
    const uint64_t first = medium.persists();
    medium.at(what);
    std::string wrong;
    bool threw = false;
    try {
      body();
    } catch (const Error& error) {
      if (!medium.refused()) throw;
      threw = true;
      if (error.code() != ErrorCode::kIo) wrong = std::string("it throws: ") + error.what() + "\n";
    } catch (const std::exception& error) {
      if (!medium.refused()) throw;
      threw = true;
      wrong = std::string("it throws: ") + error.what() + "\n";
    }
    Operations in_flight;
    for (size_t i = 0; i < operations.size(); ++i) {
      if (threw && (acknowledged == nullptr || !acknowledged[i])) {
        in_flight.push_back(operations[i]);
        continue;
      }
      const uint64_t key = operations[i].key;
      assign(model_, key, after(operations[i], value_in(model_, key)));
    }
    if (medium.refused()) {
      // The mark that says so is what was to be persisted, when all else was; or to be taken away.
      const bool may_be_clean = what == kClose || what == kOpen;
      wrong += judge(medium, store, in_flight, may_be_clean);
      if (!wrong.empty()) {
        wrong = "during " + what + (threw ? "" : ", which is acknowledged") + ": " + wrong;
      }
      medium.report(wrong);
    }
    lengths_.push_back({what, first, medium.persists() - first});
  }

  // In a child: what is wrong with the pool that stopped, and with what it left.
  std::string judge(FailingMedium& medium, std::optional<Store>& store, const Operations& in_flight,
                    bool may_be_clean) {
    std::string wrong;
    if (store && store->index) {
      medium.at("writing to the stopped pool");
      wrong += refuses_writes(*store);
      medium.at("reading the stopped pool");
      wrong += reads_right_or_refuses(*store, in_flight);
    }
    if (store) {
      medium.at("closing the stopped pool");
      store->index.reset();
      try {
        store->pool.close();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kIo) wrong += std::string("closing: ") + error.what() + "\n";
      }
      store.reset();
    }
    medium.mend();
    static constexpr std::pair<FailingMedium::Image, const char*> kImages[] = {
        {FailingMedium::Image::kAll, "with every store on the medium"},
        {FailingMedium::Image::kLeast, "with only what was durable on the medium"},
        {FailingMedium::Image::kMixed, "with some lines on the medium"}};
    for (const auto& [image, name] : kImages) {
      if (image != FailingMedium::Image::kAll && domain_ == Domain::kByte) break;
      medium.at(name);
      const std::string path = medium.make_image(image, medium.refused_number());
      std::string text;
      try {
        text = inspect(path, in_flight, may_be_clean);
      } catch (const std::exception& error) {
        text = error.what() + std::string("\n");
      }
      if (!text.empty()) wrong += std::string(name) + ": " + text;
    }
    return wrong;
  }

  std::string refuses_writes(Store& store) {
    std::string wrong;
    const auto refused = [&](const char* what, const std::function<void()>& call) {
      try {
        call();
        wrong += std::string(what) + " is not refused afterwards\n";
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kIo) return;
        wrong += std::string(what) + " afterwards throws " + error.what() + "\n";
      }
    };
    const TypedIndex index = store.typed();
    const uint64_t absent = kKeys + 7;
    refused("an insert", [&] { index.insert(absent, 1); });
    refused("an upsert", [&] { index.upsert(absent, 1); });
    if (!model_.empty()) {
      const uint64_t present = model_.begin()->first;
      refused("an update", [&] { index.update(present, 1); });
      refused("a removal", [&] { index.remove(present); });
    }
    return wrong;
  }

  // What a lookup may find of this key.
  std::set<std::optional<uint64_t>> may_find(uint64_t key, const Operations& in_flight) const {
    std::set<std::optional<uint64_t>> values = {value_in(model_, key)};
    for (const Operation& one : in_flight) {
      if (one.key == key) values.insert(after(one, value_in(model_, key)));
    }
    return values;
  }

  std::string reads_right_or_refuses(Store& store, const Operations& in_flight) const {
    std::string wrong;
    uint64_t count = 0;
    const auto say = [&](const std::string& text) {
      if (++count <= 3) wrong += text + "\n";
    };
    for (uint64_t key = 0; key < kKeys; ++key) {
      try {
        const auto found = store.typed().lookup(key);
        if (!may_find(key, in_flight).contains(found)) {
          say("afterwards a lookup of key " + std::to_string(key) + " finds " +
              (found ? std::to_string(*found) : "nothing"));
        }
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kIo) say(std::string("a lookup throws ") + error.what());
      }
    }
    try {
      std::map<uint64_t, uint64_t> told;
      store.typed().for_each([&](uint64_t key, uint64_t value) {
        if (!told.emplace(key, value).second) say("for_each visits a key twice");
      });
      for (uint64_t key = 0; key < kKeys; ++key) {
        if (!may_find(key, in_flight).contains(value_in(told, key))) {
          say("afterwards for_each is wrong about key " + std::to_string(key));
        }
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIo) say(std::string("for_each throws ") + error.what());
    }
    return wrong;
  }

  // What is wrong with an image when it is opened on a good medium, written to, and opened again.
  std::string inspect(const std::string& path, const Operations& in_flight,
                      bool may_be_clean) const {
    std::string wrong;
    Model model = model_;
    for (int round = 0; round < 2 && wrong.empty(); ++round) {
      Store store{Pool::open(path, options(domain_)), nullptr};
      if (round == 0 && store.pool.info().clean && !may_be_clean) {
        wrong += "it is taken for a clean close\n";
      }
      if (store.pool.structures().empty()) {
        if (!model.empty() || round > 0) return wrong + "the structure is gone\n";
        wrong += faults_and_leaks(store.pool, {});
        store.index = create(store);
      } else {
        store.index = open_index(store.pool, kIndexName, one_thread());
      }
      if (round == 0) {
        wrong += settle(model, in_flight, fates(store.typed(), model, in_flight));
      }
      wrong += difference(store.typed(), model, kKeys);
      wrong += faults_and_leaks(store.pool, {store.index.get()});
      if (wrong.empty() && round == 0) write_on(store, model);
      store.close();
    }
    return wrong;
  }

  static void write_on(Store& store, Model& model) {
    Random random(base_seed());
    for (uint64_t i = 0; i < kKeys / 4; ++i) {
      const uint64_t key = random.below(kKeys);
      const Operation operation{random.chance(70) ? Verb::kUpsert : Verb::kRemove, key, i};
      perform(store.typed(), operation);
      assign(model, key, after(operation, value_in(model, key)));
    }
  }

  // How often each attempt of a run persisted, in order.
  struct Length {
    std::string what;
    uint64_t first;  // its first persist
    uint64_t persists;
  };

  // The persists to refuse: all, or some of one operation of each kind and length. What differs in
  // length splits, grows or drains; batches all differ.
  std::set<uint64_t> choice() const {
    std::map<std::pair<std::string, uint64_t>, std::vector<const Length*>> alike;
    for (const Length& one : lengths_) {
      const bool batch = one.what == kInserts || one.what == kUpserts;
      alike[{one.what, batch ? 0 : one.persists}].push_back(&one);
    }
    Random random(base_seed());
    std::set<uint64_t> numbers;
    const auto choose = [&](const Length& one) {
      const uint64_t step = refuse_all() ? 1 : one.persists / rounds(kPersistsOfEach) + 1;
      for (uint64_t n = random.below(step); n < one.persists; n += step) {
        numbers.insert(one.first + n);
      }
    };
    for (const auto& [kind, lengths] : alike) {
      if (!refuse_all()) {
        choose(*lengths[random.below(lengths.size())]);
        continue;
      }
      for (const Length* one : lengths) choose(*one);
    }
    return numbers;
  }

  void refuse_in_turn(Domain domain) {
    domain_ = domain;
    pm::prefers_nontemporal_lines();  // the first call in a process persists, on a stopwatch
    {
      FailingMedium medium(pool_path(), domain);
      next_value_ = 1;
      run(medium);
    }
    const std::set<uint64_t> chosen = choice();
    FailingMedium medium(pool_path(), domain);
    medium.refuse([&](uint64_t n) { return chosen.contains(n); },
                  [](uint64_t n) { return n % 2 == 1; });
    next_value_ = 1;
    run(medium);
    EXPECT_GE(medium.children(), scaled(4));
    if (!medium.findings().empty()) ADD_FAILURE() << medium.findings();
  }

  Model model_;
  std::vector<Length> lengths_;
  uint64_t next_value_ = 1;
};

TEST_P(FailingMediumTest, APersistOfPagesThatIsRefusedStopsThePoolAndLosesNothing) {
  refuse_in_turn(Domain::kPage);
}

TEST_P(FailingMediumTest, APersistOfLinesThatIsRefusedStopsThePoolAndLosesNothing) {
  refuse_in_turn(Domain::kLine);
}

TEST_P(FailingMediumTest, AFenceThatIsRefusedStopsThePoolAndLosesNothing) {
  refuse_in_turn(Domain::kByte);
}

INSTANTIATE_TEST_SUITE_P(Catalog, FailingMediumTest, wanted(all_cases()), by_turns());

class FailingMediumConcurrent : public FailingMediumTest {
 protected:
  static constexpr uint32_t kThreads = 4;

  // In a child: writes on several threads until the medium refuses persist `n`, then judges.
  std::string write_and_judge(uint64_t n) {
    FailingMedium medium(pool_path(), domain_);
    std::optional<Store> store;
    store.emplace(Store{Pool::create(pool_path(), options(domain_)), nullptr});
    store->index = create(*store);
    medium.begin();
    medium.refuse_here(n, n % 2 == 1);
    const Workload workload{base_seed() + n, kThreads, kKeys, 1};
    std::vector<Model> models(kThreads);
    std::vector<std::optional<Operation>> in_flight(kThreads);
    std::vector<std::string> wrong(kThreads);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        OperationStream stream(workload, t);
        try {
          for (uint64_t i = 0; i < kOperationsMax; ++i) {
            in_flight[t] = stream.next();
            perform(store->typed(), *in_flight[t]);
            const uint64_t key = in_flight[t]->key;
            assign(models[t], key, after(*in_flight[t], value_in(models[t], key)));
            in_flight[t].reset();
          }
        } catch (const std::exception& error) {
          const auto* known = dynamic_cast<const Error*>(&error);
          if (known != nullptr && known->code() == ErrorCode::kIo) return;
          wrong[t] = std::string("a write throws ") + error.what() + "\n";
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (!medium.refused()) return "no persist was refused\n";
    Operations all_in_flight;
    std::string text;
    for (uint32_t t = 0; t < kThreads; ++t) {
      model_.insert(models[t].begin(), models[t].end());
      if (in_flight[t]) all_in_flight.push_back(*in_flight[t]);
      text += wrong[t];
    }
    return text + judge(medium, store, all_in_flight, false);
  }

  static constexpr uint64_t kOperationsMax = 20'000;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FailingMediumConcurrent);

// A thread that is refused must not keep what others wait for.
TEST_P(FailingMediumConcurrent, EveryThreadStopsAndNothingIsLost) {
  for (uint64_t round = 0; round < std::max<uint64_t>(2, rounds(3)); ++round) {
    domain_ = round % 2 == 0 ? Domain::kLine : Domain::kPage;
    const uint64_t n = random_.below(uint64_t{1} << (3 + random_.below(8)));
    std::filesystem::remove(pool_path());
    Child child([&](int out) {
      ::alarm(kUnderAddressSanitizer ? 60 : 20);
      const std::string text = write_and_judge(n);
      send(out, text.data(), text.size());
    });
    const std::string text = child.receive_rest();
    const int status = child.wait();
    ASSERT_TRUE(text.empty() && status == 0)
        << "persist " << n << " refused in domain " << to_string(domain_) << ": " << text
        << (status == -SIGALRM ? "it hangs" : "status " + std::to_string(status));
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, FailingMediumConcurrent,
                         testing::ValuesIn(kUnderThreadSanitizer ? std::vector<Case>{}
                                                                 : concurrent_cases()),
                         case_name);

}  // namespace
}  // namespace perdure::test
