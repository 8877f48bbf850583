#include "server/tls.h"

#include <fmt/core.h>

#include "perdure/error.h"

#if defined(PERDURE_HAS_OPENSSL)
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <climits>

namespace perdure::server {

namespace {

constexpr int kChunk = 16 << 10;                   // of a record of TLS
constexpr size_t kWireBytesMax = size_t{1} << 20;  // that wait for the socket, or a record more

struct FreeSsl {
  void operator()(SSL* ssl) const { ::SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
};

class Channel final : public TlsChannel {
 public:
  explicit Channel(SSL_CTX* context) : ssl_(::SSL_new(context)) {
    if (ssl_ == nullptr) throw std::bad_alloc();
    ::SSL_set_bio(ssl_.get(), ::BIO_new(::BIO_s_mem()), ::BIO_new(::BIO_s_mem()));
    ::SSL_set_accept_state(ssl_.get());
  }

  bool decrypt(Connection& connection) override {
    Buffer& wire = connection.wire_in();
    while (!wire.empty()) {
      const int bytes = static_cast<int>(std::min<size_t>(wire.size(), INT_MAX));
      const int taken = ::BIO_write(::SSL_get_rbio(ssl_.get()), wire.data(), bytes);
      if (taken <= 0) return false;
      wire.consume(static_cast<size_t>(taken));
    }
    for (;;) {
      ::ERR_clear_error();
      const int got = ::SSL_read(ssl_.get(), connection.in.prepare(kChunk), kChunk);
      if (got > 0) {
        connection.in.commit(static_cast<size_t>(got));
        continue;
      }
      const int reason = ::SSL_get_error(ssl_.get(), got);
      if (reason == SSL_ERROR_ZERO_RETURN) connection.has_ended = true;
      take_wire(connection);  // of the handshake
      return reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_ZERO_RETURN;
    }
  }

  bool encrypt(Connection& connection) override {
    Buffer& out = connection.out;
    while (!out.empty() && connection.tls_out.size() < kWireBytesMax) {
      ::ERR_clear_error();
      const int bytes = static_cast<int>(std::min<size_t>(out.size(), kChunk));
      const int taken = ::SSL_write(ssl_.get(), out.data(), bytes);
      if (taken <= 0) return ::SSL_get_error(ssl_.get(), taken) == SSL_ERROR_WANT_READ;
      out.consume(static_cast<size_t>(taken));
      take_wire(connection);
    }
    take_wire(connection);
    return true;
  }

  bool is_agreed() const override { return ::SSL_is_init_finished(ssl_.get()) != 0; }

 private:
  void take_wire(Connection& connection) {
    BIO* bio = ::SSL_get_wbio(ssl_.get());
    for (;;) {
      const int got = ::BIO_read(bio, connection.tls_out.prepare(kChunk), kChunk);
      if (got <= 0) return;
      connection.tls_out.commit(static_cast<size_t>(got));
    }
  }

  std::unique_ptr<SSL, FreeSsl> ssl_;
};

class Context final : public TlsContext {
 public:
  Context(const std::string& certificate, const std::string& key, const std::string& ca)
      : context_(::SSL_CTX_new(::TLS_server_method())) {
    if (context_ == nullptr) throw std::bad_alloc();
    SSL_CTX* context = context_.get();
    ::SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    require(::SSL_CTX_use_certificate_chain_file(context, certificate.c_str()), certificate);
    require(::SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM), key);
    require(::SSL_CTX_check_private_key(context), key);
    if (ca.empty()) return;
    require(::SSL_CTX_load_verify_locations(context, ca.c_str(), nullptr), ca);
    ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }

  std::unique_ptr<TlsChannel> accept() override {
    return std::make_unique<Channel>(context_.get());
  }

 private:
  static void require(int result, const std::string& file) {
    if (result == 1) return;
    char text[256];
    ::ERR_error_string_n(::ERR_get_error(), text, sizeof text);
    throw Error(ErrorCode::kInvalidArgument, fmt::format("TLS: {}: {}", file, text));
  }

  std::unique_ptr<SSL_CTX, FreeSsl> context_;
};

}  // namespace

std::unique_ptr<TlsContext> make_tls_context(const std::string& certificate, const std::string& key,
                                             const std::string& ca) {
  return std::make_unique<Context>(certificate, key, ca);
}

}  // namespace perdure::server

#else

namespace perdure::server {

std::unique_ptr<TlsContext> make_tls_context(const std::string& /*certificate*/,
                                             const std::string& /*key*/,
                                             const std::string& /*ca*/) {
  throw Error(ErrorCode::kInvalidArgument,
              "this build has no TLS: install libssl-dev and configure it again");
}

}  // namespace perdure::server

#endif
