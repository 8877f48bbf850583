// TLS on a connection, through OpenSSL where the build has it.
#pragma once

#include <memory>
#include <string>

#include "server/connection.h"

namespace perdure::server {

// Between what the driver moves and what the session reads and writes.
class TlsChannel {
 public:
  virtual ~TlsChannel() = default;
  // From wire_in() to `in`. False if the connection cannot go on.
  virtual bool decrypt(Connection& connection) = 0;
  // From `out` to wire_out(), as much as is sent at once; the rest stays. The same.
  virtual bool encrypt(Connection& connection) = 0;
  // Whether both sides have agreed on keys.
  virtual bool is_agreed() const = 0;
};

class TlsContext {
 public:
  virtual ~TlsContext() = default;
  virtual std::unique_ptr<TlsChannel> accept() = 0;
};

// Of files in PEM; `ca`, if given, is whose certificates clients must show. Throws
// Error(kInvalidArgument).
std::unique_ptr<TlsContext> make_tls_context(const std::string& certificate, const std::string& key,
                                             const std::string& ca);

}  // namespace perdure::server
