// Commits that fail in the middle, by hand and for want of memory: each byte of each page is what
// it was, the checksums that count fit, and snapshots see what they saw.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "buffer/btree/tree.h"
#include "buffer/engine.h"
#include "buffer/fixture.h"
#include "support/files.h"
#include "support/short_memory.h"

namespace perdure::test {
namespace {

using buffer::Engine;
using buffer::PageFormat;
using buffer::PageGuard;
using buffer::TreeWriter;

struct Shape {
  const char* name;
  uint32_t page_bytes;
  uint32_t checksums;
  uint32_t checksum_every;
  uint64_t dram_pages;
  uint64_t pm_pages;
};

class UndoTest : public testing::TestWithParam<Shape> {
 protected:
  DatabaseOptions options() const {
    const Shape& shape = GetParam();
    DatabaseOptions options = small_database();
    options.page_bytes = shape.page_bytes;
    options.checksums = shape.checksums;
    options.checksum_every = shape.checksum_every;
    options.dram_bytes = shape.dram_pages * shape.page_bytes;
    options.pm_bytes = shape.pm_pages * shape.page_bytes;
    options.pm_frames = shape.pm_pages != 0;
    options.pages_max = 600;
    return options;
  }
};

struct Failed {};

Records contents_of(Engine& engine, uint64_t root, const buffer::Moment* moment = nullptr) {
  Records records;
  buffer::LeafCopy leaf;
  do {
    const std::string from = leaf.next;
    tree_read_forward({engine.buffer(), moment}, root, from, leaf);
    for (auto& record : leaf.records) records[record.key] = record.value;
  } while (!leaf.last);
  return records;
}

uint64_t pages_in_use(Engine& engine) {
  PageGuard guard(engine.buffer(), engine.buffer().pin(0));
  guard.lock_shared();
  buffer::SpaceBody space;
  std::memcpy(&space, guard.data() + engine.format().body(), sizeof space);
  return space.pages;
}

// All pages without their checksums; those that claim to have right ones have them.
std::vector<std::string> pages_of(Engine& engine) {
  const PageFormat& format = engine.format();
  std::vector<std::string> pages(pages_in_use(engine));
  for (uint64_t id = 0; id < pages.size(); ++id) {
    PageGuard guard(engine.buffer(), engine.buffer().pin(id));
    guard.lock_shared();
    EXPECT_TRUE(guard.frame().unsealed != 0 || format.is_sound(guard.data(), id)) << id;
    pages[id].assign(guard.data(), sizeof(buffer::PageHeader));
    pages[id].append(guard.data() + format.body(), format.body_bytes());
  }
  return pages;
}

class Writer {
 public:
  Writer(Random& random, const PageFormat& format) : random_(random), format_(format) {}

  std::string key() {
    const uint64_t n = random_.below(700);
    std::string key = n % 3 == 0 ? "a/common/prefix/of/some/length/" : n % 3 == 1 ? "b" : "";
    key += std::to_string(n * 7919);
    if (n % 41 == 0) key += std::string(n % (key_bytes_max(format_) - 60), 'x');
    return key;
  }
  std::string value() {
    const uint64_t kind = random_.below(100);
    const uint64_t bytes = kind < 4    ? random_.below(3 * uint64_t{format_.page_bytes()})
                           : kind < 20 ? random_.below(inline_bytes_max(format_))
                           : kind < 60 ? 8
                                       : random_.below(100);
    std::string value(bytes, '\0');
    for (char& c : value) c = static_cast<char>(random_.next());
    return value;
  }
  void write(TreeWriter& tree, Records& model) {
    const std::string key = this->key();
    if (random_.chance(erase_percent_)) {
      tree.erase(key);
      model.erase(key);
    } else {
      const std::string value = this->value();
      tree.put(key, value);
      model[key] = value;
    }
  }
  void tend_to(uint64_t erase_percent) { erase_percent_ = erase_percent; }

