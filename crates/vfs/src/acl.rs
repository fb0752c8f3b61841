//! POSIX access control lists in the encoding of the `system.posix_acl_access` and
//! `system.posix_acl_default` attributes (version 2), which engines also store.
//!
//! # How it works
//! The value is a little-endian `u32` version (2), then eight bytes per entry: `u16` tag, `u16`
//! permissions (`rwx`), `u32` id (all ones for tags without an id), as `linux/posix_acl_xattr.h` of
//! the user-space headers defines it. The order of entries is owner, named users, owning group,
//! named groups, mask, others.
//!
//! The permission bits of the mode and the access list describe the same permissions. The owner and
//! others entries equal their mode bits. The group bits equal the mask if there is one, otherwise
//! the owning group's entry.
//!
//! - [`set_access`] computes the mode from a new list.
//! - [`chmod`] computes the list from a new mode.
//! - [`inherit`] computes both for a new inode from its directory's default list.
//!
//! A list that is equivalent to the mode is not stored.

use crate::FileKind;

/// Name of the attribute that holds the access list.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute that holds a directory's default list.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;
const RWX: u32 = 0o7;

/// Defect of an encoded list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// Unknown version.
    #[error("unknown ACL version {0}; only 2 is supported")]
    Version(u32),
    /// The length is not a header plus whole entries.
    #[error("ACL of {0} bytes ends within an entry")]
    Length(usize),
    /// Unknown tag.
    #[error("ACL entry {index} has unknown tag {tag:#x}")]
    Tag {
        /// Position of the entry.
        index: usize,
        /// Its tag.
        tag: u16,
    },
    /// Permissions other than `rwx`.
    #[error("ACL entry {index} has permissions {perm:#o}")]
    Permissions {
        /// Position of the entry.
        index: usize,
        /// Its permissions.
        perm: u16,
    },
    /// A named user or group without an id.
    #[error("ACL entry {index} names no user or group")]
    Id {
        /// Position of the entry.
        index: usize,
    },
    /// An entry that must not follow the one before it.
    #[error("ACL entry {index} is out of order or given twice")]
    Order {
        /// Position of the entry.
        index: usize,
    },
    /// The entry of the owner, the group or others is missing, or the mask that named entries need.
    #[error("ACL lacks its {0} entry")]
    Missing(&'static str),
}

impl From<AclError> for crate::Error {
    fn from(error: AclError) -> Self {
        match error {
            AclError::Version(_) => Self::NotSupported,
            _ => Self::Invalid,
        }
    }
}

/// The users that an entry applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// The owner.
    UserObj,
    /// This user.
    User(u32),
    /// The owning group.
    GroupObj,
    /// This group.
    Group(u32),
    /// Upper bound for all entries except the owner's and the others'.
    Mask,
    /// All other users.
    Other,
}

impl Tag {
    fn encode(self) -> (u16, u32) {
        match self {
            Self::UserObj => (0x01, NO_ID),
            Self::User(id) => (0x02, id),
            Self::GroupObj => (0x04, NO_ID),
            Self::Group(id) => (0x08, id),
            Self::Mask => (0x10, NO_ID),
            Self::Other => (0x20, NO_ID),
        }
    }

    fn decode(index: usize, tag: u16, id: u32) -> Result<Self, AclError> {
        let named = |of: fn(u32) -> Self| match id {
            NO_ID => Err(AclError::Id { index }),
            id => Ok(of(id)),
        };
        match tag {
            0x01 => Ok(Self::UserObj),
            0x02 => named(Self::User),
            0x04 => Ok(Self::GroupObj),
            0x08 => named(Self::Group),
            0x10 => Ok(Self::Mask),
            0x20 => Ok(Self::Other),
            _ => Err(AclError::Tag { index, tag }),
        }
    }
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// The users that it applies to.
    pub tag: Tag,
    /// `rwx`, 0 to 7.
    pub perm: u32,
}

