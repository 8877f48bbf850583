#include "support/damage.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "index/owned_blocks.h"
#include "index/presets.h"
#include "index/structure.h"
#include "perdure/catalog.h"
#include "perdure/pool.h"
#include "pm/checksum.h"
#include "pm/layout.h"
#include "support/files.h"
#include "support/scale.h"

namespace perdure::test {

namespace {

constexpr char kName[] = "index";

// A value for a key: byte strings of every third key have a few hundred bytes.
uint64_t value_for(uint64_t key, uint64_t version, Kind kind, uint64_t keys) {
  for (uint64_t v = version * 1000;; ++v) {
    const uint64_t number = v * keys + key;
    if (kind == Kind::kU64 || key % 3 != 0) return number;
    const uint64_t bytes = make_value(kind, number).bytes().size();
    if (bytes >= 200 && bytes <= 900) return number;
  }
}

template <typename T>
T read_at(const std::string& image, uint64_t offset) {
  T value;
  std::memcpy(&value, image.data() + offset, sizeof value);
  return value;
}

template <typename T>
void write_at(std::string& image, uint64_t offset, const T& value) {
  std::memcpy(image.data() + offset, &value, sizeof value);
}

pm::PoolHeader header_of(const std::string& image) { return read_at<pm::PoolHeader>(image, 0); }

uint64_t root_of(const std::string& image) {
  const uint64_t directory = header_of(image).directory_offset;
  for (uint32_t i = 0; i < pm::kDirectoryEntries; ++i) {
    const auto entry =
        read_at<pm::DirectoryEntry>(image, directory + i * sizeof(pm::DirectoryEntry));
    if (entry.in_use == 1) return entry.root;
  }
  throw std::logic_error("the pool has no structure");
}

}  // namespace

Range range_of(const SoundPool& sound, Region region) {
  const pm::PoolHeader header = header_of(sound.image);
  const uint64_t segments = (sound.image.size() - header.data_offset) / pm::kSegmentBytes;
  const uint64_t root = root_of(sound.image);
  switch (region) {
    case Region::kHeader:
      return {0, sizeof(pm::PoolHeader)};
    case Region::kDirectory:
      return {header.directory_offset, header.lanes_offset};
    case Region::kLanes:
      return {header.lanes_offset, header.descriptors_offset};
    case Region::kDescriptors:
      return {header.descriptors_offset,
              header.descriptors_offset + segments * sizeof(pm::SegmentDescriptor)};
    case Region::kRoot:
      return {root, root + 256};
    case Region::kHeap:
      break;
  }
  return {header.data_offset, sound.image.size()};
}

namespace {

// A place in the region, on a multiple of 8: mostly where something is stored.
uint64_t place_in(const SoundPool& sound, Region region, Random& random) {
  const Range range = range_of(sound, region);
  if (region == Region::kDirectory && random.chance(60)) {
    return range.begin + random.below(sizeof(pm::DirectoryEntry) / 8) * 8;
  }
  if (region == Region::kLanes && random.chance(50)) {
    return range.begin + random.below(sizeof(pm::Lane) / 8) * 8;
  }
  if (region == Region::kHeap && random.chance(80)) {
    return sound.lines_in_use[random.below(sound.lines_in_use.size())] + random.below(8) * 8;
  }
  return range.begin + random.below((range.end - range.begin) / 8) * 8;
}

// Half of the words are likely to mean something: small, nearly what was there, or an offset.
uint64_t another_word(const SoundPool& sound, uint64_t before, Random& random) {
  switch (random.below(8)) {
    case 0:
      return 0;
    case 1:
      return ~uint64_t{0};
    case 2:
      return before + 1 + random.below(64);
    case 3:
      return before - 1 - random.below(64);
    case 4:
      return random.below(sound.image.size() / 64) * 64;
    case 5:
      return before ^ (uint64_t{1} << random.below(64));
    case 6:
      return read_at<uint64_t>(
          sound.image,
          sound.lines_in_use[random.below(sound.lines_in_use.size())] + random.below(8) * 8);
    default:
      return random.next();
  }
}

// Changes something; returns what, in words.
std::string change(const SoundPool& sound, Region region, Random& random, std::string& image) {
  const uint64_t place = place_in(sound, region, random);
  std::ostringstream text;
  switch (random.below(4)) {
    case 0: {
      const uint64_t byte = place + random.below(8);
      const uint64_t bit = random.below(8);
      image[byte] = static_cast<char>(image[byte] ^ (1 << bit));
      text << "bit " << bit << " of byte " << byte;
      return text.str();
    }
    case 1: {
      const auto before = read_at<uint64_t>(image, place);
      const uint64_t after = another_word(sound, before, random);
      write_at(image, place, after);
      text << "the word at " << place << " from " << before << " to " << after;
      return text.str();
    }
    default:
      break;
  }
  constexpr uint64_t kSizes[] = {64, 256, 4096};
  const uint64_t bytes = kSizes[random.below(3)];
  const uint64_t begin = place / bytes * bytes;
  text << "the " << bytes << " bytes at " << begin;
  switch (random.below(3)) {
    case 0:
      std::memset(image.data() + begin, 0, bytes);
      text << " to zeros";
      break;
    case 1:
      for (uint64_t i = 0; i < bytes; i += 8) write_at(image, begin + i, random.next());
      text << " to noise";
      break;
    default: {
      const uint64_t from =
          sound.lines_in_use[random.below(sound.lines_in_use.size())] / bytes * bytes;
      std::memcpy(image.data() + begin, sound.image.data() + from, bytes);
      text << " to those at " << from;
    }
  }
  return text.str();
}

void mend_header(std::string& image) {
  pm::PoolHeader header = header_of(image);
  header.checksum = pm::checksum64(&header, offsetof(pm::PoolHeader, checksum));
  constexpr uint64_t kValueBits = 0xffffffffffff;
  header.segments_word = pm::seal_word(header.segments_word & kValueBits, pm::kSegmentsSalt);
  header.generation_word = pm::seal_word(header.generation_word & kValueBits, pm::kGenerationSalt);
  write_at(image, 0, header);
}

void mend_directory(const Range& range, const SoundPool& sound, std::string& image) {
  for (uint64_t at = range.begin; at < range.end; at += sizeof(pm::DirectoryEntry)) {
    if (std::memcmp(image.data() + at, sound.image.data() + at, sizeof(pm::DirectoryEntry)) == 0) {
      continue;
    }
    auto entry = read_at<pm::DirectoryEntry>(image, at);
    const uint64_t number = (at - range.begin) / sizeof entry;
    entry.checksum = pm::checksum64(&entry, offsetof(pm::DirectoryEntry, checksum), number);
    if (entry.in_use > 1) entry.in_use = 1;
    write_at(image, at, entry);
  }
}

void mend_lanes(const Range& range, const SoundPool& sound, Random& random, std::string& image) {
  for (uint64_t at = range.begin; at < range.end; at += sizeof(pm::Lane)) {
    if (std::memcmp(image.data() + at, sound.image.data() + at, sizeof(pm::Lane)) == 0) continue;
    auto lane = read_at<pm::Lane>(image, at);
    const uint64_t bytes = random.below(pm::kRedoBytes / 8 + 1) * 8;
    lane.armed = uint64_t{pm::checksum32(lane.redo, bytes)} << 32 | bytes;
    lane.mark = pm::seal_word((at - range.begin) / sizeof lane + 1, pm::kLaneSalt);
    write_at(image, at, lane);
  }
}

void mend_descriptors(const Range& range, std::string& image) {
  for (uint64_t at = range.begin; at < range.end; at += sizeof(pm::SegmentDescriptor)) {
    const uint64_t index = (at - range.begin) / sizeof(pm::SegmentDescriptor);
    const uint64_t value = read_at<uint64_t>(image, at) & 0xffffffffffff;
    if (value == 0) continue;
    write_at(image, at, pm::seal_word(value, pm::kDescriptorSalt + (index << 16)));
  }
}

// The seal of a root is over as many bytes as make it right in the sound image.
bool mend_root(const SoundPool& sound, std::string& image) {
  const uint64_t root = root_of(sound.image);
  const auto seal = read_at<index::RootSeal>(sound.image, root);
  const uint64_t begin = root + sizeof seal;
  for (uint64_t bytes = 8; bytes <= 4096; bytes += 8) {
    if (pm::checksum64(sound.image.data() + begin, bytes) != seal.checksum) continue;
    write_at(image, root, seal.magic);
    write_at(image, root + offsetof(index::RootSeal, checksum),
             pm::checksum64(image.data() + begin, bytes));
    return true;
  }
  return false;
}

}  // namespace

bool mend(const SoundPool& sound, Region region, Random& random, std::string& image) {
  const Range range = range_of(sound, region);
  switch (region) {
    case Region::kHeader:
      return mend_header(image), true;
    case Region::kDirectory:
      return mend_directory(range, sound, image), true;
    case Region::kLanes:
      return mend_lanes(range, sound, random, image), true;
    case Region::kDescriptors:
      return mend_descriptors(range, image), true;
    case Region::kRoot:
      return mend_root(sound, image);
    case Region::kHeap:
      break;
  }
  return false;
}

namespace {

// Thrown out of a walk that visits far more than there can be.
struct Endless {};

// One life of a damaged pool: what was reported of the damage, and what must never be.
class Life {
 public:
  Life(const std::string& path, const SoundPool& sound) : path_(path), sound_(sound) {}

