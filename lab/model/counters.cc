#include "lab/model/counters.h"

#include <nlohmann/json.hpp>

namespace perdure::lab {
namespace {

using nlohmann::json;

double divide(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace

double Counters::media_writes_per_wpq_insert() const {
  return divide(media_write_units(), static_cast<double>(wpq_inserts()));
}

double Counters::write_amplification() const {
  return divide(media_write_bytes(), static_cast<double>(payload_bytes));
}

double Counters::effective_write_ratio() const {
  return divide(static_cast<double>(payload_bytes), media_write_bytes());
}

Counters& Counters::operator+=(const Counters& other) {
  for (const CounterField& field : kCounterFields) this->*field.member += other.*field.member;
  return *this;
}

Counters& Counters::operator-=(const Counters& other) {
  for (const CounterField& field : kCounterFields) this->*field.member -= other.*field.member;
  return *this;
}

SiteCounters& SiteCounters::operator+=(const SiteCounters& other) {
  for (const SiteCounterField& field : kSiteCounterFields) {
    this->*field.member += other.*field.member;
  }
  return *this;
}

SiteCounters& SiteCounters::operator-=(const SiteCounters& other) {
  for (const SiteCounterField& field : kSiteCounterFields) {
    this->*field.member -= other.*field.member;
  }
  return *this;
}

json to_json(const Counters& counters) {
  json object;
  for (const CounterField& field : kCounterFields) object[field.name] = counters.*field.member;
  object["wpq_inserts"] = counters.wpq_inserts();
  object["media_writes"] = counters.media_write_units();
  object["media_reads"] = counters.media_read_units;
  object["media_write_bytes"] = counters.media_write_bytes();
  object["media_read_bytes"] = counters.media_read_bytes();
  object["media_writes_per_wpq_insert"] = counters.media_writes_per_wpq_insert();
  object["write_amplification"] = counters.write_amplification();
  return object;
}

json to_json(const SiteCounters& counters) {
  json object;
  for (const SiteCounterField& field : kSiteCounterFields) {
    object[field.name] = counters.*field.member;
  }
  object["wpq_inserts"] = counters.wpq_inserts();
  object["media_writes"] = counters.media_write_units();
  return object;
}

}  // namespace perdure::lab