/// A valid list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// Creates a list if the entries are valid.
    ///
    /// # Errors
    /// The first rule that the entries violate.
    pub fn new(entries: Vec<AclEntry>) -> Result<Self, AclError> {
        let mut last = 0;
        let mut named = false;
        for (index, entry) in entries.iter().enumerate() {
            if entry.perm & !RWX != 0 {
                let perm = u16::try_from(entry.perm).unwrap_or(u16::MAX);
                return Err(AclError::Permissions { index, perm });
            }
            let (code, _) = entry.tag.encode();
            let repeats = matches!(entry.tag, Tag::User(_) | Tag::Group(_));
            if code < last || (code == last && !repeats) {
                return Err(AclError::Order { index });
            }
            named |= repeats;
            last = code;
        }
        let acl = Self { entries };
        for (tag, name) in [
            (Tag::UserObj, "owner"),
            (Tag::GroupObj, "group"),
            (Tag::Other, "others"),
        ] {
            acl.perm_of(tag).ok_or(AclError::Missing(name))?;
        }
        if named && acl.perm_of(Tag::Mask).is_none() {
            return Err(AclError::Missing("mask"));
        }
        Ok(acl)
    }

    /// Decodes an attribute's value. Returns `None` for a list without entries: setting it removes
    /// the attribute.
    ///
    /// # Errors
    /// The defect of the value.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, AclError> {
        let short = AclError::Length(bytes.len());
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or(short)?;
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(AclError::Version(version));
        }
        let (chunks, tail) = rest.as_chunks::<8>();
        if !tail.is_empty() {
            return Err(short);
        }
        if chunks.is_empty() {
            return Ok(None);
        }
        let mut entries = Vec::with_capacity(chunks.len());
        for (index, &[t0, t1, p0, p1, i0, i1, i2, i3]) in chunks.iter().enumerate() {
            let perm = u16::from_le_bytes([p0, p1]);
            let id = u32::from_le_bytes([i0, i1, i2, i3]);
            entries.push(AclEntry {
                tag: Tag::decode(index, u16::from_le_bytes([t0, t1]), id)?,
                perm: u32::from(perm),
            });
        }
        Self::new(entries).map(Some)
    }

    /// The attribute's value.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            let (tag, id) = entry.tag.encode();
            let perm = u16::try_from(entry.perm & RWX).unwrap_or(0);
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&perm.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// The list that is equivalent to the mode bits `perm`.
    #[must_use]
    pub fn from_mode(perm: u32) -> Self {
        let entry = |tag, shift: u32| AclEntry {
            tag,
            perm: (perm >> shift) & RWX,
        };
        Self {
            entries: vec![
                entry(Tag::UserObj, 6),
                entry(Tag::GroupObj, 3),
                entry(Tag::Other, 0),
            ],
        }
    }

    /// Its entries, in order.
    #[must_use]
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// The nine permission bits that it corresponds to.
    #[must_use]
    pub fn mode(&self) -> u32 {
        let perm = |tag| self.perm_of(tag).unwrap_or(0);
        perm(Tag::UserObj) << 6 | perm(self.group_class()) << 3 | perm(Tag::Other)
    }

    /// True if the list is equivalent to its mode bits.
    #[must_use]
    pub(crate) fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// Updates it to the mode bits `perm`.
    pub fn chmod(&mut self, perm: u32) {
        let group_class = self.group_class();
        for entry in &mut self.entries {
            if entry.tag == Tag::UserObj {
                entry.perm = (perm >> 6) & RWX;
            } else if entry.tag == group_class {
                entry.perm = (perm >> 3) & RWX;
            } else if entry.tag == Tag::Other {
                entry.perm = perm & RWX;
            }
        }
    }

    /// The entry that the group bits of the mode correspond to.
    fn group_class(&self) -> Tag {
        match self.perm_of(Tag::Mask) {
            Some(_) => Tag::Mask,
            None => Tag::GroupObj,
        }
    }

    fn perm_of(&self, tag: Tag) -> Option<u32> {
        let found = self.entries.iter().find(|entry| entry.tag == tag);
        found.map(|entry| entry.perm)
    }
}

/// Permissions and lists of a new inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// Permission bits of the inode. Set-id and sticky bits are as requested.
    pub perm: u32,
    /// Access list to store, as the attribute's value.
    pub access: Option<Vec<u8>>,
    /// Default list to store (directories only), as the attribute's value.
    pub default: Option<Vec<u8>>,
}

