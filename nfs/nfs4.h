// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// NFS version 4.0 (RFC 7530): numbers, and small types as they stand in XDR (RFC 7531).
#pragma once

#include <array>
#include <cstdint>

#include "nfs/nfs_status.h"
#include "nfs/nfs_types.h"
#include "nfs/xdr.h"

namespace uwarp::nfs {

constexpr size_t kTagBytesMax = 1024;  // of a COMPOUND's tag, taken and never sent
constexpr uint32_t kNfs4Version = 4;
constexpr uint32_t kNfs4MinorVersion = 0;
constexpr size_t kNfs4HandleBytesMax = 128;
constexpr size_t kNfs4OpaqueBytesMax = 1024;  // names of clients and owners

enum class Nfs4Procedure : uint32_t { kNull = 0, kCompound = 1 };

enum class Nfs4Operation : uint32_t {
  kAccess = 3,
  kClose = 4,
  kCommit = 5,
  kCreate = 6,
  kDelegpurge = 7,
  kDelegreturn = 8,
  kGetattr = 9,
  kGetfh = 10,
  kLink = 11,
  kLock = 12,
  kLockt = 13,
  kLocku = 14,
  kLookup = 15,
  kLookupp = 16,
  kNverify = 17,
  kOpen = 18,
  kOpenattr = 19,
  kOpenConfirm = 20,
  kOpenDowngrade = 21,
  kPutfh = 22,
  kPutpubfh = 23,
  kPutrootfh = 24,
  kRead = 25,
  kReaddir = 26,
  kReadlink = 27,
  kRemove = 28,
  kRename = 29,
  kRenew = 30,
  kRestorefh = 31,
  kSavefh = 32,
  kSecinfo = 33,
  kSetattr = 34,
  kSetclientid = 35,
  kSetclientidConfirm = 36,
  kVerify = 37,
  kWrite = 38,
  kReleaseLockowner = 39,
  kIllegal = 10044,
};

constexpr uint32_t kShareAccessRead = 1;
constexpr uint32_t kShareAccessWrite = 2;
constexpr uint32_t kShareDenyNone = 0;
constexpr uint32_t kOpenNoCreate = 0;
constexpr uint32_t kOpenCreate = 1;
constexpr uint32_t kClaimNull = 0;
constexpr uint32_t kClaimPrevious = 1;
constexpr uint32_t kOpenResultConfirm = 2;
constexpr uint32_t kDelegateNone = 0;

using Verifier = std::array<std::byte, 8>;

/// Numbers of attributes (RFC 7530, sections 5.6 to 5.8), as far as they are used here.
enum class Attribute : uint8_t {
  kSupportedAttrs = 0,
  kType = 1,
  kFhExpireType = 2,
  kChange = 3,
  kSize = 4,
  kLinkSupport = 5,
  kSymlinkSupport = 6,
  kNamedAttr = 7,
  kFsid = 8,
  kUniqueHandles = 9,
  kLeaseTime = 10,
  kRdattrError = 11,
  kAclSupport = 13,
  kCansettime = 15,
  kFilehandle = 19,
  kFileid = 20,
  kMaxfilesize = 27,
  kMaxname = 29,
  kMaxread = 30,
  kMaxwrite = 31,
  kMode = 33,
  kNumlinks = 35,
  kOwner = 36,
  kOwnerGroup = 37,
  kSpaceUsed = 45,
  kTimeAccess = 47,
  kTimeAccessSet = 48,
  kTimeMetadata = 52,
  kTimeModify = 53,
  kTimeModifySet = 54,
  kMountedOnFileid = 55,
};

/// bitmap4. Version 4.0 has no attribute beyond the second word.
class AttributeSet {
 public:
  constexpr AttributeSet() = default;
  template <typename... Attributes>
  constexpr explicit AttributeSet(Attributes... attributes) {
    (add(attributes), ...);
  }

  constexpr void add(Attribute attribute) { bits_ |= bit(attribute); }
  constexpr bool has(Attribute attribute) const { return (bits_ & bit(attribute)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr AttributeSet with(AttributeSet other) const { return from(bits_ | other.bits_); }
  constexpr AttributeSet without(AttributeSet other) const { return from(bits_ & ~other.bits_); }
  constexpr AttributeSet both(AttributeSet other) const { return from(bits_ & other.bits_); }
  bool operator==(const AttributeSet&) const = default;

  void encode(XdrWriter& out) const;
  /// Throws XdrError when there is a bit beyond the second word, or very many words.
  static AttributeSet decode(XdrReader& in);

 private:
  static constexpr uint64_t bit(Attribute attribute) {
    return uint64_t{1} << static_cast<unsigned>(attribute);
  }
  static constexpr AttributeSet from(uint64_t bits) {
    AttributeSet made;
    made.bits_ = bits;
    return made;
  }

  uint64_t bits_ = 0;
};

/// What a fattr4 can say to us, or we in one.
struct Nfs4Attributes {
  Attributes file;
  uint64_t change = 0;
  FileHandle handle;
  NfsStatus error = NfsStatus::kOk;  // rdattr_error
  uint32_t lease_seconds = 0;
  FilesystemInfo filesystem;
  AttributeSet present;
};

/// All that decode_fattr() understands.
extern const AttributeSet kReadableAttributes;
/// All that a server of ours has.
extern const AttributeSet kServedAttributes;

/// Throws XdrError at an attribute that is not in `asked`, at one that is not understood, and where
/// the lengths do not match.
Nfs4Attributes decode_fattr(XdrReader& in, AttributeSet asked);
/// Those of `wanted` that are in kServedAttributes.
void encode_fattr(XdrWriter& out, const Nfs4Attributes& attributes, AttributeSet wanted);

void encode_fattr(XdrWriter& out, const NewAttributes& wanted);
/// Throws NfsError (ATTRNOTSUPP, INVAL, BADOWNER) when it has what cannot be set, XdrError at
/// nonsense. `given` is what it has.
NewAttributes decode_new_fattr(XdrReader& in, AttributeSet& given);

void encode(XdrWriter& out, const StateId& state);
StateId decode_state(XdrReader& in);
void encode_handle4(XdrWriter& out, const FileHandle& handle);
FileHandle decode_handle4(XdrReader& in);
void encode(XdrWriter& out, const Verifier& verifier);
Verifier decode_verifier(XdrReader& in);

}  // namespace uwarp::nfs
