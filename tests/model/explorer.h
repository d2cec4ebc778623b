// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Runs a few threads in every order that needs at most a given number of preemptions. This proves
// that a hand-off between threads holds in all of them. The product's own source is compiled with
// these atomics; at each of their operations another thread may go on. The threads are fibers of
// one thread, and the list of its choices repeats an order exactly.
//
// Memory is sequentially consistent here. A wrong order of operations is found; a memory_order that
// is too weak is not: ThreadSanitizer and reviewers must find that.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace uwarp::model {

/// std::source_location, which clang before 16 lacks.
class Where {
 public:
  static constexpr Where current(const char* file = __builtin_FILE(),
                                 unsigned line = __builtin_LINE()) {
    return {file, line};
  }
  constexpr Where() = default;
  constexpr const char* file_name() const { return file_; }
  constexpr unsigned line() const { return line_; }

 private:
  constexpr Where(const char* file, unsigned line) : file_(file), line_(line) {}
  const char* file_ = "";
  unsigned line_ = 0;
};

/// Collects the threads of a scenario, at most kMaxThreads.
class Threads {
 public:
  static constexpr int kMaxThreads = 6;
  void add(const char* name, std::function<void()> body);
};

/// Made anew for each order. Its members are what the threads share.
struct Scenario {
  virtual ~Scenario() = default;
  virtual void start(Threads& threads) = 0;
  /// Called after all threads have ended.
  virtual void finish() {}
};

struct Property {
  const char* name;
  const char* sentence;
  /// Most preemptions: times that a thread is interrupted although it could go on. Waiting,
  /// yielding and ending do not count. UWARP_MODEL_DEPTH adds to the number for properties that
  /// hold.
  int preemptions = 2;
};

struct Outcome {
  // Empty: the property holds in all orders; otherwise what failed and its schedule.
  std::string finding;
  uint64_t interleavings = 0;
  bool complete = false;  // false: the search ended at the limit of interleavings
};

using MakeScenario = std::function<std::unique_ptr<Scenario>()>;
Outcome explore(const Property& property, const MakeScenario& make);

/// For tests: expects that the property holds in every order, and prints the number of orders.
void expect_holds(const Property& property, const MakeScenario& make);
/// For protocols that are known to be wrong: expects that some order breaks the property, and that
/// the finding contains `words`.
void expect_found(const Property& property, const MakeScenario& make, const std::string& words);

template <class S, class... Args>
void expect_holds(const Property& property, Args... args) {
  expect_holds(property,
               [=]() -> std::unique_ptr<Scenario> { return std::make_unique<S>(args...); });
}
template <class S, class... Args>
void expect_found(const Property& property, const std::string& words, Args... args) {
  expect_found(
      property, [=]() -> std::unique_ptr<Scenario> { return std::make_unique<S>(args...); }, words);
}

// ---- For the threads of a scenario. Called from outside, they do nothing or fail at once.

/// If `holds` is false, this is a finding, and the function does not return.
void check(bool holds, const char* text, Where where = Where::current());
/// Tries each of 0 to `count` - 1, for choices that come from outside of the threads.
int choose(int count, Where where = Where::current());
/// Another thread may go on here. `what` is printed in the schedule.
void point(const char* what, Where where = Where::current());
/// Sleeps until `ready` is true. It is evaluated after each step of the other threads, must have no
/// side effects, and reads atomics with peek(). If all threads sleep for ever, that is a finding.
void block_until(const std::function<bool()>& ready, const char* what,
                 Where where = Where::current());
/// Ends a round of a loop that waits for other threads. Returns once another thread has changed
/// something since the round began.
void yield(Where where = Where::current());
/// Ends a round of a loop that ends by itself.
void relax(Where where = Where::current());

/// Number of the running thread, from 0. Takes the place of thread_local in the product.
int self();

/// For types like Atomic: says that the thread has changed something that other threads see.
void note_change();
/// True if a schedule will be printed, so that lines for it are worth making.
bool tracing();
void trace(const std::string& line, Where where);
[[noreturn]] void fail(const std::string& text, Where where);

/// Freed memory stays readable until the end of the order, so that a late use is found.
void quarantine(void* memory);

/// A member or base of an object that a thread may use after its end.
class Alive {
 public:
  Alive() = default;
  Alive(const Alive&) {}
  Alive& operator=(const Alive&) { return *this; }
  ~Alive() { set(kDead); }
  /// A finding if the object has been destroyed.
  void touch(const char* what, Where where = Where::current()) const {
    if (*static_cast<const volatile uint32_t*>(&word_) != kLiving) [[unlikely]]
      fail(std::string("use after free: ") + what, where);
  }

 private:
  static constexpr uint32_t kLiving = 0x11fe11fe, kDead = 0xdeaddead;
  void set(uint32_t value) { *static_cast<volatile uint32_t*>(&word_) = value; }
  uint32_t word_ = kLiving;
};