/// Computes permissions and lists of a new inode of this kind for which `perm` was requested.
/// `default_acl` is the value of its directory's default list. If there is one, the umask is
/// ignored. A symbolic link takes neither.
///
/// # Errors
/// The defect of `default_acl`. It comes from the image, so this is damage.
pub fn inherit(
    default_acl: Option<&[u8]>,
    kind: FileKind,
    perm: u32,
    umask: u32,
) -> Result<Inherited, AclError> {
    let plain = |perm| Inherited {
        perm,
        access: None,
        default: None,
    };
    if kind == FileKind::Symlink {
        return Ok(plain(0o777));
    }
    let default = default_acl.map(Acl::parse).transpose()?.flatten();
    let Some(default) = default else {
        return Ok(plain(perm & !(umask & 0o777)));
    };
    // The requested bits limit the rights from the default list.
    let granted = default.mode() & perm;
    let mut access = default.clone();
    access.chmod(granted);
    Ok(Inherited {
        perm: (perm & !0o777) | granted,
        access: (!access.is_minimal()).then(|| access.to_bytes()),
        default: (kind == FileKind::Directory).then(|| default.to_bytes()),
    })
}

/// Result of setting an access list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessChange {
    /// The inode's new permission, set-id and sticky bits.
    pub perm: u32,
    /// The attribute's new value; `None` removes it.
    pub stored: Option<Vec<u8>>,
}

/// Sets the access list of an inode whose bits are `perm`.
///
/// # Errors
/// The defect of `value`.
pub fn set_access(value: &[u8], perm: u32) -> Result<AccessChange, AclError> {
    let Some(acl) = Acl::parse(value)? else {
        return Ok(AccessChange { perm, stored: None });
    };
    Ok(AccessChange {
        perm: (perm & !0o777) | acl.mode(),
        stored: (!acl.is_minimal()).then(|| acl.to_bytes()),
    })
}

/// Sets the default list of a directory. Returns the attribute's new value; `None` removes it.
///
/// # Errors
/// The defect of `value`.
pub fn set_default(value: &[u8]) -> Result<Option<Vec<u8>>, AclError> {
    Ok(Acl::parse(value)?.map(|acl| acl.to_bytes()))
}