 private:
  Random& random_;
  PageFormat format_;
  uint64_t erase_percent_ = 30;
};

TEST_P(UndoTest, LeavesEachByteAsItWas) {
  const TempDir dir;
  for (const uint64_t seed : {base_seed(), base_seed() + 1}) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Pool pool =
        Pool::create(dir.file("pool" + std::to_string(seed)), small_pool(uint64_t{96} << 20));
    auto engine = Engine::create(pm::impl_of(pool), "d", options());
    uint64_t root = engine->make_tree("t");
    Writer writer(random, engine->format());
    Records model;
    struct Seen {
      std::shared_ptr<buffer::Moment> moment;
      Records records;
    };
    std::deque<Seen> seen;
    uint64_t undone = 0;
    uint64_t refused = 0;
    for (uint64_t step = 0; step < 300; ++step) {
      SCOPED_TRACE(step);
      if (step % 60 == 0) writer.tend_to(step / 60 % 2 == 0 ? 20 : 70);
      if (random.chance(10)) seen.push_back({engine->begin_snapshot(), model});
      if (seen.size() > 3) seen.pop_front();
      const uint64_t fails = random.below(3);  // 0: not; 1: by hand; 2: for want of memory
      const uint64_t writes = 1 + random.below(random.chance(20) ? 60 : 6);
      const uint64_t last = random.below(writes);
      const uint64_t allocations = random.below(random.chance(50) ? 12 : 60);
      const std::vector<std::string> before =
          fails == 0 ? std::vector<std::string>() : pages_of(*engine);
      Records after = model;
      std::unique_ptr<ShortMemory> memory;
      Engine::Commit request;
      request.work = [&](buffer::Change& change) {
        TreeWriter tree(change, root);
        for (uint64_t i = 0; i < writes; ++i) {
          if (fails == 2 && i == last) memory = std::make_unique<ShortMemory>(allocations);
          writer.write(tree, after);
          if (fails == 1 && i == last) throw Failed();
        }
      };
      bool happened = true;
      try {
        engine->commit(request);
      } catch (const Failed&) {
        happened = false;
      } catch (const std::bad_alloc&) {
        happened = false;
      } catch (const Error& error) {
        ASSERT_TRUE(error.code() == ErrorCode::kTooLarge || error.code() == ErrorCode::kPoolFull)
            << error.what();
        happened = false;
      }
      if (memory) memory->end();
      if (memory && memory->refused() > 0) {
        ++refused;
        if (happened) seen.clear();  // what pages were found no room: they may be given up
      }
      request.error = nullptr;
      if (happened) {
        model = after;
      } else if (fails != 0) {
        ++undone;
        const std::vector<std::string> now = pages_of(*engine);
        ASSERT_EQ(now.size(), before.size());
        for (size_t id = 0; id < now.size(); ++id) ASSERT_EQ(now[id] == before[id], true) << id;
      }
      if (step % 7 == 0 || !happened) {
        ASSERT_EQ(difference(contents_of(*engine, root), model), "");
      }
      for (const Seen& one : seen) {
        ASSERT_EQ(difference(contents_of(*engine, root, one.moment.get()), one.records), "");
      }
      if (random.chance(2)) engine->checkpoint();
      if (step % 50 == 49) {
        EXPECT_EQ(engine->check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
        seen.clear();
        engine.reset();
        engine = Engine::open(pm::impl_of(pool), "d", options());
        root = engine->find_tree("t");
        ASSERT_EQ(difference(contents_of(*engine, root), model), "");
      }
    }
    EXPECT_GT(undone, 50U);
    EXPECT_GT(refused, 20U);
  }
}

// Groups of which some fail: those are undone, with what the others of the group did, which is then
// done again.
TEST_P(UndoTest, ThreadsWhoseCommitsFailLeaveTheOthers) {
  const TempDir dir;
  Pool pool = Pool::create(dir.file("pool"), small_pool(uint64_t{96} << 20));
  auto engine = Engine::create(pm::impl_of(pool), "d", options());
  const uint64_t root = engine->make_tree("t");
  constexpr int kThreads = 4;
  std::vector<Records> models(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<uint64_t>(t) + 1);
      Records& model = models[static_cast<size_t>(t)];
      for (int step = 0; step < 200; ++step) {
        buffer::Writes writes;
        Records after = model;
        for (uint64_t n = 1 + random.below(5); n > 0; --n) {
          const std::string key = std::to_string(random.below(200)) + "/" + std::to_string(t);
          if (random.chance(30)) {
            writes[root][key] = std::nullopt;
            after.erase(key);
          } else {
            const std::string value(random.below(random.chance(5) ? 9000 : 200), 'v');
            writes[root][key] = value;
            after[key] = value;
          }
        }
        const bool fails = random.chance(30);
        Engine::Commit request;
        request.writes = &writes;
        if (fails) request.work = [](buffer::Change&) { throw Failed(); };
        bool happened = true;
        try {
          engine->commit(request);
        } catch (const Failed&) {
          happened = false;
        }
        EXPECT_EQ(happened, !fails);
        if (happened) model = std::move(after);
        if (step % 10 == 0) {
          const Records now = contents_of(*engine, root);
          for (const auto& [key, value] : model) {
            const auto found = now.find(key);
            if (found == now.end() || found->second != value) ADD_FAILURE() << key;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Records all;
  for (const Records& model : models) all.insert(model.begin(), model.end());
  EXPECT_EQ(difference(contents_of(*engine, root), all), "");
  EXPECT_EQ(engine->check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
  engine.reset();
  engine = Engine::open(pm::impl_of(pool), "d", options());
  EXPECT_EQ(difference(contents_of(*engine, engine->find_tree("t")), all), "");
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, UndoTest,
    testing::Values(Shape{"Dram", 4096, 8, 1, 700, 0}, Shape{"Pm", 4096, 8, 1, 0, 700},
                    Shape{"PmOnePart", 4096, 1, 1, 0, 700}, Shape{"PmMany", 4096, 32, 1, 0, 700},
                    Shape{"PmLater", 4096, 8, 3, 0, 700}, Shape{"Both", 4096, 8, 1, 60, 140},
                    Shape{"BothLater", 4096, 16, 2, 60, 140}, Shape{"Large", 65536, 16, 1, 40, 80}),
    [](const auto& shape) { return std::string(shape.param.name); });

}  // namespace
}  // namespace perdure::test
