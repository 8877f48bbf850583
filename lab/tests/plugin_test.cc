// Both directions of PiBench's interface: our structures as its libraries, and its libraries as our
// indexes.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "lab/pibench/names.h"
#include "lab/plugin_index.h"
#include "perdure/catalog.h"
#include "perdure/error.h"
#include "support/files.h"

namespace perdure::lab {
namespace {

using test::TempDir;

std::string test_library(const std::string& name) {
  return std::string(PERDURE_PIBENCH_TESTS) + "/" + name + ".so";
}
std::string our_library(const std::string& structure) {
  return std::string(PERDURE_PIBENCH) + "/" + pibench::library_name(structure);
}

// Sizes that PiBench asks for: integers and longer ones.
struct Sizes {
  uint64_t key;
  uint64_t value;
};
constexpr Sizes kSizes[] = {{8, 8}, {16, 64}, {8, 100}, {20, 8}};

PluginOptions options_of(const std::string& library, Sizes sizes, const std::string& pool = "") {
  return {.library = library,
          .key_kind = sizes.key == 8 ? Kind::kU64 : Kind::kBytes,
          .value_kind = sizes.value == 8 ? Kind::kU64 : Kind::kBytes,
          .key_bytes = sizes.key,
          .value_bytes = sizes.value,
          .pool_path = pool,
          .pool_bytes = uint64_t{64} << 20};
}

// Whether the structure has tables for keys and values of these sizes.
bool takes(const std::string& structure, Sizes sizes) {
  const PluginOptions options = options_of("", sizes);
  return std::ranges::count(catalog_entry(structure).traits.kinds,
                            std::pair(options.key_kind, options.value_kind)) > 0;
}

// Keys and values of a number, of either kind and the right size; keys in the order of the numbers.
// Words of numbers below 512 lie all over the range, as structures that divide it expect.
class Maker {
 public:
  explicit Maker(const PluginOptions& options) : options_(options) {}
  Datum key(uint64_t number) {
    if (options_.key_kind == Kind::kU64) return std::rotr(number, 9);
    key_.assign(options_.key_bytes, '\0');
    for (size_t i = 0; i < 8; ++i) {
      key_[options_.key_bytes - 1 - i] = static_cast<char>(number >> (8 * i));
    }
    return key_;
  }
  Datum value(uint64_t number) {
    if (options_.value_kind == Kind::kU64) return number;
    value_ = std::to_string(number);
    value_.resize(options_.value_bytes, '.');
    return value_;
  }