/// The stored access list `access` after the mode became `perm`.
///
/// # Errors
/// The defect of `access`. It comes from the image, so this is damage.
pub fn chmod(access: &[u8], perm: u32) -> Result<Option<Vec<u8>>, AclError> {
    Ok(Acl::parse(access)?.map(|mut acl| {
        acl.chmod(perm);
        acl.to_bytes()
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn acl(entries: &[(Tag, u32)]) -> Result<Acl, AclError> {
        let entries = entries.iter().map(|&(tag, perm)| AclEntry { tag, perm });
        Acl::new(entries.collect())
    }

    fn with_mask(mask: u32) -> Acl {
        acl(&[
            (Tag::UserObj, 7),
            (Tag::User(1000), 6),
            (Tag::GroupObj, 5),
            (Tag::Group(50), 7),
            (Tag::Mask, mask),
            (Tag::Other, 4),
        ])
        .unwrap()
    }

    #[test]
    fn bytes_round_trip_and_layout() {
        let bytes = with_mask(3).to_bytes();
        assert_eq!(bytes.len(), 4 + 6 * 8);
        assert_eq!(&bytes[..4], &[2, 0, 0, 0]);
        assert_eq!(&bytes[4..12], &[1, 0, 7, 0, 255, 255, 255, 255]);
        assert_eq!(&bytes[12..20], &[2, 0, 6, 0, 0xe8, 3, 0, 0]);
        assert_eq!(Acl::parse(&bytes), Ok(Some(with_mask(3))));
    }

    #[test]
    fn empty_list_means_none() {
        assert_eq!(Acl::parse(&[2, 0, 0, 0]), Ok(None));
        let gone = set_access(&[2, 0, 0, 0], 0o4755).unwrap();
        assert_eq!((gone.perm, gone.stored), (0o4755, None));
    }

    #[test]
    fn malformed_values_are_refused() {
        assert_eq!(Acl::parse(&[]), Err(AclError::Length(0)));
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(AclError::Version(1)));
        let good = Acl::from_mode(0o644).to_bytes();
        assert_eq!(
            Acl::parse(&good[..good.len() - 1]),
            Err(AclError::Length(27))
        );
        let patched = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            Acl::parse(&bytes)
        };
        assert_eq!(patched(4, 3), Err(AclError::Tag { index: 0, tag: 3 }));
        assert_eq!(
            patched(6, 8),
            Err(AclError::Permissions { index: 0, perm: 8 })
        );
        assert_eq!(patched(4, 2), Err(AclError::Id { index: 0 }));
        assert_eq!(patched(12, 1), Err(AclError::Order { index: 1 }));
    }

    #[test]
    fn required_entries() {
        let (user, group, other) = ((Tag::UserObj, 7), (Tag::GroupObj, 5), (Tag::Other, 0));
        assert_eq!(acl(&[group, other]), Err(AclError::Missing("owner")));
        assert_eq!(acl(&[user, other]), Err(AclError::Missing("group")));
        assert_eq!(acl(&[user, group]), Err(AclError::Missing("others")));
        let named = [user, (Tag::User(1), 7), group, other];
        assert_eq!(acl(&named), Err(AclError::Missing("mask")));
        let disordered = [user, other, group];
        assert_eq!(acl(&disordered), Err(AclError::Order { index: 2 }));
        let mask_only = [user, group, (Tag::Mask, 7), other];
        assert!(!acl(&mask_only).unwrap().is_minimal());
    }

    #[test]
    fn set_access_moves_the_mode() {
        let change = set_access(&with_mask(3).to_bytes(), 0o2600).unwrap();
        assert_eq!(change.perm, 0o2734);
        assert_eq!(change.stored, Some(with_mask(3).to_bytes()));
        let minimal = set_access(&Acl::from_mode(0o641).to_bytes(), 0o1777).unwrap();
        assert_eq!((minimal.perm, minimal.stored), (0o1641, None));
    }

    #[test]
    fn chmod_moves_the_mask_or_the_group() {
        let changed = chmod(&with_mask(7).to_bytes(), 0o4621).unwrap().unwrap();
        let changed = Acl::parse(&changed).unwrap().unwrap();
        assert_eq!(changed.mode(), 0o621);
        assert_eq!(
            changed.entries()[2].perm,
            5,
            "the owning group's entry stays"
        );
        assert_eq!(changed.entries()[1].perm, 6, "a named user's entry stays");
        let minimal = chmod(&Acl::from_mode(0o777).to_bytes(), 0o640).unwrap();
        assert_eq!(minimal, Some(Acl::from_mode(0o640).to_bytes()));
    }

    #[test]
    fn inherit_without_default_applies_the_umask() {
        let got = inherit(None, FileKind::Regular, 0o4777, 0o027).unwrap();
        assert_eq!(got.perm, 0o4750);
        assert_eq!((got.access, got.default), (None, None));
        let link = inherit(None, FileKind::Symlink, 0o600, 0o077).unwrap();
        assert_eq!(link.perm, 0o777);
    }

    #[test]
    fn inherit_with_default_ignores_the_umask() {
        let default = with_mask(7).to_bytes();
        let file = inherit(Some(&default), FileKind::Regular, 0o666, 0o777).unwrap();
        assert_eq!(file.perm, 0o664);
        assert_eq!(file.default, None);
        let access = Acl::parse(&file.access.unwrap()).unwrap().unwrap();
        assert_eq!(access.mode(), 0o664);
        assert_eq!(access.entries()[2].perm, 5);
        let dir = inherit(Some(&default), FileKind::Directory, 0o777, 0o777).unwrap();
        assert_eq!(dir.perm, 0o774);
        assert_eq!(dir.default, Some(default));
    }

    #[test]
    fn inherit_of_a_minimal_default_stores_no_access_list() {
        let default = Acl::from_mode(0o750).to_bytes();
        let file = inherit(Some(&default), FileKind::Regular, 0o666, 0).unwrap();
        assert_eq!((file.perm, file.access), (0o640, None));
    }
}