/// An object that one thread destroys while others may still use it.
template <class T>
class Object {
 public:
  template <class... Args>
  explicit Object(Args&&... args) : value_(new (memory_) T(std::forward<Args>(args)...)) {}
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  ~Object() {
    if (value_ != nullptr) value_->~T();
  }
  void destroy(Where where = Where::current()) {
    point("destroy", where);
    if (value_ == nullptr) fail("destroyed twice", where);
    std::exchange(value_, nullptr)->~T();
    note_change();
  }
  bool alive() const { return value_ != nullptr; }
  T& get(Where where = Where::current()) {
    if (value_ == nullptr) fail("use after free: object", where);
    return *value_;
  }
  T* operator->() { return &get(); }
  T& operator*() { return get(); }
  /// Like a raw pointer: valid or not.
  T* raw() { return reinterpret_cast<T*>(memory_); }

 private:
  alignas(T) std::byte memory_[sizeof(T)];
  T* value_;
};

/// For std::allocate_shared, containers and the like.
template <class T>
struct Allocator {
  using value_type = T;
  Allocator() = default;
  template <class U>
  Allocator(const Allocator<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T))); }
  void deallocate(T* memory, size_t) { quarantine(memory); }
  bool operator==(const Allocator&) const { return true; }
};
template <class T, class... Args>
std::shared_ptr<T> make_shared(Args&&... args) {
  return std::allocate_shared<T>(Allocator<T>(), std::forward<Args>(args)...);
}

template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_enum_v<T>)
    return std::to_string(static_cast<long long>(value));
  else if constexpr (std::is_integral_v<T>)
    return std::to_string(value);
  else if constexpr (std::is_pointer_v<T>)
    return value == nullptr ? "null" : "pointer";
  else
    return "...";
}

void sleep_at(const void* address, const char* what, Where where);
void wake_at(const void* address, bool all, Where where);

/// Like std::atomic. Before each operation, another thread may go on.
template <class T>
class Atomic {
 public:
  using value_type = T;
  static constexpr bool is_always_lock_free = true;

  constexpr Atomic() : value_() {}
  constexpr Atomic(T value) : value_(value) {}
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load(std::memory_order = std::memory_order_seq_cst, Where where = Where::current()) const {
    begin("load", where);
    say("load", value_, where);
    return value_;
  }
  void store(T value, std::memory_order = std::memory_order_seq_cst,
             Where where = Where::current()) {
    begin("store", where);
    put(value, "store", where);
  }
  T exchange(T value, std::memory_order = std::memory_order_seq_cst,
             Where where = Where::current()) {
    begin("exchange", where);
    return put(value, "exchange", where);
  }
  bool compare_exchange_strong(T& expected, T value, std::memory_order = std::memory_order_seq_cst,
                               Where where = Where::current()) {
    begin("compare_exchange", where);
    if (!same(value_, expected)) {
      expected = value_;
      say("compare_exchange fails, is", value_, where);
      return false;
    }
    put(value, "compare_exchange", where);
    return true;
  }
  bool compare_exchange_strong(T& expected, T value, std::memory_order order, std::memory_order,
                               Where where = Where::current()) {
    return compare_exchange_strong(expected, value, order, where);
  }
  // A spurious failure changes nothing in a loop, so it is not modelled.
  bool compare_exchange_weak(T& expected, T value,
                             std::memory_order order = std::memory_order_seq_cst,
                             Where where = Where::current()) {
    return compare_exchange_strong(expected, value, order, where);
  }
  bool compare_exchange_weak(T& expected, T value, std::memory_order order, std::memory_order,
                             Where where = Where::current()) {
    return compare_exchange_strong(expected, value, order, where);
  }
  T fetch_add(T by, std::memory_order = std::memory_order_seq_cst, Where where = Where::current()) {
    begin("fetch_add", where);
    return put(static_cast<T>(value_ + by), "fetch_add", where);
  }
  T fetch_sub(T by, std::memory_order = std::memory_order_seq_cst, Where where = Where::current()) {
    begin("fetch_sub", where);
    return put(static_cast<T>(value_ - by), "fetch_sub", where);
  }
  T fetch_or(T bits, std::memory_order = std::memory_order_seq_cst,
             Where where = Where::current()) {
    begin("fetch_or", where);
    return put(static_cast<T>(value_ | bits), "fetch_or", where);
  }
  T fetch_and(T bits, std::memory_order = std::memory_order_seq_cst,
              Where where = Where::current()) {
    begin("fetch_and", where);
    return put(static_cast<T>(value_ & bits), "fetch_and", where);
  }
  T fetch_xor(T bits, std::memory_order = std::memory_order_seq_cst,
              Where where = Where::current()) {
    begin("fetch_xor", where);
    return put(static_cast<T>(value_ ^ bits), "fetch_xor", where);
  }
  void wait(T old, std::memory_order = std::memory_order_seq_cst,
            Where where = Where::current()) const {
    for (;;) {
      begin("wait", where);
      say("wait", value_, where);
      if (!same(value_, old)) return;
      sleep_at(this, "wait", where);
    }
  }
  // The kernel only compares addresses, so it is harmless to wake a word that is gone. unlock() may
  // do so after another thread has taken the lock and destroyed it.
  void notify_one(Where where = Where::current()) const { wake_at(this, false, where); }
  void notify_all(Where where = Where::current()) const { wake_at(this, true, where); }

