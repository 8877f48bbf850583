// Databases whose pool or page file was damaged: whatever has become of their bytes, opening,
// checking, reading, writing and closing one is a described error, or right. Where no checksum was
// made right again, what is read is what was written.
//
// An input is a list of edits to a sound database, which was closed or left by a process that died.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "buffer/page.h"
#include "fuzz/edits.h"
#include "perdure/database.h"
#include "perdure/error.h"
#include "pm/layout.h"
#include "support/damage.h"
#include "support/files.h"

namespace {

using namespace perdure;
using namespace perdure::test;

constexpr char kName[] = "d";
constexpr uint64_t kKeys = 400;
constexpr uint64_t kSteps = 4 * kKeys;  // more records than there are: a circle
const buffer::PageFormat kFormat(4096, 8);

const TempDir& folder() {
  static const TempDir folder;
  return folder;
}
std::string pool_path() { return folder().file("pool"); }
std::string pages_path() { return folder().file("pages"); }

PoolOptions pool_options() {
  PoolOptions options;
  options.capacity_bytes = uint64_t{4} << 20;
  options.growth_bytes = pm::kSegmentBytes;
  return options;
}

DatabaseOptions database_options() {
  DatabaseOptions options;
  options.page_file = pages_path();
  options.dram_bytes = uint64_t{16} * 4096;
  options.pm_bytes = uint64_t{24} * 4096;
  options.log_bytes = uint64_t{1} << 20;
  options.background = false;
  return options;
}

std::string key_of(uint64_t number) {
  std::string key = (number % 3 == 0 ? "a/common/beginning/" : "k") + std::to_string(number * 7919);
  if (number % 31 == 0) key += std::string(number % 200, 'x');
  return key;
}

// Begins with its key, so that a value of another key is known.
std::string value_of(uint64_t number, uint64_t version) {
  const uint64_t bytes = number % 40 == 7 ? 3000 + number * 20 : number % 90;
  return key_of(number) + "=" + std::to_string(version) + std::string(bytes, 'v');
}

// A database as files hold it, and the values that each key has had; the last one is what it has.
struct Sound {
  SoundPool pool;     // of which only the image and the places in use matter
  std::string pages;  // the page file
  std::map<std::string, std::vector<std::string>> written;
  std::set<std::string> erased;
  std::vector<uint64_t> frames;  // where pages lie in the pool's image
};

void write_records(Database& database, Sound& sound) {
  const Tree tree = database.tree("t");
  database.tree("another");
  for (uint64_t version = 0; version < 3; ++version) {
    for (uint64_t n = 0; n < kKeys; n += 4) {
      Transaction transaction = database.begin();
      for (uint64_t i = n; i < n + 4; ++i) {
        if (i % 5 == 0 || (version > 0 && i % 3 == 0)) continue;
        const std::string key = key_of(i);
        if (version == 2 && i % 7 == 0) {
          transaction.erase(tree, key);
          sound.erased.insert(key);
        } else {
          transaction.put(tree, key, value_of(i, version));
          sound.written[key].push_back(value_of(i, version));
        }
      }
      transaction.commit();
    }
    if (version == 1) database.checkpoint();
  }
}

// `closed`: cleanly; else as the death of its process leaves it, with changes in frames and in the
// log.
Sound make_sound(bool closed) {
  std::remove(pool_path().c_str());
  std::remove(pages_path().c_str());
  Sound sound{{kName, Kind::kBytes, Kind::kBytes, {}, {}, kKeys, {}}, {}, {}, {}, {}};
  {
    Pool pool = Pool::create(pool_path(), pool_options());
    std::optional<Database> database = Database::create(pool, kName, database_options());
    write_records(*database, sound);
    if (!closed) {
      sound.pool.image = read_file(pool_path());
      sound.pages = read_file(pages_path());
    }
    database.reset();
    pool.close();
  }
  if (closed) {
    sound.pool.image = read_file(pool_path());
    sound.pages = read_file(pages_path());
  }
  pm::PoolHeader header;
  std::memcpy(&header, sound.pool.image.data(), sizeof header);
  const std::string zeros(64, '\0');
  for (uint64_t at = header.data_offset; at < sound.pool.image.size(); at += 64) {
    const char* line = sound.pool.image.data() + at;
    if (sound.pool.image.compare(at, 64, zeros) != 0) sound.pool.lines_in_use.push_back(at);
    if (at + kFormat.page_bytes() > sound.pool.image.size()) continue;
    const uint64_t id = buffer::header_of(line).id;
    if (id < kKeys && kFormat.is_sound(line, id)) sound.frames.push_back(at);
  }
  return sound;
}

const Sound& sound_of(bool closed) {
  static const Sound all[] = {make_sound(false), make_sound(true)};
  return all[closed ? 1 : 0];
}

// A change of a page, whose checksums are made right again if `seal`: numbers in the first part of
// its body, where its layout is, or anything.
void edit_page(Input& input, bool seal, char* page) {
  const auto how = input.take<uint8_t>();
  const auto place = input.take<uint16_t>();
  const uint32_t reach = how % 2 == 0 ? 256 : kFormat.body_bytes();
  const uint32_t at = kFormat.body() + place % (reach - 8);
  if (how / 2 % 4 == 0) {
    const auto word = input.take<uint16_t>();
    std::memcpy(page + at / 2 * 2, &word, sizeof word);
  } else if (how / 2 % 4 == 1) {
    const auto word = input.take<uint64_t>();
    std::memcpy(page + at / 8 * 8, &word, sizeof word);
  } else if (how / 2 % 4 == 2) {
    page[at] = static_cast<char>(page[at] ^ (1 << how / 8 % 8));
  } else {
    const uint64_t id = input.take<uint8_t>();  // a page: of another kind, or on the way here
    std::memcpy(page + at / 8 * 8, &id, sizeof id);
  }
  if (how >= 224) buffer::header_of(page).type = static_cast<buffer::PageType>(place % 6);
  if (seal) kFormat.seal(page, kFormat.all_parts());
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

struct Damage {
  bool closed;
  bool sealed;  // something was made to look right
};

void judge(const Sound& sound, const Damage& damage, const std::string& key,
           const std::optional<std::string>& value) {
  if (damage.sealed) return;
  const auto found = sound.written.find(key);
  if (!value) {
    const bool is_there = found != sound.written.end() && !sound.erased.contains(key);
    // What the death of a process left at the end of the log may have been damaged: then it looks
    // torn.
    if (is_there && damage.closed) fail("'" + key + "' is missing, and nobody said why");
    return;
  }
  if (found == sound.written.end()) fail("'" + key + "' was never written");
  if (damage.closed) {
    if (sound.erased.contains(key)) fail("'" + key + "' was erased");
    if (*value != found->second.back()) fail("'" + key + "' has another value");
    return;
  }
  for (const std::string& one : found->second) {
    if (one == *value) return;
  }
  fail("'" + key + "' has a value that was never written");
}

void read(Database& database, const Sound& sound, const Damage& damage) {
  const std::optional<Tree> tree = database.find_tree("t");
  if (!tree) return;
  for (uint64_t n = 0; n < kKeys; n += 3) {
    try {
      Transaction transaction = database.begin();
      judge(sound, damage, key_of(n), transaction.get(*tree, key_of(n)));
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): in words
    }
  }
  for (const bool forward : {true, false}) {
    try {
      Transaction transaction = database.begin();
      Cursor cursor = transaction.cursor(*tree);
      uint64_t steps = 0;
      for (bool more = forward ? cursor.seek_first() : cursor.seek_last(); more;
           more = forward ? cursor.next() : cursor.previous()) {
        judge(sound, damage, std::string(cursor.key()), std::string(cursor.value()));
        if (++steps > kSteps) fail("a scan does not end");
      }
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
    }
  }
}

void write(Database& database) {
  for (uint64_t n = 0; n < kKeys; n += 11) {
    try {
      const Tree tree = database.tree("t");
      Transaction transaction = database.begin();
      transaction.put(tree, key_of(n), value_of(n, 9));
      transaction.erase(tree, key_of(n + 1));
      transaction.put(tree, key_of(n + 40), std::string(2500, 'n'));
      transaction.commit();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
    }
  }
}

void live_with_it(const Sound& sound, Damage damage) {
  for (int opening = 0; opening < 2; ++opening) {
    try {
      Pool pool = Pool::open(pool_path(), pool_options());
      Database database = Database::open(pool, kName, database_options());
      read(database, sound, damage);
      try {
        database.check([](const std::string&) {});
      } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
      }
      write(database);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
    }
    damage.sealed = true;  // what is written now is not in the model
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  Damage damage{input.take<uint8_t>() % 2 == 1, false};
  const Sound& sound = sound_of(damage.closed);
  std::string image = sound.pool.image;
  std::string pages = sound.pages;
  Random random(size);
  for (int edits = 0; edits < 8 && !input.empty(); ++edits) {
    const auto what = input.take<uint8_t>();
    const bool seal = what / 8 % 2 == 1;
    const auto number = input.take<uint16_t>();
    if (what % 8 < 3) {
      const uint64_t page = number % (pages.size() / kFormat.page_bytes());
      edit_page(input, seal, pages.data() + page * kFormat.page_bytes());
    } else if (what % 8 < 5 && !sound.frames.empty()) {
      edit_page(input, seal, image.data() + sound.frames[number % sound.frames.size()]);
    } else {
      const auto region = static_cast<Region>(number % 6);
      edit(sound.pool, region, input, image);
      if (seal) mend(sound.pool, region, random, image);
    }
    damage.sealed |= seal;
  }
  write_file(pool_path(), image);
  write_file(pages_path(), pages);
  live_with_it(sound, damage);
  return 0;
}