 private:
  const PluginOptions& options_;
  std::string key_;
  std::string value_;
};

using Model = std::map<uint64_t, uint64_t>;

void expect_equal(const AnyIndex& index, const Model& model, Maker& maker, bool ordered) {
  Value found;
  for (uint64_t number = 0; number < 500; ++number) {
    const auto expected = model.find(number);
    ASSERT_EQ(index.lookup(maker.key(number), found), expected != model.end()) << number;
    if (expected != model.end()) {
      ASSERT_EQ(found.datum(), maker.value(expected->second));
    }
  }
  if (!ordered) return;
  auto expected = model.begin();
  index.for_each([&](Datum key, Datum value) {
    ASSERT_NE(expected, model.end());
    ASSERT_EQ(key, maker.key(expected->first));
    ASSERT_EQ(value, maker.value(expected->second));
    ++expected;
  });
  EXPECT_EQ(expected, model.end());
}

// Random operations beside a std::map.
void check_against_model(AnyIndex& index, const PluginOptions& options, bool ordered) {
  Maker maker(options);
  Model model;
  std::mt19937_64 random(7);
  for (int i = 0; i < 4000; ++i) {
    const uint64_t number = random() % 500;
    const uint64_t value = random() % 1000000;
    switch (random() % 4) {
      case 0:
        ASSERT_EQ(index.insert(maker.key(number), maker.value(value)),
                  model.emplace(number, value).second);
        break;
      case 1:
        ASSERT_EQ(index.update(maker.key(number), maker.value(value)), model.contains(number));
        if (model.contains(number)) model[number] = value;
        break;
      case 2:
        index.upsert(maker.key(number), maker.value(value));
        model[number] = value;
        break;
      default:
        ASSERT_EQ(index.remove(maker.key(number)), model.erase(number) == 1);
    }
  }
  expect_equal(index, model, maker, ordered);
}

class OurPlugins : public testing::TestWithParam<std::string> {};

TEST_P(OurPlugins, AgreeWithAModelInBothInterfacesAndAllSizes) {
  for (const char* interface : {"bulk_load", "2019"}) {
    setenv("PERDURE_PIBENCH_INTERFACE", interface, 1);
    for (const Sizes sizes : kSizes) {
      SCOPED_TRACE(testing::Message() << interface << " " << sizes.key << " " << sizes.value);
      if (!takes(GetParam(), sizes)) continue;
      const TempDir dir;
      const PluginOptions options = options_of(our_library(GetParam()), sizes, dir.file("pool"));
      const auto index = load_plugin(options);
      check_against_model(*index, options, catalog_entry(GetParam()).traits.ordered);
    }
  }
  unsetenv("PERDURE_PIBENCH_INTERFACE");
}

TEST_P(OurPlugins, RunInProgramsBuiltWithEitherHeader) {
  for (const char* host : {"host_2019", "host_bulk_load"}) {
    for (const Sizes sizes : {Sizes{8, 8}, Sizes{16, 32}, Sizes{4, 4}}) {
      if (!takes(GetParam(), sizes)) continue;
      const TempDir dir;
      const std::string command = std::string(PERDURE_PIBENCH_TESTS) + "/" + host + " " +
                                  our_library(GetParam()) + " " + std::to_string(sizes.key) + " " +
                                  std::to_string(sizes.value) + " " + dir.file("pool");
      // Structures without order say on standard error that they cannot scan.
      const std::string output = " > " + dir.file("out") + " 2> " + dir.file("err");
      EXPECT_EQ(std::system((command + output).c_str()), 0) << command;
      // PiBench's --skip_load counts on the records of the run before.
      EXPECT_EQ(std::system((command + " present" + output).c_str()), 0) << command;
      EXPECT_EQ(test::read_file(dir.file("out")),
                catalog_entry(GetParam()).traits.ordered ? "scanned 10\n" : "scanned 0\n");
    }
  }
}

std::vector<std::string> structures() {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : catalog()) names.push_back(entry.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Catalog, OurPlugins, testing::ValuesIn(structures()),
                         [](const auto& param) { return pibench::safe_name(param.param); });

TEST(PluginNames, AreSafeAndThereIsOneForEachStructure) {
  EXPECT_EQ(pibench::library_name("nv-tree+ve"), "libperdure_pibench_nv_tree_plus_ve.so");
  EXPECT_EQ(pibench::library_name("a+"), "libperdure_pibench_a_plus.so");
  std::set<std::string> expected;
  for (const std::string& name : structures()) expected.insert(pibench::library_name(name));
  std::set<std::string> there;
  for (const auto& file : std::filesystem::directory_iterator(PERDURE_PIBENCH)) {
    there.insert(file.path().filename());
  }
  EXPECT_EQ(there, expected);
}

class Plugins : public testing::TestWithParam<std::string> {};

TEST_P(Plugins, BuiltForEitherInterfaceAreToldApartAndAgreeWithAModel) {
  for (const Sizes sizes : kSizes) {
    if (GetParam().starts_with("foreign") && (sizes.key != 8 || sizes.value != 8)) continue;
    SCOPED_TRACE(testing::Message() << sizes.key << " " << sizes.value);
    const PluginOptions options = options_of(test_library(GetParam()), sizes);
    const auto index = load_plugin(options);
    // The map of our own test libraries orders words by their bytes.
    check_against_model(*index, options, GetParam().starts_with("foreign") || sizes.key != 8);
  }
}

INSTANTIATE_TEST_SUITE_P(Both, Plugins,
                         testing::Values("map_2019", "map_bulk_load", "foreign_2019",
                                         "foreign_bulk_load"),
                         [](const auto& param) { return param.param; });

TEST(Plugin, ScansGoOnOverManyParts) {
  const PluginOptions options = options_of(test_library("foreign_2019"), {8, 8});
  const auto index = load_plugin(options);
  for (uint64_t i = 0; i < 2500; ++i) index->insert(i * 3, i);
  index->insert(~uint64_t{0}, uint64_t{9});
  uint64_t seen = 0;
  index->for_each([&](Datum, Datum) { ++seen; });
  EXPECT_EQ(seen, 2501U);
  seen = 0;
  // A visitor may scan as well.
  index->scan(uint64_t{4}, 2000, [&](Datum key, Datum) {
    EXPECT_EQ(key.word(), 6 + seen * 3);
    index->scan(uint64_t{0}, 1, [](Datum first, Datum) { return first.word() != 0; });
    return ++seen < 1500;
  });
  EXPECT_EQ(seen, 1500U);
}

TEST(Plugin, ErrorsSayWhatIsWrong) {
  const auto message = [](const PluginOptions& options, ErrorCode code) -> std::string {
    try {
      load_plugin(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "no error";
  };
  const TempDir dir;
  EXPECT_NE(message({.library = dir.file("none.so")}, ErrorCode::kNotFound).find("no such file"),
            std::string::npos);
  test::write_file(dir.file("text.so"), "not a library");
  EXPECT_NE(message({.library = dir.file("text.so")}, ErrorCode::kInvalidArgument)
                .find("cannot load the library"),
            std::string::npos);
  EXPECT_NE(message({.library = test_library("no_index")}, ErrorCode::kInvalidArgument)
                .find("exports no create_tree"),
            std::string::npos);
  EXPECT_NE(message({.library = test_library("refusing")}, ErrorCode::kInvalidArgument)
                .find("makes no index of keys of 8 bytes"),
            std::string::npos);
  EXPECT_NE(message({.library = test_library("hidden")}, ErrorCode::kInvalidArgument)
                .find("set PERDURE_PIBENCH_INTERFACE"),
            std::string::npos);
  EXPECT_THROW(parse_plugin_interface("2020"), Error);
  // A copy under a name that is no structure's.
  std::filesystem::copy_file(our_library("plush"), dir.file("libother.so"));
  const std::string command = "LD_LIBRARY_PATH=" + std::string(PERDURE_PIBENCH) + "/../.. " +
                              PERDURE_PIBENCH_TESTS + "/host_2019 " + dir.file("libother.so") +
                              " 8 8 '' 2> " + dir.file("err");
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 3);
  EXPECT_NE(test::read_file(dir.file("err")).find("the file's name must say which structure"),
            std::string::npos);
}

TEST(Plugin, OfHiddenSymbolsRunsWhenItsInterfaceIsSaid) {
  PluginOptions options = options_of(test_library("hidden"), {8, 8});
  options.interface = PluginInterface::k2019;
  check_against_model(*load_plugin(options), options, true);
  options.interface.reset();
  setenv("PERDURE_PIBENCH_INTERFACE", "2019", 1);
  check_against_model(*load_plugin(options), options, true);
  unsetenv("PERDURE_PIBENCH_INTERFACE");
}

TEST(Plugin, KeysOfAnotherLengthAndKindAreRefused) {
  const auto index = load_plugin(options_of(test_library("map_2019"), {16, 16}));
  const std::string value(16, 'v');
  EXPECT_THROW(index->insert("short", value), Error);
  EXPECT_THROW(index->insert(uint64_t{1}, value), Error);
  EXPECT_THROW(index->insert(std::string(16, 'k'), "short"), Error);
}

TEST(Plugin, APoolOfAnotherStructureOrSizeIsRefused) {
  const TempDir dir;
  const std::string plush = our_library("plush");
  load_plugin(options_of(plush, {8, 8}, dir.file("pool")));
  EXPECT_THROW(load_plugin(options_of(plush, {16, 8}, dir.file("pool"))), Error);
  EXPECT_NO_THROW(load_plugin(options_of(plush, {8, 8}, dir.file("pool"))));
}

TEST(Plugin, AFullPoolIsAnUnsuccessfulInsert) {
  PluginOptions options = options_of(our_library("plush"), {16, 64});
  options.pool_bytes = uint64_t{4} << 20;
  const auto index = load_plugin(options);
  Maker maker(options);
  uint64_t inserted = 0;
  while (inserted < 1000000 && index->insert(maker.key(inserted), maker.value(inserted)))
    ++inserted;
  EXPECT_LT(inserted, 1000000U);
  Value found;
  EXPECT_TRUE(index->lookup(maker.key(inserted - 1), found));
  EXPECT_FALSE(index->lookup(maker.key(inserted), found));
}

TEST(Plugin, ServesSeveralThreads) {
  const auto index = load_plugin(options_of(our_library("plush"), {8, 8}));
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 2000; ++i) index->insert(i * 4 + t, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Value found;
  for (uint64_t key = 0; key < 8000; ++key) {
    ASSERT_TRUE(index->lookup(key, found));
    ASSERT_EQ(found.word(), key / 4);
  }
}

}  // namespace
}  // namespace perdure::lab
