// Databases whose pool, page file or log file was damaged: whatever has become of their bytes,
// opening, checking, reading, writing and closing one is a described error, or right. Where no
// checksum was made right again, what is read is what was written; with damage in the log file
// alone it is all that was acknowledged, or the file is refused.
//
// An input is a list of edits to a sound database, which was closed or left by a process that died,
// with its log in the pool or in a file.
#include <algorithm>
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

#include "buffer/log.h"
#include "buffer/log_file.h"
#include "buffer/page.h"
#include "fuzz/edits.h"
#include "perdure/database.h"
#include "perdure/error.h"
#include "pm/checksum.h"
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
std::string log_path() { return folder().file("log"); }

PoolOptions pool_options() {
  PoolOptions options;
  options.capacity_bytes = uint64_t{4} << 20;
  options.growth_bytes = pm::kSegmentBytes;
  return options;
}

DatabaseOptions database_options(bool log_in_file) {
  DatabaseOptions options;
  options.page_file = pages_path();
  if (log_in_file) options.log_file = log_path();
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

// How a database was left.
struct Made {
  bool closed;
  bool log_in_file;
};

// A database as files hold it, and the values that each key has had; the last one is what it has.
struct Sound {
  SoundPool pool;     // of which only the image and the places in use matter
  std::string pages;  // the page file
  std::string log;    // the log file
  std::map<std::string, std::vector<std::string>> written;
  std::set<std::string> erased;
  std::vector<uint64_t> frames;   // where pages lie in the pool's image
  std::vector<uint64_t> entries;  // where whole entries lie in the log file
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

void find_entries(Sound& sound) {
  constexpr uint64_t kRing = buffer::LogFile::kBlock;
  uint64_t salt = 0;
  std::memcpy(&salt, sound.log.data() + sizeof(uint64_t), sizeof salt);
  for (uint64_t at = kRing; at < sound.log.size(); at += buffer::Log::kAlign) {
    buffer::EntryHeader header;
    std::memcpy(&header, sound.log.data() + at, sizeof header);
    const bool fits = header.bytes >= buffer::Log::kAlign && at + header.bytes <= sound.log.size();
    if (fits && buffer::Log::entry_is_sound(sound.log.data() + at, header.bytes, salt)) {
      sound.entries.push_back(at);
    }
  }
}

// Closed cleanly, or as the death of its process leaves it, with changes in frames and in the log.
Sound make_sound(Made made) {
  for (const std::string& path : {pool_path(), pages_path(), log_path()}) {
    std::remove(path.c_str());
  }
  Sound sound{{kName, Kind::kBytes, Kind::kBytes, {}, {}, kKeys, {}}, {}, {}, {}, {}, {}, {}};
  const auto take = [&] {
    sound.pool.image = read_file(pool_path());
    sound.pages = read_file(pages_path());
    if (made.log_in_file) sound.log = read_file(log_path());
  };
  {
    Pool pool = Pool::create(pool_path(), pool_options());
    std::optional<Database> database =
        Database::create(pool, kName, database_options(made.log_in_file));
    write_records(*database, sound);
    if (!made.closed) take();
    database.reset();
    pool.close();
  }
  if (made.closed) take();
  if (made.log_in_file) find_entries(sound);
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

const Sound& sound_of(Made made) {
  static const Sound all[] = {make_sound({false, false}), make_sound({true, false}),
                              make_sound({false, true}), make_sound({true, true})};
  return all[(made.closed ? 1 : 0) + (made.log_in_file ? 2 : 0)];
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

// A change of the log file, whose checksums are made right again if `seal`: of its header, of an
// entry's header or records, of any byte, of a sector, or of where it ends.
void edit_log(Input& input, bool seal, const Sound& sound, std::string& log) {
  constexpr uint64_t kSector = 512;
  const auto how = input.take<uint8_t>();
  const auto number = input.take<uint16_t>();
  const uint64_t entry = sound.entries[number % sound.entries.size()];
  if (how % 8 == 0) {
    log.resize(how / 8 % 4 == 0 ? number % sound.log.size() : log.size() + number);
    return;
  }
  log.resize(std::max(log.size(), sound.log.size()));
  buffer::EntryHeader header;
  std::memcpy(&header, sound.log.data() + entry, sizeof header);
  const bool of_header = how % 8 == 1;
  uint64_t at = of_header ? how / 8 % 4 * 8 : entry + input.take<uint16_t>() % (header.bytes - 8);
  if (how % 8 == 2) at = entry + how / 8 % 3 * 8;
  if (how % 8 == 3) {
    const uint64_t to = at / kSector * kSector;
    const uint64_t from = sound.entries[how / 8 % sound.entries.size()] / kSector * kSector;
    std::memcpy(log.data() + to, sound.log.data() + from, kSector);
  } else if (how % 8 == 4) {
    std::memset(log.data() + at / kSector * kSector, 0, kSector);
  } else if (how % 8 == 5) {
    log[at] = static_cast<char>(log[at] ^ 1 << how / 8 % 8);
  } else {
    const auto word = input.take<uint64_t>();
    std::memcpy(log.data() + at, &word, sizeof word);
  }
  if (!seal) return;
  uint64_t words[4];
  std::memcpy(words, log.data(), sizeof words);  // magic, salt, log_bytes, checksum
  if (of_header) {
    words[3] = pm::checksum64(words, 3 * sizeof words[0], words[0]);
    std::memcpy(log.data(), words, sizeof words);
    return;
  }
  std::memcpy(&header, log.data() + entry, sizeof header);
  if (header.bytes < sizeof header || entry + header.bytes > log.size()) return;
  header.checksum = pm::checksum64(log.data() + entry + sizeof header.checksum,
                                   header.bytes - sizeof header.checksum, words[1]);
  std::memcpy(log.data() + entry, &header, sizeof header);
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

struct Damage {
  Made made;
  bool sealed;       // something was made to look right
  bool spares_pool;  // and page file: it is in the log file alone
  bool has_everything() const { return made.closed || (made.log_in_file && spares_pool); }
};

void judge(const Sound& sound, const Damage& damage, const std::string& key,
           const std::optional<std::string>& value) {
  if (damage.sealed) return;
  const auto found = sound.written.find(key);
  if (!value) {
    const bool is_there = found != sound.written.end() && !sound.erased.contains(key);
    // What the death of a process left at the end of the log may have been damaged: then it looks
    // torn. A log in a file is refused then.
    if (is_there && damage.has_everything()) fail("'" + key + "' is missing, and nobody said why");
    return;
  }
  if (found == sound.written.end()) fail("'" + key + "' was never written");
  if (damage.has_everything()) {
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
      Database database = Database::open(pool, kName, database_options(damage.made.log_in_file));
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
  const auto made = input.take<uint8_t>();
  Damage damage{{made % 2 == 1, made / 2 % 2 == 1}, false, true};
  const Sound& sound = sound_of(damage.made);
  std::string image = sound.pool.image;
  std::string pages = sound.pages;
  std::string log = sound.log;
  Random random(size);
  for (int edits = 0; edits < 8 && !input.empty(); ++edits) {
    const auto what = input.take<uint8_t>();
    const bool seal = what / 8 % 2 == 1;
    const auto number = input.take<uint16_t>();
    const bool of_log = damage.made.log_in_file && what >= 128;
    damage.spares_pool &= of_log;
    if (of_log) {
      edit_log(input, seal, sound, log);
    } else if (what % 8 < 3) {
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
  if (damage.made.log_in_file) write_file(log_path(), log);
  live_with_it(sound, damage);
  return 0;
}
