//! Requests as byte slices: well-formed ones are decoded unchanged, others are an error and never a
//! panic. Directory pages are filled up to their last byte and no further.

use proptest::prelude::*;
use sapwood_testing::MemoryFs;
use sapwood_vfs::{Attr, FileKind, FileSystem, Ino, InodeFlags};
use zerocopy::{FromBytes, IntoBytes};

use super::abi::{
    BatchForgetIn, Dirent, EntryOut, ForgetOne, InHeader, SetAttrIn, SetXattrIn, StatxOut, WriteIn,
};
use super::reply::{self, Page};
use super::{Body, Malformed, Opcode, Operation, split_message};
use crate::node::NodeId;
use crate::readdir::{DirAttributes, DirItem, PageKind};

const TTL: std::time::Duration = std::time::Duration::from_secs(7);

fn message(opcode: Opcode, parts: &[&[u8]]) -> Vec<u8> {
    let body: usize = parts.iter().map(|part| part.len()).sum();
    let header = InHeader {
        len: u32::try_from(size_of::<InHeader>() + body).unwrap_or(0),
        opcode: opcode as u32,
        unique: 9,
        nodeid: 3,
        ..InHeader::default()
    };
    let mut bytes = header.as_bytes().to_vec();
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes
}

fn decode(message: &[u8]) -> Result<Operation<'_>, Malformed> {
    let (header, body) = split_message(message)?;
    Operation::decode(Opcode::try_from(header.opcode)?, body, true)
}

