// What servers may answer: whatever comes, it is a reply, more is needed, or it is refused; and how
// the bytes are cut into pieces changes nothing. The first byte of an input says how it is cut, and
// which protocol it is.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "lab/serve/protocol.h"

namespace {

using namespace perdure::lab::serve;

std::string found_in(Protocol protocol, std::string_view input, size_t piece) {
  ReplyParser parser(protocol);
  std::string all;
  std::string waiting;
  for (size_t at = 0; at < input.size(); at += piece) {
    waiting += input.substr(at, piece);
    for (;;) {
      size_t consumed = 0;
      const ReplyParser::Result result = parser.parse(waiting, consumed);
      if (consumed > waiting.size()) std::abort();
      if (result == ReplyParser::Result::kBroken) return all + "!";
      if (result == ReplyParser::Result::kNeedMore) break;
      if (consumed == 0) std::abort();
      const ServerReply& reply = parser.reply();
      all += static_cast<char>('0' + static_cast<int>(reply.kind));
      all += reply.text;
      if (reply.kind == ServerReply::Kind::kNumber) all += std::to_string(reply.number);
      if (reply.kind == ServerReply::Kind::kList) {
        for (const std::string_view element : reply.elements) all += element;
      }
      waiting.erase(0, consumed);
    }
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto protocol = static_cast<Protocol>(data[0] % 3);
  const size_t piece = 1 + data[0] / 3;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (found_in(protocol, input, piece) != found_in(protocol, input, size)) std::abort();
  return 0;
}