  void read();
  void write();
  std::string wrong(bool must_be_found) const;

 private:
  // Carries out a call. An Error reports the damage; any other exception must not be.
  void attempt(const char* what, const std::function<void()>& call);
  void open(bool read_only);
  void close();
  void check();
  void look_up_each();
  void look_up_together();
  void walk();
  void visit(const char* what, uint64_t& visits, Datum key, Datum value);
  // Judges a value that was found for a key; says whether it is one that was written for the key.
  bool judge(const char* what, uint64_t key, Datum value);
  void differs(const std::string& text);
  void fail(const std::string& text) {
    if (++failures_ <= 5) wrong_ << text << '\n';
  }
  const std::function<void(const std::string&)> told_ = [this](const std::string& sentence) {
    if (sentence.empty()) fail("a violation is reported without words");
    ++tellings_;
  };

  std::string path_;
  const SoundPool& sound_;
  std::optional<Pool> pool_;
  std::unique_ptr<AnyIndex> index_;
  bool writing_ = false;
  uint64_t tellings_ = 0;
  uint64_t failures_ = 0;
  uint64_t differences_ = 0;
  std::string first_difference_;
  std::ostringstream wrong_;
};

void Life::attempt(const char* what, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    ++tellings_;
    if (std::string(error.what()).empty()) fail(std::string(what) + ": an error without words");
  } catch (const Endless&) {
    fail(std::string(what) + ": visits far more records than there are");
  } catch (const std::exception& error) {
    fail(std::string(what) + ": throws what is no perdure::Error: " + error.what());
  }
}

void Life::open(bool read_only) {
  attempt("open", [&] {
    PoolOptions options;
    options.read_only = read_only;
    pool_.emplace(Pool::open(path_, options));
    pool_->structures();
    // It asks the kernel about each mapping, and a sanitizer has many and large ones.
    if (!kUnderAddressSanitizer) pool_->info();
    index_ = open_index(*pool_, kName);
  });
  if (index_ == nullptr) return;
  if (index_->key_kind() == sound_.key && index_->value_kind() == sound_.value) return;
  ++tellings_;  // a directory entry made right again says so: nothing can be compared
  index_.reset();
}

void Life::close() {
  attempt("close", [&] {
    index_.reset();
    if (pool_) pool_->close();
  });
  pool_.reset();
}

void Life::differs(const std::string& text) {
  if (writing_) return;
  if (differences_++ == 0) first_difference_ = text;
}

bool Life::judge(const char* what, uint64_t key, Datum value) {
  const std::optional<uint64_t> number = value_number(value);
  const bool of_this_key = number && sound_.owner_of(*number) == key;
  if (!of_this_key && sound_.value == Kind::kBytes) {
    std::ostringstream text;
    text << what << " gives key " << key << " a byte string that was never written for it";
    fail(text.str());
  }
  const auto expected = sound_.model.find(key);
  return expected != sound_.model.end() && number && *number == expected->second;
}

void Life::check() {
  attempt("Pool::check", [&] { pool_->check(told_); });
  if (index_ == nullptr) return;
  attempt("check", [&] { index_->check(told_); });
  attempt("visit_blocks", [&] { index::visit_blocks_of(*index_, [](uint64_t, uint64_t) {}); });
  attempt("statistics", [&] { index_->statistics(); });
}

void Life::look_up_each() {
  for (uint64_t key = 0; key < sound_.keys; ++key) {
    attempt("lookup", [&] {
      Value out;
      const bool found = index_->lookup(make_key(sound_.key, key).datum(), out);
      const bool right =
          found ? judge("lookup", key, out.datum()) : sound_.model.find(key) == sound_.model.end();
      if (!right) differs("lookup of key " + std::to_string(key));
    });
  }
}

void Life::look_up_together() {
  constexpr uint64_t kTogether = 50;
  for (uint64_t first = 0; first < sound_.keys; first += kTogether) {
    attempt("multi_lookup", [&] {
      std::vector<Value> keys;
      std::vector<Datum> data;
      for (uint64_t i = 0; i < kTogether; ++i) keys.push_back(make_key(sound_.key, first + i));
      for (const Value& key : keys) data.push_back(key.datum());
      std::vector<Value> values(kTogether);
      bool found[kTogether] = {};
      index_->multi_lookup(data, values, found);
      for (uint64_t i = 0; i < kTogether; ++i) {
        if (found[i] && !judge("multi_lookup", first + i, values[i].datum())) {
          differs("multi_lookup of key " + std::to_string(first + i));
        }
      }
    });
  }
}

void Life::visit(const char* what, uint64_t& visits, Datum key, Datum value) {
  if (++visits > 100 * sound_.keys) throw Endless();
  const std::optional<uint64_t> number = key_number(key);
  if (!number || *number >= sound_.keys) {
    differs(std::string(what) + " returns a key that was never written");
    if (sound_.key == Kind::kBytes && sound_.value == Kind::kBytes) {
      fail(std::string(what) + " returns a byte-string key that was never written");
    }
  } else if (!judge(what, *number, value)) {
    differs(std::string(what) + " at key " + std::to_string(*number));
  }
}

void Life::walk() {
  attempt("for_each", [&] {
    uint64_t visits = 0;
    index_->for_each([&](Datum key, Datum value) { visit("for_each", visits, key, value); });
    if (visits != sound_.model.size()) differs("for_each, by its count");
  });
  if (!catalog_entry(sound_.structure).traits.ordered) return;
  attempt("scan", [&] {
    uint64_t visits = 0;
    const Value from = sound_.key == Kind::kU64 ? Value() : make_key(sound_.key, 0);
    index_->scan(from.datum(), ~uint64_t{0}, [&](Datum key, Datum value) {
      visit("scan", visits, key, value);
      return true;
    });
    if (visits != sound_.model.size()) differs("scan, by its count");
  });
  attempt("scan_back", [&] {
    uint64_t visits = 0;
    index_->scan_back(std::nullopt, ~uint64_t{0}, [&](Datum key, Datum value) {
      visit("scan_back", visits, key, value);
      return true;
    });
    if (visits != sound_.model.size()) differs("scan_back, by its count");
  });
}

void Life::read() {
  open(true);
  if (pool_) check();
  if (index_ != nullptr) {
    look_up_each();
    look_up_together();
    walk();
  }
  close();
}

void Life::write() {
  writing_ = true;
  open(false);
  if (index_ != nullptr) {
    look_up_each();
    for (uint64_t key = 0; key < sound_.keys; ++key) {
      attempt("a write", [&] {
        const Value name = make_key(sound_.key, key);
        const Value value =
            make_value(sound_.value, value_for(key, 5 + key % 2, sound_.value, sound_.keys));
        if (key % 4 == 0) {
          index_->remove(name.datum());
        } else if (key % 4 == 1) {
          index_->insert(name.datum(), value.datum());
        } else if (key % 4 == 2) {
          index_->update(name.datum(), value.datum());
        } else {
          index_->upsert(name.datum(), value.datum());
        }
      });
    }
    look_up_each();
    walk();
  }
  close();
  open(true);
  if (pool_) check();
  if (index_ != nullptr) look_up_each();
  close();
}

std::string Life::wrong(bool must_be_found) const {
  std::string text = wrong_.str();
  if (must_be_found && differences_ > 0 && tellings_ == 0) {
    text += "neither an error nor a check reports the damage, but " + std::to_string(differences_) +
            " answers are wrong, first " + first_difference_ + "\n";
  }
  return text;
}

}  // namespace

