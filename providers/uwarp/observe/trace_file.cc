// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "observe/trace_file.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <new>

#include "base/log.h"
#include "base/mutex.h"
#include "base/settings.h"
#include "base/thread_own.h"
#include "os/clock.h"
#include "os/thread_activity.h"
#include "protocol/wire/rdmap_headers.h"
#include "qp/work_request.h"

namespace uwarp {
namespace {

using Kind = TraceStep::Kind;

/// By the completion that a request has, which is all that is known when it is polled.
const char* request_name(uint8_t opcode) {
  static constexpr const char* kNames[] = {
      "Send",        "Write",           "Read", "Compare and swap", "Fetch and add",
      "Bind window", "Local invalidate"};
  static_assert(std::size(kNames) == static_cast<size_t>(WcOpcode::kLocalInvalidate) + 1);
  return opcode < std::size(kNames) ? kNames[opcode] : "Receive";
}

bool is_receive(const TraceStep& step) {
  return step.kind == Kind::kReceivePosted || step.kind == Kind::kReceiveTaken ||
         step.kind == Kind::kReceiveCompleted ||
         (step.kind == Kind::kPolled && step.opcode >= static_cast<uint8_t>(WcOpcode::kRecv));
}

const char* phase_name(TraceStep::Phase phase) {
  static constexpr const char* kNames[] = {"queued", "sending", "in flight"};
  return kNames[static_cast<size_t>(phase)];
}
constexpr const char* kPosted = "posted";
constexpr const char* kArriving = "arriving";
constexpr const char* kUnpolled = "unpolled";

/// Turns one step into events.
class EventWriter {
 public:
  EventWriter(std::string& out, long process, long thread, uint64_t at_ns, const TraceStep& step)
      : out_(out), process_(process), thread_(thread), at_ns_(at_ns), step_(step) {}

  void write() {
    const char* const request = is_receive(step_) ? "Receive" : request_name(step_.opcode);
    switch (step_.kind) {
      case Kind::kSendPosted:
        begin(request, true);
        return begin(phase_name(TraceStep::Phase::kWaiting));
      case Kind::kSendBegun:
        end(phase_name(TraceStep::Phase::kWaiting));
        return begin(phase_name(TraceStep::Phase::kBegun));
      case Kind::kSendWithKernel:
        end(phase_name(TraceStep::Phase::kBegun));
        return begin(phase_name(TraceStep::Phase::kWithKernel));
      case Kind::kSendAnswered:
        return async("answered", 'n', "");
      case Kind::kSendCompleted:
        return complete(phase_name(step_.phase), request, step_.reported);
      case Kind::kReceivePosted:
        begin(request, true);
        return begin(kPosted);
      case Kind::kReceiveTaken:
        if (step_.reported) {
          begin(request, true);
        } else {
          end(kPosted);
        }
        return begin(kArriving);
      case Kind::kReceiveCompleted:
        return complete(step_.phase == TraceStep::Phase::kWaiting ? kPosted : kArriving, request,
                        true);
      case Kind::kPolled:
        end(kUnpolled);
        return end(request);
      case Kind::kFpduSent:
        return fpdu("sent");
      case Kind::kFpduReceived:
        return fpdu("received");
      case Kind::kCarried:
        return carrier(step_.reported ? "shared memory" : "TCP");
    }
  }

 private:
  void complete(const char* phase, const char* request, bool reported) {
    end(phase);
    char status[32];
    std::snprintf(status, sizeof status, "\"status\":%" PRIu32, step_.status);
    if (reported) return async(kUnpolled, 'b', status);
    async(request, 'e', status);
  }
  void begin(const char* name, bool described = false) {
    char text[128] = "";
    if (described)
      std::snprintf(text, sizeof text,
                    "\"qp\":\"0x%" PRIx32 "\",\"bytes\":%" PRIu64 ",\"wr_id\":\"0x%" PRIx64 "\"",
                    step_.queue_pair, step_.bytes, step_.wr_id);
    async(name, 'b', text);
  }
  void end(const char* name) { async(name, 'e', ""); }

  void async(const char* name, char phase, const char* arguments) {
    const char side = is_receive(step_) ? 'r' : 's';
    put("{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"%c\",\"pid\":%ld,\"tid\":%ld,\"ts\":%" PRIu64
        ".%03u,\"id2\":{\"local\":\"0x%" PRIx32 ".%c%" PRIu32 "\"},\"args\":{%s}},\n",
        name, side == 'r' ? "receive" : "send", phase, process_, thread_, at_ns_ / 1000,
        static_cast<unsigned>(at_ns_ % 1000), step_.queue_pair, side, step_.position, arguments);
  }
  void fpdu(const char* what) {
    put("{\"name\":\"%s %s\",\"cat\":\"fpdu\",\"ph\":\"i\",\"s\":\"t\",\"pid\":%ld,\"tid\":%ld,"
        "\"ts\":%" PRIu64 ".%03u,\"args\":{\"qp\":\"0x%" PRIx32 "\",\"ulpdu\":%" PRIu64 "}},\n",
        name(static_cast<RdmapOpcode>(step_.opcode)), what, process_, thread_, at_ns_ / 1000,
        static_cast<unsigned>(at_ns_ % 1000), step_.queue_pair, step_.bytes);
  }
  void carrier(const char* name) {
    put("{\"name\":\"%s\",\"cat\":\"carrier\",\"ph\":\"i\",\"s\":\"p\",\"pid\":%ld,\"tid\":%ld,"
        "\"ts\":%" PRIu64 ".%03u,\"args\":{\"qp\":\"0x%" PRIx32 "\"}},\n",
        name, process_, thread_, at_ns_ / 1000, static_cast<unsigned>(at_ns_ % 1000),
        step_.queue_pair);
  }
  template <typename... Arguments>
  [[gnu::format(printf, 2, 0)]] void put(const char* format, Arguments... arguments) {
    char line[512];
    const int size = std::snprintf(line, sizeof line, format, arguments...);
    if (size > 0 && static_cast<size_t>(size) < sizeof line) out_.append(line, size);
  }

