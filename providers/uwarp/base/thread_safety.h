// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What clang's thread safety analysis is told about locks; other compilers see nothing. tests/tidy
// compiles with the analysis.
#pragma once

#ifdef __clang__
#define UWARP_THREAD_SAFETY(x) __attribute__((x))
#else
#define UWARP_THREAD_SAFETY(x)
#endif

/// A class whose objects are locks; a class whose objects hold one as long as they live.
#define CAPABILITY(name) UWARP_THREAD_SAFETY(capability(name))
#define SCOPED_CAPABILITY UWARP_THREAD_SAFETY(scoped_lockable)

/// A variable that is used, or whose pointee is used, only by the holder of the lock.
#define GUARDED_BY(lock) UWARP_THREAD_SAFETY(guarded_by(lock))
#define PT_GUARDED_BY(lock) UWARP_THREAD_SAFETY(pt_guarded_by(lock))

/// What a function asks of its caller, and what it does to locks. Without an argument: to the
/// object itself.
#define REQUIRES(...) UWARP_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) UWARP_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) UWARP_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) UWARP_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) UWARP_THREAD_SAFETY(release_capability(__VA_ARGS__))
/// The function returns this lock.
#define RETURN_CAPABILITY(lock) UWARP_THREAD_SAFETY(lock_returned(lock))

/// The analysis cannot follow this function. Its callers are checked as ever.
#define NO_THREAD_SAFETY_ANALYSIS UWARP_THREAD_SAFETY(no_thread_safety_analysis)