SoundPool make_sound_pool(const std::string& path, const std::string& structure, Kind key,
                          Kind value, uint64_t keys) {
  SoundPool sound{structure, key, value, {}, {}, keys, {}};
  {
    PoolOptions options;
    options.capacity_bytes =
        std::max(catalog_entry(structure).traits.capacity_bytes_min, uint64_t{4} << 20);
    options.growth_bytes = pm::kSegmentBytes;
    Pool pool = Pool::create(path, options);
    const auto index = create_index(pool, kName, structure, key, value,
                                    index::presets_of(structure).small_options);
    // Every fifth key is never there, every seventh was removed, every fourth has its second value.
    const auto put = [&](uint64_t number, uint64_t version) {
      const uint64_t written = value_for(number, version, value, keys);
      index->upsert(make_key(key, number).datum(), make_value(value, written).datum());
      sound.model[number] = written;
    };
    for (uint64_t i = 0; i < keys; ++i) {
      if (i % 5 != 0) put(i, 1);
    }
    for (uint64_t i = 0; i < keys; ++i) {
      if (i % 7 == 0 && sound.model.erase(i) == 1) index->remove(make_key(key, i).datum());
      if (i % 4 == 0 && sound.model.count(i) == 1) put(i, 2);
    }
  }
  sound.image = read_file(path);
  const uint64_t data = header_of(sound.image).data_offset;
  const std::string zeros(64, '\0');
  for (uint64_t at = data; at < sound.image.size(); at += 64) {
    if (sound.image.compare(at, 64, zeros) != 0) sound.lines_in_use.push_back(at);
  }
  return sound;
}

const char* to_string(Region region) {
  switch (region) {
    case Region::kHeader:
      return "header";
    case Region::kDirectory:
      return "root directory";
    case Region::kLanes:
      return "lanes";
    case Region::kDescriptors:
      return "descriptors";
    case Region::kRoot:
      return "root";
    case Region::kHeap:
      return "heap";
  }
  return "unknown";
}

DamageDone damage(const SoundPool& sound, Region region, Random random, std::string& image) {
  DamageDone done;
  done.text = std::string(to_string(region)) + ": " + change(sound, region, random, image);
  if (random.chance(50) && mend(sound, region, random, image)) {
    done.mended = true;
    done.text += ", its checksum made right again";
  }
  return done;
}

std::string live_with(const std::string& path, const SoundPool& sound, bool must_be_found) {
  Life life(path, sound);
  life.read();
  life.write();
  return life.wrong(must_be_found);
}

}  // namespace perdure::test