fn sample_attr() -> Attr {
    let fs = MemoryFs::new();
    fs.getattr(fs.root())
        .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_message_with_a_wrong_length_is_refused() {
    let good = message(Opcode::Lookup, &[b"name\0"]);
    assert!(matches!(
        decode(&good),
        Ok(Operation::Lookup { name: b"name" })
    ));
    let mut long = good.clone();
    long.push(0);
    assert!(matches!(
        decode(&long),
        Err(Malformed::Length {
            stated: 45,
            have: 46
        })
    ));
    assert!(matches!(decode(&good[..44]), Err(Malformed::Length { .. })));
    assert_eq!(decode(&good[..39]).err(), Some(Malformed::NoHeader(39)));
    assert_eq!(decode(&[]).err(), Some(Malformed::NoHeader(0)));
}

#[test]
fn a_name_without_nul_is_refused() {
    let open = message(Opcode::Unlink, &[b"name"]);
    assert_eq!(decode(&open).err(), Some(Malformed::NoEnd));
    let one = message(Opcode::Rename2, &[&[0; 16], b"from\0", b"to"]);
    assert_eq!(decode(&one).err(), Some(Malformed::NoEnd));
    let both = message(Opcode::Rename2, &[&[0; 16], b"from\0", b"to\0"]);
    assert!(matches!(
        decode(&both),
        Ok(Operation::Rename {
            from: b"from",
            to: b"to",
            ..
        })
    ));
}

#[test]
fn data_shorter_than_its_header_is_refused() {
    let args = |size| WriteIn {
        offset: 5,
        size,
        ..WriteIn::default()
    };
    let good = message(Opcode::Write, &[args(4).as_bytes(), b"data"]);
    assert!(matches!(
        decode(&good),
        Ok(Operation::Write { data: b"data", .. })
    ));
    for size in [5, u32::MAX] {
        let short = message(Opcode::Write, &[args(size).as_bytes(), b"data"]);
        assert!(matches!(
            decode(&short),
            Err(Malformed::Short { have: 4, .. })
        ));
    }
    let args = SetXattrIn {
        size: 3,
        ..SetXattrIn::default()
    };
    let set = message(Opcode::SetXattr, &[args.as_bytes(), b"user.a\0", b"xyz"]);
    let Ok(Operation::SetXattr { name, value, .. }) = decode(&set) else {
        panic!("not read");
    };
    assert_eq!((name, value), (&b"user.a"[..], &b"xyz"[..]));
}

#[test]
fn forgets_end_with_the_message() {
    let nodes: Vec<u8> = (1..=3_u64)
        .flat_map(|nodeid| {
            ForgetOne {
                nodeid,
                nlookup: 2 * nodeid,
            }
            .as_bytes()
            .to_vec()
        })
        .collect();
    for (count, good) in [(3, true), (2, true), (4, false), (u32::MAX, false)] {
        let head = BatchForgetIn { count, dummy: 0 };
        let bytes = message(Opcode::BatchForget, &[head.as_bytes(), &nodes]);
        match decode(&bytes) {
            Ok(Operation::BatchForget(forgets)) => {
                assert!(good);
                let seen: Vec<u64> = forgets.map(|one| one.nlookup).collect();
                assert_eq!(seen, [2, 4, 6][..seen.len()]);
                assert_eq!(seen.len(), usize::try_from(count).unwrap_or(0));
            }
            _ => assert!(!good),
        }
    }
}

#[test]
fn unknown_opcodes_are_refused_for_good() {
    let mut bytes = message(Opcode::Lookup, &[b"name\0"]);
    bytes[4..8].copy_from_slice(&4711_u32.to_ne_bytes());
    let error = decode(&bytes).err();
    assert_eq!(error, Some(Malformed::Unknown(4711)));
    assert_eq!(error.map(Malformed::errno), Some(libc::ENOSYS));
    for opcode in [Opcode::Open, Opcode::OpenDir, Opcode::Create, Opcode::Flush] {
        let bytes = message(opcode, &[&[0; 16], b"name\0"]);
        assert!(matches!(decode(&bytes), Ok(Operation::NotServed)));
    }
    let bytes = message(Opcode::Access, &[&[2, 0, 0, 0, 0, 0, 0, 0]]);
    let mask = u32::from_ne_bytes([2, 0, 0, 0]);
    assert!(matches!(decode(&bytes), Ok(Operation::Access { mask: read }) if read == mask));
}

#[test]
fn the_struct_may_be_in_a_separate_place() {
    let args = SetAttrIn {
        size: 77,
        ..SetAttrIn::default()
    };
    // The separate place is larger than the struct.
    let mut place = args.as_bytes().to_vec();
    place.resize(128, 0xee);
    let split = Operation::decode(Opcode::SetAttr, Body::split(&place, &[]), true);
    assert!(matches!(split, Ok(Operation::SetAttr(read)) if read == args));
    let names = Body::split(&[0; 128], b"link\0target\0");
    let symlink = Operation::decode(Opcode::Symlink, names, true);
    assert!(matches!(
        symlink,
        Ok(Operation::Symlink {
            name: b"link",
            target: b"target"
        })
    ));
    let short = Operation::decode(Opcode::SetAttr, Body::split(&place[..80], &[]), true);
    assert!(matches!(
        short,
        Err(Malformed::Short {
            need: 88,
            have: 80,
            ..
        })
    ));
}

#[test]
fn statx_has_the_creation_time() {
    let attr = sample_attr();
    let out = reply::statx(TTL, &attr);
    assert_eq!(size_of_val(&out), size_of::<StatxOut>());
    assert_eq!(
        (out.stat.btime.tv_sec, out.stat.btime.tv_nsec),
        (attr.btime.sec, attr.btime.nsec)
    );
    assert_eq!(out.stat.mask & 0x800, 0x800);
    assert_eq!((out.attr_valid, out.stat.ino), (7, attr.ino.0));
}

#[test]
fn statx_has_the_flags_of_the_inode() {
    let of = |flags| {
        let out = reply::statx(
            TTL,
            &Attr {
                flags,
                ..sample_attr()
            },
        );
        (out.stat.attributes, out.stat.attributes_mask)
    };
    let known = 0x74;
    assert_eq!(of(InodeFlags::empty()), (0, known));
    assert_eq!(of(InodeFlags::IMMUTABLE), (0x10, known));
    assert_eq!(of(InodeFlags::APPEND | InodeFlags::NODUMP), (0x60, known));
    assert_eq!(of(InodeFlags::COMPRESS | InodeFlags::SYNC), (0x4, known));
    assert_eq!(of(InodeFlags::all()), (known, known));
}

fn item(name: &[u8], cookie: u64) -> DirItem {
    DirItem {
        ino: Ino(40 + cookie),
        cookie,
        kind: FileKind::Regular,
        name: name.to_vec(),
    }
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(
        opcode in 0_u32..60,
        body in proptest::collection::vec(any::<u8>(), 0..200),
        head in proptest::collection::vec(any::<u8>(), 0..128),
        ext in any::<bool>(),
    ) {
        let Ok(opcode) = Opcode::try_from(opcode) else { return Ok(()) };
        for body in [Body::joined(&body), Body::split(&head, &body)] {
            if let Ok(Operation::BatchForget(forgets)) = Operation::decode(opcode, body, ext) {
                prop_assert!(forgets.count() <= 200 / 16);
            }
        }
    }

    #[test]
    fn any_message_is_split_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        if let Ok((header, _)) = split_message(&bytes) {
            prop_assert_eq!(usize::try_from(header.len), Ok(bytes.len()));
        }
    }

    #[test]
    fn a_cut_message_is_never_whole(opcode in 0_usize..Opcode::ALL.len(), cut in 0_usize..130) {
        let opcode = Opcode::ALL[opcode];
        let whole = [1_u8; 130];
        let kept = Operation::decode(opcode, Body::joined(&whole[..cut]), true);
        // Without a NUL a name has no end, whatever precedes it.
        let named = matches!(
            opcode,
            Opcode::Lookup | Opcode::Symlink | Opcode::Mknod | Opcode::Mkdir | Opcode::Unlink
                | Opcode::Rmdir | Opcode::Rename | Opcode::Rename2 | Opcode::Link
                | Opcode::SetXattr | Opcode::GetXattr | Opcode::RemoveXattr
        );
        prop_assert!(!named || kept.is_err());
    }

    #[test]
    fn pages_never_overflow_and_list_granted_nodes(
        names in proptest::collection::vec(proptest::collection::vec(1_u8..255, 1..60), 1..20),
        room in 0_usize..2000,
        plus in any::<bool>(),
    ) {
        let attr = sample_attr();
        let mut out = vec![0xaa; room + 8];
        let (space, guard) = out.split_at_mut(room);
        let mut page = Page::new(space);
        let kind = if plus { PageKind::Attributes } else { PageKind::Names };
        let (mut expected, mut granted) = (0, Vec::new());
        for (cookie, name) in (1..).zip(&names) {
            let item = item(name, cookie);
            let node = if cookie == 1 { NodeId::NONE } else { NodeId(100 + cookie) };
            let fits = expected + kind.wire_size(name.len()) <= room;
            let taken = if plus {
                page.add_plus(TTL, &item, &DirAttributes { node, attr })
            } else {
                page.add(&item)
            };
            prop_assert_eq!(taken, fits);
            if !taken { break; }
            expected += kind.wire_size(name.len());
            if plus && node != NodeId::NONE { granted.push(node); }
        }
        let len = page.len();
        prop_assert_eq!(len, expected);
        prop_assert!(guard.iter().all(|&byte| byte == 0xaa));
        let opcode = if plus { Opcode::ReadDirPlus } else { Opcode::ReadDir };
        prop_assert_eq!(reply::granted(opcode as u32, &out[..len]), granted);
        let first = if plus { size_of::<EntryOut>() } else { 0 };
        if len > 0 {
            let dirent = Dirent::read_from_prefix(&out[first..]).map(|(dirent, _)| dirent);
            prop_assert_eq!(dirent.map(|d| (d.ino, d.off)).ok(), Some((41, 1)));
        }
    }
}

#[test]
fn entries_grant_their_node() {
    let entry = EntryOut {
        nodeid: 5,
        ..EntryOut::default()
    };
    let mkdir = Opcode::Mkdir as u32;
    assert_eq!(reply::granted(mkdir, entry.as_bytes()), [NodeId(5)]);
    assert!(reply::granted(Opcode::GetAttr as u32, entry.as_bytes()).is_empty());
    assert!(reply::granted(Opcode::Lookup as u32, reply::absent(TTL).as_bytes()).is_empty());
    assert!(reply::granted(mkdir, &[1; 20]).is_empty());
}