  std::string& out_;
  const long process_;
  const long thread_;
  const uint64_t at_ns_;
  const TraceStep& step_;
};

}  // namespace

std::unique_ptr<TraceFile> TraceFile::create(const std::string& name) {
  if (name.empty()) return nullptr;
  std::string complaint;
  auto file = OutputFile::create(name, complaint);
  if (file == nullptr) {
    complain_on_stderr("uwarp: UWARP_TRACE: " + complaint);
    return nullptr;
  }
  log_event("tracing into %s", file->path().c_str());
  return std::unique_ptr<TraceFile>(new TraceFile(std::move(file)));
}

// Every event is followed by a comma, and the last one is that of finish().
TraceFile::TraceFile(std::unique_ptr<OutputFile> file)
    : file_(std::move(file)), process_(syscall(SYS_getpid)) {
  append("[\n");
}

TraceFile::~TraceFile() { finish(); }

/// The buffer of a thread. It belongs to the file, and is idle when the thread has ended.
struct TraceFile::Own {
  struct Leave {
    void operator()(Buffer* left) const { left->idle.store(true, std::memory_order_release); }
  };
  TraceFile* owner = nullptr;
  std::unique_ptr<Buffer, Leave> buffer;
};

TraceFile::Buffer& TraceFile::own_buffer() {
  Own& own = thread_own<Own>();
  if (own.owner != this) {
    Buffer& taken = take_buffer();
    (void)own.buffer.release();  // of a file that may be gone
    own.buffer.reset(&taken);
    own.owner = this;
  }
  return *own.buffer;
}

// One whose thread has ended, or a new one.
TraceFile::Buffer& TraceFile::take_buffer() {
  Buffer* taken = nullptr;
  {
    const Lock guard(mutex_);
    for (const auto& each : buffers_) {
      if (taken == nullptr && each->idle.exchange(false)) taken = each.get();
    }
    if (taken == nullptr) {
      auto made = std::make_unique<Buffer>();
      buffers_.push_back(std::move(made));
      taken = buffers_.back().get();
    }
  }
  const Lock guard(taken->lock);
  if (!taken->steps.empty()) write_out_locked(*taken);
  taken->thread = thread_id();
  return *taken;
}

void TraceFile::note(const TraceStep& step) noexcept {
  if (finished_.load(std::memory_order_acquire)) return;
  try {
    Buffer& buffer = own_buffer();
    const Lock guard(buffer.lock);
    buffer.steps.push_back({now_ns(), step});
    if (buffer.steps.size() == kBufferSteps) write_out_locked(buffer);
  } catch (const std::bad_alloc&) {
  }
}

void TraceFile::write_out_locked(Buffer& buffer) {
  std::string text;
  const size_t count = buffer.steps.size();
  try {
    text.reserve(count * 300);
    for (const Timed& each : buffer.steps)
      EventWriter(text, process_, buffer.thread, each.at_ns, each.step).write();
  } catch (const std::bad_alloc&) {
    text.clear();
  }
  buffer.steps.clear();
  const Lock guard(mutex_);
  written_ += count;
  append(std::move(text));
  if (written_ < kMostSteps || finished_.exchange(true)) return;
  log_event("the trace ends here: it has %" PRIu64 " steps", written_);
  full_ = true;
}

void TraceFile::append(std::string text) {
  iovec piece = {text.data(), text.size()};
  if (file_->append({&piece, 1})) return;
  log_event("the trace ends here: %s", std::strerror(errno));
  finished_.store(true, std::memory_order_release);
}

void TraceFile::finish() noexcept {
  try {
    const bool before = finished_.exchange(true);
    std::vector<Buffer*> all;
    {
      const Lock guard(mutex_);
      if (before && !full_) return;
      full_ = false;
      for (const auto& buffer : buffers_) all.push_back(buffer.get());
    }
    for (Buffer* buffer : all) {
      const Lock guard(buffer->lock);
      write_out_locked(*buffer);
    }
    const std::string pid = std::to_string(process_);
    const Lock guard(mutex_);
    append("{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":" + pid +
           ",\"args\":{\"name\":\"uwarp " + pid + "\"}}\n]\n");
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace uwarp
