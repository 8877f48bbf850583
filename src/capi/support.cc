#include "capi/support.h"

#include <cstdlib>

#include "perdure/version.h"

namespace perdure::capi {
namespace {

constexpr size_t kMessageBytes = 512;

// Of plain memory, so that even the message that memory is short needs none. In the thread's static
// block, as all that is thread_local in this library since a signal handler reads some of it
// (pm/cut.cc); a program that loads the library later has some 1,600 bytes there for all its
// libraries.
struct LastError {
  perdure_status status;
  char message[kMessageBytes];
};
thread_local LastError last_error = {PERDURE_OK, ""};

}  // namespace

perdure_status fail(perdure_status status, const char* message) noexcept {
  last_error.status = status;
  const size_t length = std::min(std::strlen(message), kMessageBytes - 1);
  std::memcpy(last_error.message, message, length);
  last_error.message[length] = '\0';
  return status;
}

void refuse(const std::string& message) { throw Error(ErrorCode::kInvalidArgument, message); }

Datum datum_of(const perdure_datum& datum, const char* what) {
  switch (datum.kind) {
    case PERDURE_U64:
      return Datum(datum.word);
    case PERDURE_BYTES:
      return Datum(bytes_of(datum.data, datum.size, what));
    default:
      refuse(std::string(what) + " is of no kind: use perdure_word() or perdure_bytes()");
  }
}

perdure_datum datum_of(const Datum& datum) {
  if (datum.kind() == Kind::kU64) return perdure_word(datum.word());
  return perdure_bytes(datum.bytes().data(), datum.bytes().size());
}

void set_bytes(perdure_value& to, std::string_view bytes) {
  if (to.data == nullptr || to.capacity < bytes.size() + 1) {
    const size_t capacity = std::max(bytes.size() + 1, 2 * to.capacity);
    char* larger = static_cast<char*>(std::malloc(capacity));
    if (larger == nullptr) throw std::bad_alloc();
    std::free(to.data);
    to.data = larger;
    to.capacity = capacity;
  }
  if (!bytes.empty()) std::memcpy(to.data, bytes.data(), bytes.size());
  to.data[bytes.size()] = '\0';
  to.size = bytes.size();
  to.kind = PERDURE_BYTES;
}

void set_value(perdure_value& to, const Datum& value) {
  if (value.kind() == Kind::kBytes) return set_bytes(to, value.bytes());
  to.kind = PERDURE_U64;
  to.word = value.word();
}

std::function<void(const std::string&)> reporter(perdure_report report, void* context) {
  return [report, context](const std::string& sentence) {
    if (report != nullptr) report(context, sentence.c_str());
  };
}

void tell_figures(const std::vector<Statistic>& statistics, perdure_figure figure, void* context) {
  for (const Statistic& one : statistics) {
    figure(context, one.name.c_str(), one.value, one.unit.c_str());
  }
}

}  // namespace perdure::capi

using namespace perdure;
using namespace perdure::capi;

const char* perdure_last_error() { return last_error.message; }
perdure_status perdure_last_status() { return last_error.status; }

const char* perdure_status_name(int status) {
  if (status == PERDURE_OK) return "ok";
  if (status == PERDURE_NO_MEMORY) return "no-memory";
  const bool known = status >= PERDURE_INVALID_ARGUMENT && status <= PERDURE_TOO_OLD;
  return known ? to_string(static_cast<ErrorCode>(status)) : "unknown";
}

const char* perdure_version() { return kVersion; }

void perdure_value_free(perdure_value* value) {
  if (value == nullptr) return;
  std::free(value->data);
  *value = {};
}