  operator T() const { return load(); }
  T operator=(T value) {
    store(value);
    return value;
  }
  T operator++() { return static_cast<T>(fetch_add(1) + 1); }
  T operator--() { return static_cast<T>(fetch_sub(1) - 1); }
  T operator++(int) { return fetch_add(1); }
  T operator--(int) { return fetch_sub(1); }
  T operator+=(T by) { return static_cast<T>(fetch_add(by) + by); }
  T operator-=(T by) { return static_cast<T>(fetch_sub(by) - by); }
  T operator|=(T bits) { return static_cast<T>(fetch_or(bits) | bits); }
  T operator&=(T bits) { return static_cast<T>(fetch_and(bits) & bits); }

  /// The value, without a step: for block_until() and finish().
  T peek() const { return value_; }
  void reset(T value) { value_ = value; }

 private:
  static bool same(const T& a, const T& b) { return std::memcmp(&a, &b, sizeof a) == 0; }
  void begin(const char* what, Where where) const {
    point(what, where);
    alive_.touch("atomic", where);
  }
  T put(T value, const char* what, Where where) {
    if (!same(value_, value)) note_change();
    const T before = std::exchange(value_, value);
    if (tracing()) [[unlikely]]
      trace(std::string(what) + ": " + text_of(before) + " -> " + text_of(value), where);
    return before;
  }
  static void say(const char* what, const T& value, Where where) {
    if (tracing()) [[unlikely]]
      trace(std::string(what) + " " + text_of(value), where);
  }

  T value_;
  Alive alive_;
};

class Mutex {
 public:
  void lock(Where where = Where::current());
  bool try_lock(Where where = Where::current());
  void unlock(Where where = Where::current());

 private:
  bool locked_ = false;
  Alive alive_;
};

/// Data without atomics. If two threads access it at the same time and one of them writes, that is
/// a finding.
template <class T>
class Plain {
 public:
  Plain() : value_() {}
  Plain(T value) : value_(std::move(value)) {}
  T read(Where where = Where::current()) const {
    alive_.touch("data", where);
    if (writers_ != 0) fail("data race: read beside a write", where);
    ++readers_;
    point("read", where);
    --readers_;
    if (tracing()) trace("read " + text_of(value_), where);
    return value_;
  }
  void write(T value, Where where = Where::current()) {
    alive_.touch("data", where);
    if (writers_ != 0 || readers_ != 0) fail("data race: write beside another access", where);
    ++writers_;
    point("write", where);
    --writers_;
    value_ = std::move(value);
    if (tracing()) trace("write " + text_of(value_), where);
    note_change();
  }
  operator T() const { return read(); }
  Plain& operator=(T value) {
    write(std::move(value));
    return *this;
  }
  const T& peek() const { return value_; }

 private:
  T value_;
  mutable int readers_ = 0;
  int writers_ = 0;
  Alive alive_;
};

/// A section in which at most one thread may be.
class Section {
 public:
  class [[nodiscard]] Inside {
   public:
    explicit Inside(Section& section, Where where) : section_(section) {
      if (section_.inside_) fail("two threads in a section of one", where);
      section_.inside_ = true;
      point("in the section", where);
    }
    Inside(const Inside&) = delete;
    ~Inside() { section_.inside_ = false; }

   private:
    Section& section_;
  };
  Inside enter(Where where = Where::current()) { return Inside(*this, where); }

 private:
  bool inside_ = false;
};

}  // namespace uwarp::model

// In place of what base/atomics.h declares for the product.
namespace uwarp {

using model::Atomic;

struct Atomics {
  static constexpr int kSpins = 1;
  static constexpr int kYields = 0;
  static constexpr size_t kStripes = 1;
  static void cpu_relax(model::Where where = model::Where::current()) { model::relax(where); }
  static void yield(model::Where where = model::Where::current()) { model::yield(where); }
  static void nap(model::Where where = model::Where::current()) { model::yield(where); }

  static inline Atomic<uint32_t> sleepers{0};
  template <class T>
  static void sleep_while(const Atomic<T>& word, T value) {
    sleepers.fetch_add(1);
    word.wait(value);
    sleepers.fetch_sub(1);
  }
  template <class T>
  static void wake_one(Atomic<T>& word) {
    if (sleepers.load() != 0) word.notify_one();
  }
};

}  // namespace uwarp
