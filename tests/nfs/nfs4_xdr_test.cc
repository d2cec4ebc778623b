// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Attributes, bitmaps and states of NFS version 4 as they stand in XDR, and what is none.
#include <gtest/gtest.h>

#include <random>

#include "nfs/compound.h"
#include "nfs/nfs4.h"

namespace uwarp::nfs {
namespace {

XdrWriter words(std::initializer_list<uint32_t> values) {
  XdrWriter out;
  for (uint32_t value : values) {
    out.u32(value);
  }
  return out;
}

std::vector<std::byte> encoding(const XdrWriter& out) {
  return {out.bytes().begin(), out.bytes().end()};
}

constexpr AttributeSet kAsked(Attribute::kType, Attribute::kSize, Attribute::kMode,
                              Attribute::kOwner, Attribute::kTimeModify);

/// type, size | mode, owner, time_modify
constexpr uint32_t kFirstWord = 1u << 1 | 1u << 4;
constexpr uint32_t kSecondWord = 1u << 1 | 1u << 4 | 1u << 21;

/// A fattr4 as a server sends it.
XdrWriter vector_fattr() {
  XdrWriter values = words({2, 1, 5, 0755, 4});
  values.fixed_opaque(std::as_bytes(std::span("1000", 4)));
  values.u64(1700000000);
  values.u32(7);
  XdrWriter out = words({2, kFirstWord, kSecondWord});
  out.opaque(values.bytes());
  return out;
}

TEST(Nfs4Xdr, Fattr) {
  XdrWriter out = vector_fattr();
  XdrReader in(out.bytes());
  auto got = decode_fattr(in, kAsked);
  EXPECT_EQ(in.remaining(), 0u);
  EXPECT_EQ(got.present, kAsked);
  EXPECT_EQ(got.file.type, FileType::kDirectory);
  EXPECT_EQ(got.file.size, (uint64_t{1} << 32) + 5);
  EXPECT_EQ(got.file.mode, 0755u);
  EXPECT_EQ(got.file.uid, 1000u);
  EXPECT_EQ(got.file.modified, (NfsTime{1700000000, 7}));
}

TEST(Nfs4Xdr, FattrCutAnywhere) {
  auto bytes = encoding(vector_fattr());
  for (size_t size = 0; size < bytes.size(); ++size) {
    XdrReader in(ConstBytes(bytes).first(size));
    EXPECT_THROW(decode_fattr(in, kAsked), XdrError) << size;
  }
}

// The values are an opaque of their own: its length has to be that of the attributes.
TEST(Nfs4Xdr, FattrOfAnotherLength) {
  for (uint32_t length = 0; length < 64; length += 4) {
    auto bytes = encoding(vector_fattr());
    auto length_word = encoding(words({length}));
    if (length == 36) {
      continue;
    }
    std::ranges::copy(length_word, bytes.begin() + 12);
    bytes.resize(bytes.size() + 64);
    XdrReader in(bytes);
    EXPECT_THROW(decode_fattr(in, kAsked), XdrError) << length;
  }
}

TEST(Nfs4Xdr, AttributesNotAskedFor) {
  XdrWriter out = vector_fattr();
  XdrReader in(out.bytes());
  EXPECT_THROW(decode_fattr(in, kAsked.without(AttributeSet(Attribute::kMode))), XdrError);
  // Nor those that the client does not know, although it should have asked for them.
  XdrWriter acl = words({1, 1u << 12, 4, 0});
  in = XdrReader(acl.bytes());
  AttributeSet all(Attribute{12});
  EXPECT_THROW(decode_fattr(in, all), XdrError);
}

TEST(Nfs4Xdr, Bitmaps) {
  auto decoded = [](std::initializer_list<uint32_t> values) {
    XdrWriter out = words(values);
    XdrReader in(out.bytes());
    return AttributeSet::decode(in);
  };
  EXPECT_TRUE(decoded({0}).empty());
  EXPECT_TRUE(decoded({1, 0}).empty());
  EXPECT_EQ(decoded({1, 2}), AttributeSet(Attribute::kType));
  EXPECT_EQ(decoded({2, 0, 2}), AttributeSet(Attribute::kMode));
  EXPECT_EQ(decoded({3, 0, 2, 0}), AttributeSet(Attribute::kMode));
  EXPECT_THROW(decoded({3, 0, 0, 1}), XdrError);
  EXPECT_THROW(decoded({UINT32_MAX, 0, 0, 0}), XdrError);
  EXPECT_THROW(decoded({17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}), XdrError);
  EXPECT_THROW(decoded({2, 1}), XdrError);
}

TEST(Nfs4Xdr, BitmapsAreAsShortAsTheyCanBe) {
  auto encoded = [](AttributeSet set) {
    XdrWriter out;
    set.encode(out);
    return encoding(out);
  };
  EXPECT_EQ(encoded(AttributeSet()), encoding(words({0})));
  EXPECT_EQ(encoded(AttributeSet(Attribute::kSize)), encoding(words({1, 16})));
  EXPECT_EQ(encoded(AttributeSet(Attribute::kMode)), encoding(words({2, 0, 2})));
}

TEST(Nfs4Xdr, OddValues) {
  auto decoded = [](Attribute attribute, const XdrWriter& values) {
    XdrWriter out;
    AttributeSet(attribute).encode(out);
    out.opaque(values.bytes());
    XdrReader in(out.bytes());
    return decode_fattr(in, AttributeSet(attribute));
  };
  XdrWriter name;
  name.string("somebody@example.org");
  EXPECT_EQ(decoded(Attribute::kOwner, name).file.uid, 65534u);
  XdrWriter large;
  large.string("4294967296");
  EXPECT_EQ(decoded(Attribute::kOwner, large).file.uid, 65534u);
  XdrWriter long_name;
  long_name.string(std::string(1025, 'x'));
  EXPECT_THROW(decoded(Attribute::kOwner, long_name), XdrError);
  EXPECT_THROW(decoded(Attribute::kType, words({0})), XdrError);
  EXPECT_EQ(decoded(Attribute::kTimeModify, words({UINT32_MAX, 0, 0})).file.modified,
            (NfsTime{0, 0}));  // before 1970
  EXPECT_EQ(decoded(Attribute::kTimeModify, words({1, 0, 0})).file.modified,
            (NfsTime{UINT32_MAX, 0}));
  EXPECT_THROW(decoded(Attribute::kTimeModify, words({0, 0, 1000000000})), XdrError);
  XdrWriter handle;
  handle.opaque(std::vector<std::byte>(129));
  EXPECT_THROW(decoded(Attribute::kFilehandle, handle), XdrError);
  EXPECT_EQ(decoded(Attribute::kMaxread, words({1, 0})).filesystem.read_bytes_max, UINT32_MAX);
}

TEST(Nfs4Xdr, AllThatIsServedIsRead) {
  Nfs4Attributes sent;
  sent.file.type = FileType::kSymlink;
  sent.file.uid = 12;
  sent.file.accessed = {3, 4};
  sent.handle = FileHandle(33);
  sent.lease_seconds = 90;
  sent.filesystem = {5, 6, 7};
  AttributeSet both = kServedAttributes.both(kReadableAttributes);
  XdrWriter out;
  encode_fattr(out, sent, both);
  XdrReader in(out.bytes());
  auto got = decode_fattr(in, both);
  EXPECT_EQ(got.present, both);
  EXPECT_EQ(got.file.type, FileType::kSymlink);
  EXPECT_EQ(got.file.uid, 12u);
  EXPECT_EQ(got.file.accessed, (NfsTime{3, 4}));
  EXPECT_EQ(got.handle.size(), 33u);
  EXPECT_EQ(got.lease_seconds, 90u);
  EXPECT_EQ(got.filesystem.file_bytes_max, 7u);
}

NewAttributes everything() {
  using How = NewAttributes::NewTime::How;
  NewAttributes wanted;
  wanted.size = 1;
  wanted.mode = 2;
  wanted.uid = 3;
  wanted.gid = 4;
  wanted.accessed = {How::kServerTime, {}};
  wanted.modified = {How::kClientTime, {5, 6}};
  return wanted;
}

TEST(Nfs4Xdr, NewAttributes) {
  XdrWriter out;
  encode_fattr(out, everything());
  XdrReader in(out.bytes());
  AttributeSet given;
  auto got = decode_new_fattr(in, given);
  EXPECT_EQ(in.remaining(), 0u);
  EXPECT_EQ(got.size, 1u);
  EXPECT_EQ(got.mode, 2u);
  EXPECT_EQ(got.uid, 3u);
  EXPECT_EQ(got.gid, 4u);
  EXPECT_EQ(got.accessed.how, NewAttributes::NewTime::How::kServerTime);
  EXPECT_EQ(got.modified.time, (NfsTime{5, 6}));
  auto bytes = encoding(out);
  for (size_t size = 0; size < bytes.size(); ++size) {
    XdrReader cut(ConstBytes(bytes).first(size));
    EXPECT_THROW(decode_new_fattr(cut, given), XdrError) << size;
  }
}

TEST(Nfs4Xdr, AttributesThatCannotBeSet) {
  auto status = [](std::initializer_list<uint32_t> values) {
    XdrWriter out = words(values);
    XdrReader in(out.bytes());
    AttributeSet given;
    try {
      decode_new_fattr(in, given);
      return NfsStatus::kOk;
    } catch (const NfsError& error) {
      return error.status();
    }
  };
  EXPECT_EQ(status({1, 1u << 1, 4, 1}), NfsStatus::kInval);         // type
  EXPECT_EQ(status({1, 1u << 12, 4, 0}), NfsStatus::kAttrnotsupp);  // acl
  EXPECT_EQ(status({2, 0, 1u << 4, 8, 1, 'x' << 24}), NfsStatus::kBadowner);
}

TEST(Nfs4Xdr, ResultsOfACompound) {
  auto reader_of = [](const XdrWriter& out) { return XdrReader(out.bytes()); };
  constexpr uint32_t kPutfh = 22, kGetfh = 10, kOpenOperation = 18, kIllegal = 10044;
  XdrWriter good = words({0, 0, 2, kPutfh, 0, kGetfh, 0, 0});
  XdrReader in = reader_of(good);
  CompoundReply reply(in);
  reply.results_of(Nfs4Operation::kPutfh);
  EXPECT_TRUE(decode_handle4(reply.results_of(Nfs4Operation::kGetfh)).empty());
  EXPECT_THROW(reply.results_of(Nfs4Operation::kGetattr), XdrError);  // no more

  auto status = [&](const XdrWriter& out, Nfs4Operation operation) {
    XdrReader results = reader_of(out);
    CompoundReply failed(results);
    try {
      failed.results_of(operation);
      return NfsStatus::kOk;
    } catch (const NfsError& error) {
      return error.status();
    }
  };
  EXPECT_EQ(status(words({70, 0, 1, kPutfh, 70}), Nfs4Operation::kPutfh), NfsStatus::kStale);
  EXPECT_EQ(status(words({10018, 0, 0}), Nfs4Operation::kPutfh), NfsStatus::kResource);
  EXPECT_EQ(status(words({10044, 0, 1, kIllegal, 10044}), Nfs4Operation::kPutfh),
            NfsStatus::kOpIllegal);
  EXPECT_EQ(status(words({4711, 0, 1, kPutfh, 4711}), Nfs4Operation::kPutfh),
            static_cast<NfsStatus>(4711));
  EXPECT_THROW(status(words({0, 0, 1, kOpenOperation, 0}), Nfs4Operation::kPutfh), XdrError);
  EXPECT_THROW(status(words({0, 0, 1, kIllegal, 0}), Nfs4Operation::kPutfh), XdrError);
  EXPECT_THROW(status(words({0, 2000, 1}), Nfs4Operation::kPutfh), XdrError);  // tag
  EXPECT_THROW(status(words({0, 0}), Nfs4Operation::kPutfh), XdrError);
}

TEST(Nfs4Xdr, EveryStatusHasALine) {
  EXPECT_EQ(describe(NfsStatus::kGrace),
            "the server was restarted, and waits for its former clients");
  EXPECT_EQ(describe(NfsStatus::kNofilehandle), "NFS status 10020");
  EXPECT_EQ(describe(static_cast<NfsStatus>(4711)), "NFS status 4711");
}

/// What `encode` makes of a value is decoded to the same value: it is encoded to the same bytes.
template <typename Decode, typename Encode>
void expect_stable(const std::vector<std::byte>& bytes, Decode decode, Encode encode) {
  XdrReader in(bytes);
  XdrWriter out;
  encode(out, decode(in));
  EXPECT_EQ(in.remaining(), 0u);
  EXPECT_EQ(encoding(out), bytes);
}

TEST(Nfs4Xdr, Noise) {
  std::mt19937 random(1);
  int read = 0, refused = 0;
  for (int i = 0; i < 100000; ++i) {
    auto bytes = encoding(vector_fattr());
    for (unsigned flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    XdrReader in(bytes);
    try {
      const Nfs4Attributes got = decode_fattr(in, kReadableAttributes);
      XdrWriter out;
      encode_fattr(out, got, got.present);
      expect_stable(
          encoding(out), [](XdrReader& from) { return decode_fattr(from, kReadableAttributes); },
          [](XdrWriter& to, const Nfs4Attributes& it) { encode_fattr(to, it, it.present); });
      ++read;
    } catch (const XdrError&) {
      ++refused;
    }
    XdrReader again(bytes);
    try {
      AttributeSet given;
      XdrWriter out;
      encode_fattr(out, decode_new_fattr(again, given));
      expect_stable(
          encoding(out), [&](XdrReader& from) { return decode_new_fattr(from, given); },
          [](XdrWriter& to, const NewAttributes& it) { encode_fattr(to, it); });
    } catch (const XdrError&) {
    } catch (const NfsError&) {
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace uwarp::nfs
