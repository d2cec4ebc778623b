// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The command line of verbs_bench.
#include "verbs_bench/options.h"

#include <getopt.h>

#include <cstdio>
#include <cstdlib>
#include <map>

namespace uwarp::bench {
namespace {

constexpr char kUsage[] =
    "usage: verbs_bench MODE [options] [ADDRESS]    without ADDRESS: the server\n"
    "  rate      requests per second on one queue pair: lists of --list requests, the last one\n"
    "            signalled, --depth outstanding\n"
    "  wake-up   half round trip of Sends; both ends wait for completions by --wait\n"
    "  qps       --count queue pairs on one completion queue; batches of --depth Writes that end\n"
    "            with a Read, on one of them, or with --all on each; also memory per queue pair\n"
    "  connects  connections per second, --count in all, --window at a time\n"
    "options: --port P --op write|send|read|atomic --size BYTES --depth N --list N --count N\n"
    "         --window N --all --peer-polls --seconds S --wait spin|block|poll|epoll\n";

[[noreturn]] void usage() {
  std::fputs(kUsage, stderr);
  std::exit(2);
}

template <typename Value>
Value named(const std::map<std::string, Value>& names, const char* name) {
  const auto found = names.find(name);
  if (found == names.end()) usage();
  return found->second;
}

uint32_t parse_count(const char* text) {
  const long long value = std::atoll(text);
  if (value <= 0) usage();
  return static_cast<uint32_t>(value);
}

}  // namespace

Options parse_options(int argc, char** argv) {
  static const std::map<std::string, ibv_wr_opcode> kOpcodes = {
      {"write", IBV_WR_RDMA_WRITE},
      {"send", IBV_WR_SEND},
      {"read", IBV_WR_RDMA_READ},
      {"atomic", IBV_WR_ATOMIC_FETCH_AND_ADD}};
  static const std::map<std::string, Wait> kWaits = {{"spin", Wait::kSpin},
                                                     {"block", Wait::kBlock},
                                                     {"poll", Wait::kPoll},
                                                     {"epoll", Wait::kEpoll}};
  static const option kOptions[] = {
      {"port", required_argument, nullptr, 'p'},   {"op", required_argument, nullptr, 'o'},
      {"size", required_argument, nullptr, 's'},   {"depth", required_argument, nullptr, 'd'},
      {"list", required_argument, nullptr, 'l'},   {"count", required_argument, nullptr, 'n'},
      {"window", required_argument, nullptr, 'w'}, {"all", no_argument, nullptr, 'a'},
      {"peer-polls", no_argument, nullptr, 'P'},   {"seconds", required_argument, nullptr, 'D'},
      {"wait", required_argument, nullptr, 'W'},   {nullptr, 0, nullptr, 0}};
  Options options;
  for (int c; (c = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    switch (c) {
      case 'p':
        options.port = static_cast<uint16_t>(parse_count(optarg));
        break;
      case 'o':
        options.opcode = named(kOpcodes, optarg);
        break;
      case 's':
        options.size = parse_count(optarg);
        break;
      case 'd':
        options.depth = parse_count(optarg);
        break;
      case 'l':
        options.list = parse_count(optarg);
        break;
      case 'n':
        options.count = parse_count(optarg);
        break;
      case 'w':
        options.window = parse_count(optarg);
        break;
      case 'a':
        options.all = true;
        break;
      case 'P':
        options.peer_polls = true;
        break;
      case 'D':
        options.seconds = std::atof(optarg);
        break;
      case 'W':
        options.wait = named(kWaits, optarg);
        break;
      default:
        usage();
    }
  }
  if (optind >= argc || argc - optind > 2) usage();
  options.mode = argv[optind];
  if (argc - optind == 2) options.address = argv[optind + 1];
  if (options.list == 0) options.list = options.depth < 4 ? 1 : options.depth / 4;
  if (options.list > options.depth) usage();
  return options;
}

}  // namespace uwarp::bench
