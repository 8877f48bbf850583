#include "lab/seam/model_sink.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <climits>
#include <nlohmann/json.hpp>
#include <utility>

#include "lab/seam/dispatch.h"
#include "lab/seam/runtime.h"

namespace perdure::lab {
namespace {

using nlohmann::json;

constexpr uint64_t kPageBytes = 4096;
// Further apart than any region is long.
constexpr uint64_t kRegionStride = uint64_t{1} << 46;
constexpr uint64_t kPartBytesMax = uint64_t{1} << 30;
constexpr uint32_t kPcBits = 48;
// Levels of calls that a persist's place has: one function that flushes calls another, seldom a
// third.
constexpr uint32_t kCallers = 3;

template <class Counts>
bool is_empty(const Counts& counts) {
  return counts == Counts{};
}

std::string program_path() {
  char path[PATH_MAX] = {};
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  return length > 0 ? path : "";
}

// A place in the program as {"module", "offset"}.
json place_of(uint64_t pc) {
  static const std::string program = program_path();
  Dl_info info{};
  link_map* map = nullptr;
  if (dladdr1(reinterpret_cast<void*>(pc), &info, reinterpret_cast<void**>(&map),
              RTLD_DL_LINKMAP) == 0 ||
      map == nullptr) {
    return {{"module", ""}, {"offset", pc}};
  }
  const bool is_program = map->l_name == nullptr || *map->l_name == 0;
  return {{"module", is_program ? program : map->l_name}, {"offset", pc - map->l_addr}};
}

}  // namespace

uint32_t DenseNumbers::look_up(uint64_t value) {
  const auto [at, fresh] = numbers_.try_emplace(value, static_cast<uint32_t>(values_.size()));
  if (fresh) values_.push_back(value);
  slots_[slot_of(value)] = {.value = value, .number = at->second};
  return at->second;
}

ModelSink::ModelSink(const Profile& profile) : model_(profile) {
  sites_.of(0);  // no site
}

uint64_t ModelSink::function_of(uint64_t pc) {
  const auto [at, fresh] = functions_.try_emplace(pc, 0);
  if (fresh) {
    at->second =
        reinterpret_cast<uint64_t>(_Unwind_FindEnclosingFunction(reinterpret_cast<void*>(pc)));
  }
  return at->second;
}

// The place of a persistence primitive: with the calls that led to it, for it may be in a function
// that many call.
uint32_t ModelSink::site_with_callers(uint64_t pc) {
  uint64_t caller = 0;
  for (uint32_t up = kCallers; up-- > 0;) {
    const auto call = reinterpret_cast<uint64_t>(seam::call_stack.call(up));
    if (call != 0) caller = sites_.of(call | caller << kPcBits);
    if (caller > UINT16_MAX) caller = 0;  // more places than any program has: without their callers
  }
  // A function of nothing but inline assembly does not say that it was entered: the one that last
  // did called it.
  const auto entry = reinterpret_cast<uint64_t>(seam::call_stack.entry());
  if (entry != 0 && function_of(pc) != function_of(entry)) {
    caller = sites_.of(entry | caller << kPcBits);
    if (caller > UINT16_MAX) caller = 0;
  }
  return sites_.of(pc | caller << kPcBits);
}

json ModelSink::place_of_site(uint32_t number) const {
  const auto pc_of = [&](uint64_t site) { return site & ((uint64_t{1} << kPcBits) - 1); };
  uint64_t site = sites_.values()[number];
  json place = place_of(pc_of(site));
  json callers = json::array();
  while ((site >> kPcBits) != 0) {
    site = sites_.values()[site >> kPcBits];
    callers.push_back(place_of(pc_of(site)));
  }
  if (!callers.empty()) place["callers"] = std::move(callers);
  return place;
}

// The same name is the same memory: a pool that is closed and opened again.
uint64_t ModelSink::base_of(uint32_t region) {
  if (region >= region_places_.size()) region_places_.resize(size_t{region} + 1);
  uint32_t& place = region_places_[region];
  if (place == 0) {
    std::string name;
    for (Region& known : regions()) {
      if (known.number == region) name = std::move(known.name);
    }
    auto at = name.empty() ? region_names_.end()
                           : std::find(region_names_.begin(), region_names_.end(), name);
    if (at == region_names_.end()) at = region_names_.insert(at, std::move(name));
    place = static_cast<uint32_t>(at - region_names_.begin()) + 1;
  }
  last_region_ = region;
  last_base_ = (place - 1) * kRegionStride;
  return last_base_;
}

template <class Visit>
inline void ModelSink::for_each_part(const Event& event, Visit visit) {
  Access access{.thread = event.thread, .operation = thread(event.thread).operation};
  uint64_t left = event.bytes;
  if (event.region != 0) {
    access.pm = true;
    const bool persists = event.kind == EventKind::kFlush || event.kind == EventKind::kStream;
    access.site = persists ? site_with_callers(event.pc) : sites_.of(event.pc);
    access.address =
        (event.region == last_region_ ? last_base_ : base_of(event.region)) + event.offset;
    while (left > kPartBytesMax) {
      access.bytes = static_cast<uint32_t>(kPartBytesMax);
      visit(access);
      access.address += kPartBytesMax;
      left -= kPartBytesMax;
    }
    access.bytes = static_cast<uint32_t>(left);
    visit(access);
    return;
  }
  uint64_t address = event.address;
  do {
    const uint64_t within = address % kPageBytes;
    const uint64_t bytes = std::min(left, kPageBytes - within);
    access.address = uint64_t{pages_.of(address / kPageBytes)} * kPageBytes + within;
    access.bytes = static_cast<uint32_t>(bytes);
    visit(access);
    address += bytes;
    left -= bytes;
  } while (left != 0);
}

void ModelSink::on(const Event& event) {
  switch (event.kind) {
    case EventKind::kLoad:
      for_each_part(event, [this](const Access& part) { model_.load(part); });
      return;
    case EventKind::kStore:
      for_each_part(event, [this](const Access& part) { model_.store(part); });
      return;
    case EventKind::kUpdate:
      for_each_part(event, [this](const Access& part) { model_.locked(part); });
      return;
    case EventKind::kStream:
      for_each_part(event, [this](const Access& part) { model_.stream(part); });
      return;
    case EventKind::kFlush:
      for_each_part(event, [&](const Access& part) { model_.flush(part, event.flush); });
      return;
    case EventKind::kFence:
      model_.fence(event.thread, thread(event.thread).operation, site_with_callers(event.pc));
      return;
    case EventKind::kLocked:
      model_.locked_fence(event.thread, thread(event.thread).operation);
      return;
    case EventKind::kAllocate:
      model_.allocation(thread(event.thread).operation, event.bytes);
      return;
    case EventKind::kBegin:
      thread(event.thread) = {.operation = static_cast<uint16_t>(event.address),
                              .payload_bytes = event.bytes};
      return;
    case EventKind::kEnd: {
      Thread& ended = thread(event.thread);
      model_.operation_done(ended.operation, ended.payload_bytes);
      ended = {};
      return;
    }
    case EventKind::kSync:  // of pages: not what this models
      return;
  }
}

json ModelSink::report() const {
  const Quiet quiet;
  json operations = json::object();
  for (uint16_t type = 0; type < MemoryModel::kOperations; ++type) {
    const Counters& counters = model_.counters(type);
    if (!is_empty(counters)) operations[operation_name(type)] = to_json(counters);
  }
  json places = json::array();
  const std::vector<SiteCounters>& counts = model_.sites();
  for (size_t site = 0; site < counts.size(); ++site) {
    if (is_empty(counts[site])) continue;
    json place = to_json(counts[site]);
    place.update(place_of_site(static_cast<uint32_t>(site)));
    places.push_back(std::move(place));
  }
  const Pending pending = model_.pending();
  return {{"operations", std::move(operations)},
          {"sites", std::move(places)},
          {"pending",
           {{"cache_lines", pending.cache_lines},
            {"streaming_lines", pending.streaming_lines},
            {"media_units", pending.media_units},
            {"media_unit_lines", pending.media_unit_lines}}},
          {"profile", to_json(model_.profile())},
          {"regions", region_names_}};
}

}  // namespace perdure::lab
