// A store that is nearly full, written to while a part of it is still being opened.
#include <atomic>
#include <string>

#include "pm/pool_impl.h"
#include "store/fixture.h"
#include "store/turn.h"
#include "support/errors.h"
#include "support/files.h"

namespace perdure::test {
namespace {

std::atomic<bool> is_held_back{false};

TEST(StoreEarlyFull, RoomThatIsNotGivenBackYetIsWaitedFor) {
  using store::StoreImpl;
  const TempDir folder;
  const std::string path = folder.file("pool");
  const StoreOptions made{.boundaries = {"m"}, .block_bytes = 4096};
  const auto put = [](store::StoreTurn& turn, int i) {
    turn.write({.key = "a" + std::to_string(i), .value = std::string(500, 'v')},
               StoreImpl::now_ms());
    turn.finish();
  };
  {
    // The snapshot of the second partition's index takes room, which its opening gives back.
    Pool pool = Pool::create(path, store_pool(4));
    Store store = Store::create(pool, "store", made);
    for (int i = 0; i < 20000; ++i) store.put("z" + std::to_string(i), "");
    store.put("a", "");
  }
  Pool pool = Pool::open(path, store_pool(4));
  is_held_back = true;
  StoreImpl::before_recovery = [](uint32_t number) {
    if (number == 1) is_held_back.wait(true);
  };
  StoreOptions early;
  early.serve_early = true;
  const auto store = StoreImpl::open(pool, "store", early);
  store::StoreTurn turn(*store);
  store->require_ready(0);
  int written = 0;
  EXPECT_THROW(for (;; ++written) put(turn, written), store::NotReady);
  EXPECT_GT(written, 100);
  EXPECT_FALSE(turn.is_all_ready());
  is_held_back = false;
  is_held_back.notify_all();
  store->require_ready(1);
  put(turn, written);
  EXPECT_TRUE(turn.is_all_ready());
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] {
    for (;; ++written) put(turn, written);
  }));
  StoreImpl::before_recovery = nullptr;
  EXPECT_EQ(store->size(), static_cast<uint64_t>(20001 + written));
}

}  // namespace
}  // namespace perdure::test
