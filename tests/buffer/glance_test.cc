// Nodes looked at without a latch: the same answers as with one, and nothing outside of the page,
// whatever it holds.
#include "buffer/btree/glance.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "buffer/btree/node.h"
#include "support/data.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

using buffer::Glance;
using buffer::glance_at_node;
using buffer::header_of;
using buffer::Node;
using buffer::NodeContent;
using buffer::PageFormat;
using buffer::PageType;

class GlanceTest : public testing::Test {
 protected:
  std::string key() {
    std::string key = prefix_;
    for (uint64_t i = random_.below(8); i > 0; --i) {
      key += static_cast<char>(random_.chance(50) ? random_.below(3) : random_.next());
    }
    return key;
  }
  // Exactly a page, so that an address sanitizer sees what is beside it.
  char* page() const { return page_.get(); }
  Node make_node(uint16_t level) {
    prefix_ = std::string(random_.below(4), 'p');
    std::map<std::string, std::string> records;
    for (uint64_t i = random_.below(60); i > 0; --i) {
      records[key()] =
          std::string(level > 0 ? 8 : random_.below(40), static_cast<char>(random_.next()));
    }
    std::vector<NodeContent::Record> list;
    for (const auto& [key, value] : records) list.push_back({key, value, 0});
    std::memset(page(), 0, format_.page_bytes());
    header_of(page()).type = PageType::kNode;
    Node node(format_, page());
    node.build(level, 77, list, 0, list.size());
    return node;
  }

  PageFormat format_{4096, 8};
  Random random_{base_seed()};
  std::string prefix_;
  std::unique_ptr<char[]> page_ = std::make_unique<char[]>(4096);
  std::unique_ptr<char[]> value_ = std::make_unique<char[]>(buffer::kPageBytesMax);
};

TEST_F(GlanceTest, FindsWhatALatchedSearchFinds) {
  for (uint64_t round = 0; round < scaled(300); ++round) {
    const auto level = static_cast<uint16_t>(random_.below(3));
    const Node node = make_node(level);
    for (int i = 0; i < 60; ++i) {
      if (random_.chance(10)) prefix_ = std::string(random_.below(4), 'p');
      const std::string wanted = node.count() > 0 && random_.chance(40)
                                     ? node.key(static_cast<uint32_t>(random_.below(node.count())))
                                     : key();
      Glance seen;
      ASSERT_TRUE(glance_at_node(format_, page(), wanted, value_.get(), seen));
      ASSERT_EQ(seen.level, level);
      if (level > 0) {
        ASSERT_EQ(seen.child, node.child(node.child_index(wanted, false)));
        continue;
      }
      bool found = false;
      const uint32_t slot = node.lower_bound(wanted, found);
      ASSERT_EQ(seen.found, found);
      if (!found) continue;
      ASSERT_EQ(std::string(value_.get(), seen.value_bytes), node.value(slot));
    }
  }
}

TEST_F(GlanceTest, TakesNoLongKeyForAShortOne) {
  Node node = make_node(0);
  node.build(0, 0, {{"key", "value", 0}}, 0, 1);
  Glance seen;
  const std::string key = "key";
  ASSERT_TRUE(glance_at_node(format_, page(), key, value_.get(), seen));
  ASSERT_TRUE(seen.found);
  // Nobody looks at all its bytes.
  const std::string_view huge(key.data(), (uint64_t{1} << 32) + key.size());
  EXPECT_FALSE(glance_at_node(format_, page(), huge, value_.get(), seen));
}

TEST_F(GlanceTest, ReadsNothingBesideThePage) {
  for (uint64_t round = 0; round < scaled(3000); ++round) {
    make_node(static_cast<uint16_t>(random_.below(2)));
    for (uint64_t n = 1 + random_.below(60); n > 0; --n) {
      const uint64_t at = random_.chance(50) ? 16 + random_.below(200) : random_.below(4096);
      page()[at] = static_cast<char>(random_.next());
    }
    Glance seen;
    for (int i = 0; i < 4; ++i) glance_at_node(format_, page(), key(), value_.get(), seen);
    ASSERT_LE(seen.value_bytes, format_.page_bytes());
  }
}

}  // namespace
}  // namespace perdure::test
