// What the functions of perdure/c.h share: errors as codes, and the conversions.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/c.h"
#include "perdure/error.h"
#include "perdure/index.h"
#include "perdure/pool.h"
#include "perdure/store.h"

// The names are those of C: NOLINTBEGIN(readability-identifier-naming)
struct perdure_pool {
  perdure::Pool pool;
};
struct perdure_index {
  std::unique_ptr<perdure::AnyIndex> index;
};
struct perdure_store {
  perdure::Store store;
};
struct perdure_batch {
  perdure::Store::Batch batch;
};
struct perdure_cursor {
  perdure::Store::Cursor cursor;
};
// NOLINTEND(readability-identifier-naming)

namespace perdure::capi {

// Keeps the message for perdure_last_error(); returns the code.
perdure_status fail(perdure_status status, const char* message) noexcept;

// Runs `work`, and makes a code of what it throws: no exception leaves the library.
template <typename Work>
perdure_status guarded(Work work) noexcept {
  try {
    work();
    return PERDURE_OK;
  } catch (const Error& error) {
    return fail(static_cast<perdure_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(PERDURE_NO_MEMORY, "there is no memory left");
  } catch (const std::exception& error) {
    return fail(PERDURE_INTERNAL, error.what());
  } catch (...) {
    return fail(PERDURE_INTERNAL, "an exception of an unknown type");
  }
}

[[noreturn]] void refuse(const std::string& message);

// Throws kInvalidArgument for NULL.
template <typename T>
T& need(T* pointer, const char* what) {
  if (pointer == nullptr) refuse(std::string(what) + " is NULL");
  return *pointer;
}

template <typename T, typename From>
void give(T* to, From value) {
  if (to != nullptr) *to = static_cast<T>(value);
}

inline std::string_view bytes_of(const void* data, size_t size, const char* what) {
  if (data == nullptr && size != 0) refuse(std::string(what) + " is NULL, and not empty");
  return {static_cast<const char*>(data), size};
}

Datum datum_of(const perdure_datum& datum, const char* what);
perdure_datum datum_of(const Datum& datum);

// Copies into the caller's object. Throws std::bad_alloc, with the object as it was.
void set_bytes(perdure_value& to, std::string_view bytes);
void set_value(perdure_value& to, const Datum& value);

// The options of a caller, whose header may be older (a smaller struct: the rest is zero) or newer,
// if it does not use what this library does not know. NULL: all zero.
template <typename Options>
Options sized_options(const Options* given) {
  Options options;
  std::memset(&options, 0, sizeof options);
  if (given == nullptr) return options;
  if (given->size < sizeof(size_t)) refuse("the size of the options is not set");
  std::memcpy(&options, given, std::min(given->size, sizeof options));
  const auto* bytes = reinterpret_cast<const char*>(given);
  for (size_t i = sizeof options; i < given->size; ++i) {
    if (bytes[i] != 0) refuse("an option that this version of the library does not know");
  }
  return options;
}

// A callback of the caller as the visitor that a scan takes: false ends it.
inline auto visitor(perdure_visit visit, void* context) {
  return [visit, context](Datum key, Datum value) {
    const perdure_datum c_key = datum_of(key);
    const perdure_datum c_value = datum_of(value);
    return visit(context, &c_key, &c_value) != 0;
  };
}

std::function<void(const std::string&)> reporter(perdure_report report, void* context);
void tell_figures(const std::vector<Statistic>& statistics, perdure_figure figure, void* context);

}  // namespace perdure::capi
