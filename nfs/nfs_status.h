// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How NFS procedures and operations fail. The numbers of version 4 (RFC 7530, section 13) go on
// where those of version 3 (RFC 1813, section 2.6) end; what both have means the same.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace uwarp::nfs {

enum class NfsStatus : uint32_t {
  kOk = 0,
  kPerm = 1,
  kNoent = 2,
  kIo = 5,
  kNxio = 6,
  kAcces = 13,
  kExist = 17,
  kXdev = 18,
  kNodev = 19,
  kNotdir = 20,
  kIsdir = 21,
  kInval = 22,
  kFbig = 27,
  kNospc = 28,
  kRofs = 30,
  kMlink = 31,
  kNametoolong = 63,
  kNotempty = 66,
  kDquot = 69,
  kStale = 70,
  kRemote = 71,
  kBadhandle = 10001,
  kNotSync = 10002,
  kBadCookie = 10003,
  kNotsupp = 10004,
  kToosmall = 10005,
  kServerfault = 10006,
  kBadtype = 10007,
  kJukebox = 10008,  // NFS4ERR_DELAY
  // Version 4 only, from here on.
  kSame = 10009,
  kDenied = 10010,
  kExpired = 10011,
  kLocked = 10012,
  kGrace = 10013,
  kFhexpired = 10014,
  kShareDenied = 10015,
  kWrongsec = 10016,
  kClidInuse = 10017,
  kResource = 10018,
  kMoved = 10019,
  kNofilehandle = 10020,
  kMinorVersMismatch = 10021,
  kStaleClientid = 10022,
  kStaleStateid = 10023,
  kOldStateid = 10024,
  kBadStateid = 10025,
  kBadSeqid = 10026,
  kNotSame = 10027,
  kLockRange = 10028,
  kSymlink = 10029,
  kRestorefh = 10030,
  kLeaseMoved = 10031,
  kAttrnotsupp = 10032,
  kNoGrace = 10033,
  kReclaimBad = 10034,
  kReclaimConflict = 10035,
  kBadxdr = 10036,
  kLocksHeld = 10037,
  kOpenmode = 10038,
  kBadowner = 10039,
  kBadchar = 10040,
  kBadname = 10041,
  kBadRange = 10042,
  kLockNotsupp = 10043,
  kOpIllegal = 10044,
  kDeadlock = 10045,
  kFileOpen = 10046,
  kAdminRevoked = 10047,
  kCbPathDown = 10048,
};

/// As commands print it: "no such file or directory".
std::string describe(NfsStatus status);

/// A procedure or an operation ended with a status other than 0.
class NfsError : public std::runtime_error {
 public:
  explicit NfsError(NfsStatus status) : std::runtime_error(describe(status)), status_(status) {}
  NfsError(NfsStatus status, const std::string& subject)
      : std::runtime_error(subject + ": " + describe(status)), status_(status), named_(true) {}
  NfsStatus status() const { return status_; }

  /// The same error, about `subject` unless it says already what it is about.
  NfsError about(const std::string& subject) const {
    return named_ ? *this : NfsError(status_, subject);
  }

 private:
  NfsStatus status_;
  bool named_ = false;
};

}  // namespace uwarp::nfs
