// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Makes a verdict and one sentence of the dialogue with a peer. RFC 5044 7.1, RFC 6581 6 to 10.
#include "probe.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/limits.h"
#include "connect/rendezvous.h"
#include "dialogue.h"
#include "protocol/mpa/fpdu.h"

namespace doctor {
namespace {

using nlohmann::json;
using Stage = Dialogue::Stage;
using State = uwarp::MpaInitiator::State;
using uwarp::MpaFailure;
using uwarp::PersonaWrite;
using Said = PersonaWrite::Said;

/// Bytes of private data and of foreign answers that are shown.
constexpr size_t kShownBytes = 64;
/// In bytes. A smaller segment has nearly as many bytes of headers as of payload.
constexpr uint32_t kSmallSegment = 512;

/// Where the revision stands in a start frame.
constexpr size_t kRevisionOffset = 17;
constexpr std::string_view kRequestKey = "MPA ID Req Frame";

ProbeResult made(std::string verdict, Level level, std::string text, std::string advice = {}) {
  return {std::move(verdict), {level, "peer", std::move(text), std::move(advice)}, json::object()};
}

ProbeResult problem(std::string verdict, std::string text, std::string advice) {
  return made(std::move(verdict), Level::kProblem, std::move(text), std::move(advice));
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  char two[3];
  for (const std::byte each : bytes) {
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(each));
    text += two;
  }
  return text;
}

/// In quotes if it is text, else in hexadecimal.
std::string show(std::span<const std::byte> bytes) {
  const bool cut = bytes.size() > kShownBytes;
  const auto shown = bytes.first(std::min(bytes.size(), kShownBytes));
  const std::string text(reinterpret_cast<const char*>(shown.data()), shown.size());
  const size_t end = text.find_last_not_of(std::string_view("\r\n\0", 3));
  const std::string line = text.substr(0, end == std::string::npos ? 0 : end + 1);
  const bool plain = !line.empty() && printable(line) == line;
  return (plain ? '"' + line + '"' : "hex " + hex(shown)) + (cut ? "..." : "");
}

std::string seconds(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", static_cast<double>(time.count()) / 1000);
  return text;
}

ProbeResult judge_no_connection(const std::string& who, const Dialogue& dialogue,
                                std::chrono::milliseconds timeout) {
  if (dialogue.stage == Stage::kUnresolved)
    return problem("unresolved", who + " has no address: " + dialogue.reason,
                   "Correct the name, or use a numeric address");
  switch (dialogue.stage == Stage::kNoSocket ? 0 : dialogue.error) {
    case ECONNREFUSED:
    case ECONNRESET:
      return problem("refused", who + " is reached, but no program listens on this port",
                     "Start the server first, and compare port, address and UWARP_PORT_OFFSET");
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EADDRNOTAVAIL:
    case ENETDOWN:
      return problem("unreachable",
                     "there is no route to " + who + ": " + std::strerror(dialogue.error),
                     "Check the route (ip route get ADDRESS) and the peer's network");
    case ETIMEDOUT:
      return problem("timeout", who + " does not answer TCP within " + seconds(timeout),
                     "Check that the peer is up, and that no firewall drops this port");
    default:
      return problem("error", "cannot connect to " + who + ": " + std::strerror(dialogue.error),
                     "Correct the cause, then ask again");
  }
}

ProbeResult judge_no_reply(const std::string& who, const Dialogue& dialogue,
                           std::chrono::milliseconds timeout) {
  if (!dialogue.ended)
    return problem(
        "silent",
        who + " takes the connection, but sends no whole MPA Reply within " + seconds(timeout),
        "It is no RDMA service, or the server has not called rdma_accept yet");
  if (!dialogue.received.empty())
    return problem("truncated", who + " closes in the middle of its MPA Reply",
                   "Find out why the peer's application ends");
  return problem("closed",
                 who + " closes the connection without an answer to an MPA Request of revision " +
                     std::to_string(dialogue.revision),
                 "It is no RDMA service, it refuses this machine's address, or it speaks another "
                 "revision (--revision)");
}

ProbeResult judge_bad_reply(const std::string& who, const Dialogue& dialogue) {
  const std::span<const std::byte> received(dialogue.received);
  const std::string start(reinterpret_cast<const char*>(received.data()), received.size());
  switch (dialogue.verdict.failure) {
    case MpaFailure::kBadKey:
      if (start.starts_with(kRequestKey))
        return problem("initiator", who + " sends an MPA Request itself: both sides connect",
                       "Let one side listen");
      return problem("not-mpa", who + " does not speak MPA: it sends " + show(received),
                     "Another service uses this port; compare port and UWARP_PORT_OFFSET");
    case MpaFailure::kBadRevision:
      return problem("revision",
                     who + " answers with MPA revision " +
                         std::to_string(static_cast<unsigned>(received[kRevisionOffset])) +
                         "; uwarp speaks 1 and 2",
                     "Configure the peer for one of these");
    case MpaFailure::kPrivateDataTooLong:
    case MpaFailure::kEnhancedTooShort:
      return problem(
          "malformed",
          who + " sends a malformed MPA Reply: " + uwarp::describe(dialogue.verdict.failure),
          "Report it to the peer's maintainers");
    case MpaFailure::kMarkersDemanded:
      return problem("markers", who + " wants markers in the stream, which uwarp does not send",
                     "Switch markers off at the peer");
    case MpaFailure::kNoCommonRtr:
      return problem("rtr",
                     who + " wants a Send as ready-to-receive message; uwarp has Write and Read",
                     "Allow a zero-length Write or Read at the peer, or set UWARP_MPA_REVISION=1");
    case MpaFailure::kInsufficientIrd:
      return problem("depth",
                     who + " wants " + std::to_string(dialogue.reply.ord) +
                         " Reads outstanding towards us; uwarp holds " +
                         std::to_string(uwarp::kMaxReadDepth),
                     "Lower the initiator depth of the peer's application");
    default:
      break;
  }
  return problem("error", who + ": " + uwarp::describe(dialogue.verdict.failure), "");
}

/// A peer that knows MPA revision 1 only.
ProbeResult old_peer(const std::string& who, const std::string& how) {
  return made("revision-1", Level::kWarning,
              who + " speaks MPA revision 1 only (" + how + "), to which uwarp falls back",
              "UWARP_MPA_REVISION=1 saves the attempts in revision 2. Both applications have to "
              "set the same read depths");
}

/// Why a connection to this peer would stay on TCP; empty: it may leave it.
std::string why_tcp(const Dialogue& dialogue, const uwarp::Settings& settings) {
  if (!dialogue.local) return "the address is not of this host";
  if (const char* const why = settings.why_only_tcp()) return why;
  return dialogue.reply.crc ? "the peer asks for CRC" : "";
}

std::string describe_carrier(const Dialogue& dialogue, const uwarp::Settings& settings) {
  const std::string why = why_tcp(dialogue, settings);
  return why.empty()
             ? "shared memory carries it once it is busy, if the peer is a uwarp of this user"
             : "TCP carries it: " + why;
}

ProbeResult judge_rejection(const std::string& who, const Dialogue& dialogue,
                            const uwarp::Settings& settings) {
  const auto bytes = dialogue.reply.private_data.bytes();
  if (uwarp::RendezvousAnswer::decode(bytes))
    return made("rendezvous", Level::kOk,
                who +
                    " is a uwarp's port for queue pairs that connect without rdma_cm, and works; " +
                    describe_carrier(dialogue, settings));
  if (dialogue.reply.markers)
    return problem("markers",
                   who + " rejects the connection and wants markers, which uwarp does not send",
                   "Switch markers off at the peer");
  return problem("rejected",
                 who + " speaks MPA revision " + std::to_string(dialogue.reply.revision) +
                     ", but rejects the connection, " +
                     (bytes.empty() ? "without private data" : "private data " + show(bytes)),
                 "Ask the peer's application: it wants other private data, or has no room");
}

std::string describe_rtr(const Dialogue& dialogue) {
  switch (dialogue.negotiated.rtr) {
    case uwarp::RtrKind::kWrite:
      return "peer to peer with a Write first";
    case uwarp::RtrKind::kRead:
      return "peer to peer with a Read first";
    case uwarp::RtrKind::kNone:
      break;
  }
  return "no peer-to-peer mode, so the connecting side has to send first";
}

uint32_t largest_frame(const Dialogue& dialogue, const uwarp::Settings& settings) {
  if (settings.fpdu_bytes != 0) return settings.fpdu_bytes;
  return dialogue.reply.crc ? uwarp::mulpdu_for(dialogue.segment_bytes) : uwarp::kUlpduMax;
}

std::string describe_depths(const Dialogue& dialogue) {
  if (!dialogue.negotiated.enhanced) return "read depths not negotiated";
  return "read depths " + std::to_string(dialogue.negotiated.ord) + " out, " +
         std::to_string(dialogue.negotiated.ird) + " in";
}

ProbeResult judge_acceptance(const std::string& who, const Dialogue& dialogue,
                             const uwarp::Settings& settings) {
  const uint32_t frame = largest_frame(dialogue, settings);
  const std::string crc = !dialogue.negotiated.crc ? "no CRC"
                          : settings.crc           ? "CRC, as UWARP_CRC=1 asks"
                                                   : "CRC, as the peer asks";
  std::string text = who + " fits: MPA revision " + std::to_string(dialogue.revision) + ", " +
                     describe_rtr(dialogue) + "; " + crc + "; " + describe_depths(dialogue) +
                     "; TCP segments of " + std::to_string(dialogue.segment_bytes) +
                     " bytes, frames of up to " + std::to_string(frame) + "; " +
                     describe_carrier(dialogue, settings);
  if (dialogue.reply.crc && !settings.crc && frame > uwarp::mulpdu_for(dialogue.segment_bytes))
    return made("frames", Level::kWarning, text,
                "The peer asks for CRC, as hardware adapters do, and those want frames that fit "
                "into one TCP segment: unset UWARP_FPDU");
  if (dialogue.segment_bytes < kSmallSegment)
    return made("segments", Level::kWarning, text,
                "These segments are small: check the MTU of the path");
  const Said own = PersonaWrite::of(settings.persona);
  if (dialogue.persona != Said::kNothing && dialogue.persona != own)
    return made("persona", Level::kWarning,
                text + "; it is a uwarp of the " + PersonaWrite::name(dialogue.persona) +
                    " persona, and programs here have the " + PersonaWrite::name(own) + " persona",
                "Programs that ask what kind of adapter they have may disagree: start both sides "
                "with uwarp-run --roce (UWARP_PERSONA=roce), or neither");
  if (dialogue.revision == 1 && settings.mpa_revision == 2) text += "; asked for revision 1 only";
  return made("compatible", Level::kOk, text);
}

ProbeResult judge(const std::string& who, const Dialogue& dialogue, const ProbeOptions& options,
                  const uwarp::Settings& settings) {
  if (dialogue.stage < Stage::kReplying) return judge_no_connection(who, dialogue, options.timeout);
  switch (dialogue.verdict.state) {
    case State::kAccepted:
      return judge_acceptance(who, dialogue, settings);
    case State::kRejected:
      return judge_rejection(who, dialogue, settings);
    case State::kFailed:
      if (dialogue.verdict.failure == MpaFailure::kRevisionMismatch && dialogue.revision == 2)
        return old_peer(who, dialogue.reply.revision == 1 ? "it answers with it"
                                                          : "it leaves the enhanced part out");
      if (dialogue.verdict.failure != MpaFailure::kPeerClosed)
        return judge_bad_reply(who, dialogue);
      break;
    case State::kNeedMore:
      break;
  }
  return judge_no_reply(who, dialogue, options.timeout);
}

json describe_dialogue(const Dialogue& dialogue, const uwarp::Settings& settings) {
  json details = {{"address", dialogue.address}, {"revision", dialogue.revision}};
  if (dialogue.error != 0) details["errno"] = dialogue.error;
  if (dialogue.segment_bytes != 0) details["tcp_mss"] = dialogue.segment_bytes;
  if (dialogue.persona != Said::kNothing) details["persona"] = PersonaWrite::name(dialogue.persona);
  const State state = dialogue.verdict.state;
  if (state == State::kAccepted || state == State::kRejected) {
    const uwarp::MpaStartFrame& reply = dialogue.reply;
    const std::string why = why_tcp(dialogue, settings);
    details["carrier"] = {{"shared_memory", why.empty()}, {"why_not", why}};
    details["reply"] = {
        {"revision", reply.revision}, {"rejected", reply.reject},
        {"markers", reply.markers},   {"crc", reply.crc},
        {"enhanced", reply.enhanced}, {"private_data", hex(reply.private_data.bytes())}};
    if (reply.enhanced)
      details["reply"].update({{"peer_to_peer", reply.peer_to_peer},
                               {"rtr_write", reply.rtr_write},
                               {"rtr_read", reply.rtr_read},
                               {"ird", reply.ird},
                               {"ord", reply.ord}});
  } else if (!dialogue.received.empty()) {
    const std::span<const std::byte> received(dialogue.received);
    details["received"] = hex(received.first(std::min(received.size(), kShownBytes)));
  }
  return details;
}

}  // namespace

