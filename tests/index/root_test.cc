// A root whose seal holds may still say what no structure has.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "index/cceh/layout.h"
#include "index/fastfair/layout.h"
#include "index/fptree/layout.h"
#include "index/nvtree/layout.h"
#include "index/sheaf/layout.h"
#include "index/trie/layout.h"
#include "index/wbtree/layout.h"
#include "perdure/catalog.h"
#include "pm/checksum.h"
#include "pm/pool_impl.h"
#include "support/errors.h"

namespace perdure::index {
namespace {

struct Sealed {
  const char* structure;
  uint64_t bytes;                  // of parameters
  uint64_t salted = ~uint64_t{0};  // that of them whose upper seven bytes are random
};

class SealedRoot : public testing::TestWithParam<Sealed> {};

TEST_P(SealedRoot, ThatSaysWhatNoStructureHasIsDamage) {
  const auto& [structure, bytes, salted] = GetParam();
  Pool pool = Pool::anonymous({.capacity_bytes = uint64_t{64} << 20, .growth_bytes = 1 << 20});
  const Kind kind = catalog_entry(structure).traits.key_bytes_max == 8 ? Kind::kU64 : Kind::kBytes;
  create_index(pool, "index", structure, kind, kind, {}).reset();
  auto* seal = pm::impl_of(pool).at<RootSeal>(pm::impl_of(pool).find("index")->root);
  auto* parameters = reinterpret_cast<uint64_t*>(seal + 1);
  for (uint64_t i = 0; i < bytes / 8; ++i) {
    const uint64_t sound = parameters[i];
    for (const uint64_t wrong : {uint64_t{0}, uint64_t{1} << 20, uint64_t{1} << 32 | sound}) {
      if (i == salted && wrong % 256 == sound % 256) continue;
      parameters[i] = wrong;
      seal->checksum = pm::checksum64(parameters, bytes);
      EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, "", [&] { open_index(pool, "index"); }))
          << "parameter " << i << " of " << bytes / 8 << " is " << wrong;
    }
    parameters[i] = sound;
  }
  seal->checksum = pm::checksum64(parameters, bytes);
  EXPECT_NE(open_index(pool, "index"), nullptr);
}

INSTANTIATE_TEST_SUITE_P(
    Structures, SealedRoot,
    testing::Values(Sealed{"cceh", cceh::kSealedBytes}, Sealed{"fast-fair", fastfair::kSealedBytes},
                    Sealed{"fptree", fptree::kSealedBytes}, Sealed{"nv-tree", nvtree::kSealedBytes},
                    Sealed{"sheaf", sheaf::kSealedBytes, 5}, Sealed{"wort", trie::kSealedBytes},
                    Sealed{"wbtree", wbtree::kSealedBytes}),
    [](const auto& given) {
      std::string name = given.param.structure;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

}  // namespace
}  // namespace perdure::index
