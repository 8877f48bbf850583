// Point reads, single updates and TPC-C, on the database and on other stores on the same medium, in
// turns.
#include "lab/bench/peers.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>

#include "common/permutation.h"
#include "lab/study/buffer/database_store.h"
#include "lab/study/buffer/run.h"

namespace perdure::lab::study::buffer_pool {
namespace {

constexpr unsigned kRecords = Tpcc::kTables;  // the table beside those of TPC-C
constexpr uint64_t kPeerMemory = uint64_t{512} << 20;
constexpr uint64_t kPeerValueBytes = 100;

struct Peer {
  std::string name;
  std::unique_ptr<TransactionalStore> store;
  std::map<std::string, std::vector<double>> rates;
  uint32_t terminals = 0;
};

class PeerKey {
 public:
  explicit PeerKey(uint64_t record) : word_(__builtin_bswap64(record)) {}
  operator std::string_view() const {
    return {reinterpret_cast<const char*>(&word_), sizeof word_};
  }

 private:
  uint64_t word_;
};

std::unique_ptr<TransactionalStore> open_ours(const Course& course, const std::string& name,
                                              double dram_percent) {
  DatabaseOptions database;
  database.dram_bytes =
      static_cast<uint64_t>(static_cast<double>(kPeerMemory) / 100 * dram_percent);
  database.pm_bytes = kPeerMemory - database.dram_bytes;
  database.pm_frames = dram_percent < 100;
  database.log_bytes = uint64_t{64} << 20;
  // As the others are synced.
  return std::make_unique<DatabaseStore>(course.folder + "/" + name, database, kRecords + 1,
                                         2 * kPeerMemory, Durability::kPower);
}

std::vector<Peer> open_peers(const Course& course, json& notes) {
  std::vector<Peer> peers;
  peers.push_back({"database", open_ours(course, "database", 100), {}});
  peers.push_back({fmt::format("database, {}% DRAM", course.options.dram_percent),
                   open_ours(course, "shares", course.options.dram_percent),
                   {}});
  for (const char* module : {"rocksdb", "lmdb"}) {
    try {
      auto* open = reinterpret_cast<OpenTransactional*>(
          find_in_peer(module, kOpenTransactionalSymbol, module));
      peers.push_back(
          {module,
           std::unique_ptr<TransactionalStore>(open({.path = course.folder + "/" + module,
                                                     .tables = kRecords + 1,
                                                     .memory_bytes = kPeerMemory})),
           {}});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNotFound) throw;
      notes.push_back(error.what());
    }
  }
  return peers;
}

// Operations in a second, by all threads. `work` is what one thread does; it returns how many are
// done.
double rate_of(
    const BufferStudyOptions& options,
    const std::function<uint64_t(unsigned thread, const std::atomic<bool>& over)>& work) {
  std::atomic<bool> over{false};
  std::atomic<uint64_t> sum{0};
  std::vector<std::exception_ptr> failures(options.threads);
  std::vector<std::thread> threads;
  const auto begin = std::chrono::steady_clock::now();
  for (unsigned thread = 0; thread < options.threads; ++thread) {
    threads.emplace_back([&, thread] {
      try {
        sum += work(thread, over);
      } catch (...) {
        failures[thread] = std::current_exception();
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  over = true;
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return static_cast<double>(sum) /
         std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void load_peer(const BufferStudyOptions& options, const Tpcc& tpcc, Peer& peer) {
  const std::string value(kPeerValueBytes, 'v');
  for (uint64_t record = 0; record < options.peer_records;) {
    const uint64_t end = std::min(options.peer_records, record + 200);
    peer.store->write([&](TransactionalStore::Transaction& one) {
      for (uint64_t i = record; i < end; ++i) one.put(kRecords, PeerKey(i), value);
    });
    record = end;
  }
  tpcc.load(*peer.store);
}

void measure_peer(const BufferStudyOptions& options, const Tpcc& tpcc, uint64_t seed, Peer& peer) {
  const auto records = [&](unsigned thread, const std::atomic<bool>& over, const auto& work) {
    uint64_t word = mix_word(seed * 1000 + thread);
    uint64_t i = 0;
    for (; !over.load(std::memory_order_relaxed); ++i) {
      word = mix_word(word + i);
      work(word % options.peer_records);
    }
    return i;
  };
  peer.rates["reads"].push_back(rate_of(options, [&](unsigned thread, const auto& over) {
    std::string found;
    return records(thread, over, [&](uint64_t record) {
      peer.store->read([&](TransactionalStore::Transaction& one) {
        if (!one.get(kRecords, PeerKey(record), found))
          throw Error(ErrorCode::kCorrupt, fmt::format("{}: a record is missing", peer.name));
      });
    });
  }));
  peer.rates["updates"].push_back(rate_of(options, [&](unsigned thread, const auto& over) {
    std::string value(kPeerValueBytes, static_cast<char>('a' + seed % 26));
    return records(thread, over, [&](uint64_t record) {
      peer.store->write(
          [&](TransactionalStore::Transaction& one) { one.put(kRecords, PeerKey(record), value); });
    });
  }));
  const uint32_t first = peer.terminals;
  peer.terminals += options.threads;
  std::atomic<uint64_t> new_orders{0};
  peer.rates["tpcc"].push_back(rate_of(options, [&](unsigned thread, const auto& over) {
    Tpcc::Terminal terminal = tpcc.terminal(first + thread + 1, mix_word(seed + first + thread));
    while (!over.load(std::memory_order_relaxed)) {
      if (terminal.run(*peer.store) == Tpcc::Terminal::Done::kNewOrder) ++new_orders;
    }
    return terminal.committed();
  }));
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace

json measure_peers(const Course& course) {
  const BufferStudyOptions& options = course.options;
  course.tell("beside other stores", -1);
  const json result = in_a_process(course, [&] {
    json notes = json::array();
    std::vector<Peer> peers = open_peers(course, notes);
    const Tpcc tpcc(options.tpcc);
    for (Peer& peer : peers) load_peer(options, tpcc, peer);
    constexpr unsigned kTurns = 3;
    for (unsigned turn = 0; turn < kTurns * options.repeats && !course.stop; ++turn) {
      for (Peer& peer : peers) measure_peer(options, tpcc, options.seed + turn, peer);
    }
    json rows = json::array();
    for (Peer& peer : peers) {
      uint64_t problems = tpcc.check(*peer.store, [&](const std::string& sentence) {
        notes.push_back(peer.name + ": " + sentence);
      });
      json row = {{"store", peer.name}, {"problems", problems}};
      for (const auto& [what, rates] : peer.rates) {
        row[what + "_per_s"] = median_of(rates);
        row[what + "_per_s_all"] = rates;
      }
      if (auto* ours = dynamic_cast<DatabaseStore*>(peer.store.get())) {
        for (const Statistic& each : ours->database().statistics()) {
          if (each.name == "commits" || each.name == "conflicts") row[each.name] = each.value;
        }
      }
      rows.push_back(std::move(row));
    }
    return json{{"stores", rows}, {"notes", notes}};
  });
  for (const char* name : {"database", "shares", "rocksdb", "lmdb"})
    std::filesystem::remove_all(course.folder + "/" + name);
  return result;
}

}  // namespace perdure::lab::study::buffer_pool
