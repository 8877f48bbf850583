// Pools, of perdure/c.h.

#include "capi/support.h"
#include "perdure/catalog.h"

using namespace perdure;
using namespace perdure::capi;

namespace {

PoolOptions pool_options(const perdure_pool_options* given) {
  const perdure_pool_options from = sized_options(given);
  PoolOptions options;
  if (from.capacity_bytes != 0) options.capacity_bytes = from.capacity_bytes;
  if (from.growth_bytes != 0) options.growth_bytes = from.growth_bytes;
  options.reserve_bytes = from.reserve_bytes;
  options.capacity_at_least_bytes = from.capacity_at_least_bytes;
  options.copy_bytes_max = from.copy_bytes_max;
  if (from.durability > PERDURE_POWER) refuse("durability is 0 to 2");
  options.durability = static_cast<Durability>(from.durability);
  if (from.domain > 3) refuse("domain is 0 to 3");
  options.force_domain = from.domain != 0;
  if (options.force_domain) options.domain = static_cast<Domain>(from.domain - 1);
  options.read_only = from.read_only != 0;
  options.verify = from.verify != 0;
  options.huge_pages = from.small_pages == 0;
  options.verify_payload = from.trust_payload == 0;
  options.seal_on_close = from.no_seal == 0;
  options.serve_backups = from.serve_backups != 0;
  if (from.nearly_full_percent != 0) {
    options.nearly_full_percent = from.nearly_full_percent <= 100 ? from.nearly_full_percent : 0;
  }
  if (from.on_event != nullptr) {
    options.on_event = [call = from.on_event,
                        context = from.on_event_context](const PoolEvent& event) {
      const std::string path(event.path);
      const std::string message(event.message);
      perdure_event plain{};
      plain.size = sizeof plain;
      plain.kind = static_cast<uint32_t>(event.kind);
      plain.path = path.c_str();
      plain.message = message.c_str();
      plain.size_bytes = event.size_bytes;
      plain.used_bytes = event.used_bytes;
      plain.capacity_bytes = event.capacity_bytes;
      call(context, &plain);
    };
  }
  return options;
}

template <size_t N>
void copy_text(const std::string& from, char (&to)[N]) {
  const size_t length = std::min(from.size(), N - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

void copy_info(const PoolInfo& from, perdure_pool_info& info) {
  const size_t room = info.size;
  if (room < sizeof(size_t)) refuse("the size of the info is not set");
  perdure_pool_info to;
  std::memset(&to, 0, sizeof to);
  to.size = std::min(room, sizeof to);
  to.capacity_bytes = from.capacity_bytes;
  to.size_bytes = from.size_bytes;
  to.allocated_bytes = from.allocated_bytes;
  to.free_bytes = from.free_bytes;
  to.generation = from.generation;
  to.format_version = from.format_version;
  to.clean = from.clean ? 1 : 0;
  to.read_only = from.read_only ? 1 : 0;
  to.durability = static_cast<uint32_t>(from.durability);
  copy_text(from.uuid, to.uuid);
  copy_text(to_string(from.medium), to.medium);
  copy_text(to_string(from.domain), to.domain);
  std::memcpy(&info, &to, to.size);
}

void visit_all(const std::vector<StructureInfo>& structures, perdure_visit_structure visit,
               void* context) {
  const auto kind = [](const std::string& text) {
    return text == to_string(Kind::kU64) ? PERDURE_U64 : PERDURE_BYTES;
  };
  for (const StructureInfo& one : structures) {
    if (visit(context, one.name.c_str(), one.type.c_str(), kind(one.key_kind),
              kind(one.value_kind)) == 0) {
      return;
    }
  }
}

}  // namespace

perdure_status perdure_pool_create(const char* path, const perdure_pool_options* options,
                                   perdure_pool** pool) {
  return guarded([&] {
    need(path, "path");
    need(pool, "pool") = new perdure_pool{Pool::create(path, pool_options(options))};
  });
}

perdure_status perdure_pool_open(const char* path, const perdure_pool_options* options,
                                 perdure_pool** pool) {
  return guarded([&] {
    need(path, "path");
    need(pool, "pool") = new perdure_pool{Pool::open(path, pool_options(options))};
  });
}

perdure_status perdure_pool_anonymous(const perdure_pool_options* options, perdure_pool** pool) {
  return guarded(
      [&] { need(pool, "pool") = new perdure_pool{Pool::anonymous(pool_options(options))}; });
}

perdure_status perdure_pool_close(perdure_pool* pool) {
  if (pool == nullptr) return PERDURE_OK;
  const perdure_status status = guarded([&] { pool->pool.close(); });
  if (status != PERDURE_IN_USE) delete pool;
  return status;
}

perdure_status perdure_pool_sync(perdure_pool* pool) {
  return guarded([&] { need(pool, "pool").pool.sync(); });
}

perdure_status perdure_pool_check(const perdure_pool* pool, perdure_report report, void* context,
                                  uint64_t* problems) {
  return guarded([&] { give(problems, need(pool, "pool").pool.check(reporter(report, context))); });
}

perdure_status perdure_pool_get_info(const perdure_pool* pool, perdure_pool_info* info) {
  return guarded([&] { copy_info(need(pool, "pool").pool.info(), need(info, "info")); });
}

perdure_status perdure_pool_structures(const perdure_pool* pool, perdure_visit_structure visit,
                                       void* context) {
  return guarded([&] {
    if (visit == nullptr) refuse("visit is NULL");
    visit_all(need(pool, "pool").pool.structures(), visit, context);
  });
}

perdure_status perdure_pool_inspect(const char* path, perdure_pool_info* info,
                                    perdure_visit_structure visit, void* context,
                                    int* open_to_write) {
  return guarded([&] {
    const PoolInspection found = Pool::inspect(&need(path, "path"));
    if (info != nullptr) copy_info(found.info, *info);
    if (open_to_write != nullptr) *open_to_write = found.open_to_write ? 1 : 0;
    if (visit != nullptr) visit_all(found.structures, visit, context);
  });
}

perdure_status perdure_pool_drop(perdure_pool* pool, const char* name, uint64_t* freed_bytes) {
  return guarded(
      [&] { give(freed_bytes, drop_structure(need(pool, "pool").pool, &need(name, "name"))); });
}

perdure_status perdure_pool_rename(perdure_pool* pool, const char* from, const char* to) {
  return guarded([&] { need(pool, "pool").pool.rename(&need(from, "from"), &need(to, "to")); });
}

perdure_status perdure_pool_shrink(perdure_pool* pool, uint64_t* shrunk_bytes) {
  return guarded([&] { give(shrunk_bytes, need(pool, "pool").pool.shrink()); });
}

perdure_status perdure_pool_backup(const perdure_pool* pool, const char* path, const char* base) {
  return guarded([&] {
    BackupOptions options;
    if (base != nullptr) options.base = base;
    need(pool, "pool").pool.backup(&need(path, "path"), options);
  });
}

perdure_status perdure_pool_backup_live(const char* pool, const char* path, const char* base) {
  return guarded([&] {
    BackupOptions options;
    if (base != nullptr) options.base = base;
    Pool::backup_live(&need(pool, "pool"), &need(path, "path"), options);
  });
}

perdure_status perdure_pool_restore(const char* backup, const char* path) {
  return guarded([&] { Pool::restore(&need(backup, "backup"), &need(path, "path")); });
}