std::optional<Target> Target::parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  Target target;
  target.host = text.substr(0, colon);
  const bool bracketed = target.host.front() == '[' && target.host.back() == ']';
  if (bracketed) target.host = target.host.substr(1, target.host.size() - 2);
  // An IPv6 address without brackets does not show where the port begins.
  if (target.host.empty() || (!bracketed && target.host.find(':') != std::string::npos))
    return std::nullopt;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data() + colon + 1, end, target.port);
  if (error != std::errc{} || stopped != end || target.port == 0) return std::nullopt;
  return target;
}

std::string Target::name() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? '[' + host + ']' : host) + ':' + std::to_string(port);
}

ProbeResult probe(const Target& target, const ProbeOptions& options,
                  const uwarp::Settings& settings) {
  const auto end = Clock::now() + options.timeout;
  const int port = target.port + settings.port_offset;
  if (port < 1 || port > 65535)
    return problem("error", "with UWARP_PORT_OFFSET " + target.name() + " is no TCP port",
                   "Correct UWARP_PORT_OFFSET");
  const std::string who =
      target.name() + (settings.port_offset != 0 ? " (TCP port " + std::to_string(port) + ")" : "");
  const unsigned first = options.revision.value_or(settings.mpa_revision);
  const auto dial = [&](unsigned revision) {
    return talk(target.host, static_cast<uint16_t>(port),
                {revision, settings.crc, PersonaWrite::of(settings.persona)}, end);
  };
  Dialogue dialogue = dial(first);
  ProbeResult result = judge(who, dialogue, options, settings);
  // Peers of revision 1 close on what they do not know (RFC 6581 10), and their application has
  // seen nothing: ask again as uwarp would.
  if (result.verdict == "closed" && first == 2 && !options.revision) {
    const Dialogue again = dial(1);
    const bool understood =
        again.verdict.state == State::kAccepted || again.verdict.state == State::kRejected;
    if (understood) {
      const ProbeResult old = judge(who, again, options, settings);
      result = again.verdict.state == State::kAccepted
                   ? old_peer(who, "it closes on revision 2 and takes this")
                   : old;
      dialogue = again;
    }
  }
  result.details = describe_dialogue(dialogue, settings);
  return result;
}

}  // namespace doctor
