// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/nfs_status.h"

namespace uwarp::nfs {

std::string describe(NfsStatus status) {
  switch (status) {
    case NfsStatus::kOk:
      return "no error";
    case NfsStatus::kPerm:
      return "not the owner";
    case NfsStatus::kNoent:
      return "no such file or directory";
    case NfsStatus::kIo:
      return "input/output error on the server";
    case NfsStatus::kNxio:
      return "no such device";
    case NfsStatus::kAcces:
      return "permission denied";
    case NfsStatus::kExist:
      return "exists already";
    case NfsStatus::kXdev:
      return "not within one file system";
    case NfsStatus::kNodev:
      return "no such device";
    case NfsStatus::kNotdir:
      return "not a directory";
    case NfsStatus::kIsdir:
      return "is a directory";
    case NfsStatus::kInval:
      return "invalid argument";
    case NfsStatus::kFbig:
      return "file too large";
    case NfsStatus::kNospc:
      return "no space left on the server";
    case NfsStatus::kRofs:
      return "read-only file system";
    case NfsStatus::kMlink:
      return "too many links";
    case NfsStatus::kNametoolong:
      return "name too long";
    case NfsStatus::kNotempty:
      return "directory not empty";
    case NfsStatus::kDquot:
      return "quota exceeded on the server";
    case NfsStatus::kStale:
      return "stale file handle (removed on the server, or it was restarted)";
    case NfsStatus::kRemote:
      return "too many levels of remote";
    case NfsStatus::kBadhandle:
      return "bad file handle";
    case NfsStatus::kNotSync:
      return "changed in between";
    case NfsStatus::kBadCookie:
      return "the directory listing cannot be continued";
    case NfsStatus::kNotsupp:
      return "not supported by the server";
    case NfsStatus::kToosmall:
      return "buffer too small";
    case NfsStatus::kServerfault:
      return "server fault";
    case NfsStatus::kBadtype:
      return "file type not supported by the server";
    case NfsStatus::kJukebox:
      return "the server asks to try again later";
    case NfsStatus::kDenied:
    case NfsStatus::kLocked:
      return "locked by another client";
    case NfsStatus::kExpired:
      return "the server has given up the open file (its lease expired)";
    case NfsStatus::kGrace:
      return "the server was restarted, and waits for its former clients";
    case NfsStatus::kFhexpired:
      return "the file handle has expired";
    case NfsStatus::kShareDenied:
      return "another client has opened the file for itself";
    case NfsStatus::kWrongsec:
      return "the server wants other credentials here (AUTH_SYS is not enough)";
    case NfsStatus::kClidInuse:
      return "another user has this client's name on the server";
    case NfsStatus::kResource:
      return "the server lacks the resources for the request";
    case NfsStatus::kMoved:
      return "the file system is on another server now";
    case NfsStatus::kMinorVersMismatch:
      return "the server does not have minor version 0 of NFS version 4";
    case NfsStatus::kStaleClientid:
    case NfsStatus::kStaleStateid:
      return "the server was restarted, and does not know the open file any more";
    case NfsStatus::kOldStateid:
    case NfsStatus::kBadStateid:
    case NfsStatus::kBadSeqid:
    case NfsStatus::kAdminRevoked:
      return "the server has given up the open file";
    case NfsStatus::kSymlink:
      return "is a symbolic link";
    case NfsStatus::kAttrnotsupp:
      return "attribute not supported by the server";
    case NfsStatus::kNoGrace:
    case NfsStatus::kReclaimBad:
    case NfsStatus::kReclaimConflict:
      return "the server cannot restore what was open";
    case NfsStatus::kBadxdr:
      return "the server cannot decode the request";
    case NfsStatus::kLocksHeld:
      return "locked";
    case NfsStatus::kOpenmode:
      return "not opened for that";
    case NfsStatus::kBadowner:
      return "the server does not know the owner";
    case NfsStatus::kBadchar:
    case NfsStatus::kBadname:
      return "the server does not take this name";
    case NfsStatus::kOpIllegal:
      return "the server does not know the operation";
    case NfsStatus::kFileOpen:
      return "in use";
    case NfsStatus::kCbPathDown:
      return "the server cannot call back";
    case NfsStatus::kSame:
    case NfsStatus::kNofilehandle:
    case NfsStatus::kNotSame:
    case NfsStatus::kLockRange:
    case NfsStatus::kRestorefh:
    case NfsStatus::kLeaseMoved:
    case NfsStatus::kBadRange:
    case NfsStatus::kLockNotsupp:
    case NfsStatus::kDeadlock:
      break;  // not to what we ask
  }
  return "NFS status " + std::to_string(static_cast<uint32_t>(status));
}

}  // namespace uwarp::nfs
