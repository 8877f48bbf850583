// Pools whose medium has changed what it was given: bits, words, blocks and pages, in every part of
// the file, with the checksums as they were and made right again. Whatever is opened, checked, read
// or written then is a described error or right: never a crash, a hang, or a byte string that
// nobody wrote; and what has gone missing is found.
#include "support/damage.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "support/child.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

class Damage : public ScenarioTest {
 protected:
  // Damages one region `count` times, each time a sound pool. Environment variable PERDURE_DAMAGE
  // is the number of the only damage to do.
  void live_with_damages(Region region, uint64_t count) {
    const SoundPool sound =
        make_sound_pool(pool_path(), GetParam().structure, GetParam().key, GetParam().value);
    const char* only = std::getenv("PERDURE_DAMAGE");
    const uint64_t first = only == nullptr ? 0 : std::strtoull(only, nullptr, 10);
    const uint64_t end = only == nullptr ? rounds(count) : first + 1;
    uint64_t failures = 0;
    for (uint64_t number = first; number < end && failures < 3; ++number) {
      std::string image = sound.image;
      const Random random(mix(base_seed()) + number * 8 + static_cast<uint64_t>(region));
      const DamageDone done = damage(sound, region, random, image);
      write_file(pool_path(), image);
      const std::string wrong = in_crashing_child([&] {
        limit_this_process();
        return live_with(pool_path(), sound, !done.mended);
      });
      EXPECT_EQ(wrong, "") << done.text << "\nagain: PERDURE_SEED=" << base_seed()
                           << " PERDURE_DAMAGE=" << number;
      if (!wrong.empty()) ++failures;
    }
  }

 private:
  // A walk in circles, a wait for nobody or a length that cannot be ends it, and leaves no core
  // file.
  static void limit_this_process() {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    const rlimit processor_s{kUnderAddressSanitizer || kUnderThreadSanitizer ? 60U : 5U,
                             RLIM_INFINITY};
    ::setrlimit(RLIMIT_CPU, &processor_s);
    ::alarm(120);
    if (kUnderAddressSanitizer || kUnderThreadSanitizer) return;
    const rlimit memory{uint64_t{4} << 30, uint64_t{4} << 30};
    ::setrlimit(RLIMIT_AS, &memory);
  }
};

TEST_P(Damage, ToTheHeaderIsAnErrorOrHarmless) { live_with_damages(Region::kHeader, 30); }

TEST_P(Damage, ToTheRootDirectoryIsAnErrorOrHarmless) { live_with_damages(Region::kDirectory, 15); }

TEST_P(Damage, ToTheLanesIsAnErrorOrHarmless) { live_with_damages(Region::kLanes, 15); }

TEST_P(Damage, ToTheDescriptorsIsAnErrorOrHarmless) { live_with_damages(Region::kDescriptors, 15); }

TEST_P(Damage, ToTheRootIsAnErrorOrHarmless) { live_with_damages(Region::kRoot, 20); }

TEST_P(Damage, ToTheHeapIsAnErrorOrHarmless) { live_with_damages(Region::kHeap, 60); }

INSTANTIATE_TEST_SUITE_P(Catalog, Damage, wanted(all_cases()), by_turns());

}  // namespace
}  // namespace perdure::test
