// Replies over TLS, to a client of OpenSSL's.
#if defined(PERDURE_HAS_OPENSSL)

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "server/fixture.h"

namespace perdure::test {
namespace {

struct FreeOfOpenSsl {
  void operator()(EVP_PKEY* key) const { ::EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { ::X509_free(certificate); }
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { ::SSL_free(ssl); }
};
template <typename T>
using Owned = std::unique_ptr<T, FreeOfOpenSsl>;

void write_certificate(const std::string& certificate_file, const std::string& key_file) {
  const Owned<EVP_PKEY> key(::EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
  const Owned<X509> certificate(::X509_new());
  X509* const made = certificate.get();
  ::ASN1_INTEGER_set(::X509_get_serialNumber(made), 1);
  ::X509_gmtime_adj(::X509_getm_notBefore(made), -3600);
  ::X509_gmtime_adj(::X509_getm_notAfter(made), 3600);
  ::X509_set_pubkey(made, key.get());
  ASSERT_GT(::X509_sign(made, key.get(), ::EVP_sha256()), 0);
  std::FILE* file = std::fopen(certificate_file.c_str(), "w");
  ::PEM_write_X509(file, made);
  std::fclose(file);
  file = std::fopen(key_file.c_str(), "w");
  ::PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
}

class TlsClient {
 public:
  explicit TlsClient(const std::string& address)
      : socket_(address), context_(::SSL_CTX_new(::TLS_client_method())) {
    ssl_.reset(::SSL_new(context_.get()));
    ::SSL_set_fd(ssl_.get(), socket_.fd());
    if (::SSL_connect(ssl_.get()) != 1) throw std::runtime_error("no TLS");
  }
  void write(const std::vector<std::string>& arguments) {
    const std::string bytes = RespClient::encode(arguments);
    if (::SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) <= 0) {
      throw std::runtime_error("nothing is taken");
    }
  }
  std::string read_bytes(size_t count) {
    std::string bytes(count, '\0');
    for (size_t at = 0; at < count;) {
      const int got = ::SSL_read(ssl_.get(), &bytes[at], static_cast<int>(count - at));
      if (got <= 0) throw std::runtime_error("nothing comes");
      at += static_cast<size_t>(got);
    }
    return bytes;
  }
  // Whether that is what comes.
  bool reads(const std::string& expected) { return read_bytes(expected.size()) == expected; }

 private:
  Socket socket_;
  Owned<SSL_CTX> context_;
  Owned<SSL> ssl_;
};

class Tls : public ServerTest {
 protected:
  Tls() {
    config.io = GetParam();
    if (config.io == "uring" && server::make_uring_driver() == nullptr) config.io = "auto";
    config.tls_resp = {"127.0.0.1:0"};
    config.tls_certificate = folder.file("certificate");
    config.tls_key = folder.file("key");
    write_certificate(config.tls_certificate, config.tls_key);
  }
};
INSTANTIATE_TEST_SUITE_P(Drivers, Tls, testing::Values("epoll", "uring"),
                         [](const auto& one) { return std::string(one.param); });

// Not all of a large reply is encrypted at once.
TEST_P(Tls, LargeRepliesComeWhole) {
  start();
  TlsClient c(addresses.at("tls-resp"));
  std::string value;
  for (int i = 0; value.size() < 1'000'000; ++i) value += std::to_string(i);
  c.write({"SET", "k", value});
  EXPECT_TRUE(c.reads("+OK\r\n"));
  const std::string bulk = "$" + std::to_string(value.size()) + "\r\n" + value + "\r\n";
  std::string all = "*30\r\n";
  std::vector<std::string> mget = {"MGET"};
  for (int i = 0; i < 30; ++i) {
    all += bulk;
    mget.emplace_back("k");
  }
  // Several wait, while nothing is read.
  constexpr int kRequests = 5;
  for (int i = 0; i < kRequests; ++i) c.write(mget);
  for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(c.reads(all)) << i;
  // To one that has nothing to say.
  TlsClient listens(addresses.at("tls-resp"));
  listens.write({"SUBSCRIBE", "n"});
  EXPECT_TRUE(listens.reads("*3\r\n$9\r\nsubscribe\r\n$1\r\nn\r\n:1\r\n"));
  RespClient tells = resp();
  constexpr int kMessages = 20;
  for (int i = 0; i < kMessages; ++i) EXPECT_EQ(tells({"PUBLISH", "n", value}), "1");
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(listens.reads("*3\r\n$7\r\nmessage\r\n$1\r\nn\r\n" + bulk)) << i;
  }
  // The last reply of a connection comes before its end.
  c.write(mget);
  c.write({"QUIT"});
  EXPECT_TRUE(c.reads(all + "+OK\r\n"));
}

TEST_P(Tls, WhoStopsBeforeKeysAreAgreedOnIsClosed) {
  config.slow_timeout_s = 1;
  start();
  Socket silent(addresses.at("tls-resp"));
  Socket stops(addresses.at("tls-resp"));
  stops.send("\x16\x03\x01");
  TlsClient idle(addresses.at("tls-resp"));
  EXPECT_TRUE(silent.ends_within(10'000));
  EXPECT_TRUE(stops.ends_within(10'000));
  idle.write({"PING"});
  EXPECT_TRUE(idle.reads("+PONG\r\n"));
}

TEST_P(Tls, AReplyThatIsTooLargeIsAnError) {
  config.output_bytes_max = 1 << 20;
  start();
  TlsClient c(addresses.at("tls-resp"));
  c.write({"SETRANGE", "k", "999999", "x"});
  EXPECT_TRUE(c.reads(":1000000\r\n"));
  std::vector<std::string> mget = {"MGET"};
  mget.resize(31, "k");
  c.write(mget);
  EXPECT_TRUE(c.reads("-ERR the reply exceeds output-bytes-max\r\n"));
  c.write({"PING"});
  EXPECT_TRUE(c.reads("+PONG\r\n"));
}

}  // namespace
}  // namespace perdure::test

#endif
