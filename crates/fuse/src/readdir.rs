//! Pages of a directory.
//!
//! The engine lists neither `.` nor `..`, and its positions start at 0. The kernel's cookies for
//! those two names are 1 and 2, so a position is its cookie minus 2.
//!
//! A page with attributes gives the kernel one lookup for each entry except the two dots. The
//! engine's sink must not call back, so the names are collected first, no more than can fit, and
//! then each is looked up. A name that was removed in between is omitted. If all were, the next
//! page is tried, because an empty page would mean the end.

use std::ops::ControlFlow;

use sapwood_vfs::{Attr, DirEntry, Error, FileKind, FileSystem, Ino, Result};

use crate::node::{NodeId, NodeMap};

/// The two kinds of page in the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// Names, inode numbers and types (`FUSE_READDIR`).
    Names,
    /// Also attributes, with a lookup for each (`FUSE_READDIRPLUS`).
    Attributes,
}

impl PageKind {
    /// Size of an entry on the wire, in bytes: a header, the name, and padding to 8.
    #[must_use]
    pub(crate) fn wire_size(self, name_len: usize) -> usize {
        let header = match self {
            Self::Names => 24,
            Self::Attributes => 24 + 128,
        };
        (header + name_len).next_multiple_of(8)
    }
}

/// One name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DirItem {
    /// Inode number to show.
    pub ino: Ino,
    /// Cookie from which the listing continues after this entry.
    pub cookie: u64,
    /// Type.
    pub kind: FileKind,
    /// Name.
    pub name: Vec<u8>,
}

/// Attributes of an entry in a page that has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirAttributes {
    /// The node, for which the kernel receives one lookup. `NodeId::NONE` for the two dots, for
    /// which it receives none.
    pub node: NodeId,
    /// Its attributes.
    pub attr: Attr,
}

/// Takes the entries of a page. Returns false if an entry did not fit. The attributes are present
/// if the request asked for them.
pub(crate) type DirSink<'a> = &'a mut dyn FnMut(&DirItem, Option<&DirAttributes>) -> bool;

const DOT_COOKIE: u64 = 1;
const DOT_DOT_COOKIE: u64 = 2;

/// The directory, the start and the size of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageRequest {
    pub(crate) dir: Ino,
    pub(crate) cookie: u64,
    pub(crate) max_bytes: usize,
    pub(crate) kind: PageKind,
}

/// Passes a page of at most `max_bytes` on the wire to `sink`.
pub(crate) fn page(
    fs: &dyn FileSystem,
    map: NodeMap,
    mut request: PageRequest,
    sink: DirSink<'_>,
) -> Result<()> {
    loop {
        let items = names(fs, &request)?;
        let mut any = false;
        for item in &items {
            let attributes = match (request.kind, item.cookie) {
                (PageKind::Names, _) => None,
                (PageKind::Attributes, DOT_COOKIE | DOT_DOT_COOKIE) => Some(DirAttributes {
                    node: NodeId::NONE,
                    attr: fs.getattr(request.dir)?,
                }),
                (PageKind::Attributes, _) => match fs.reference(item.ino) {
                    Ok(entry) => Some(DirAttributes {
                        node: map.node(entry.ino()),
                        attr: entry.attr,
                    }),
                    Err(Error::Stale | Error::NotFound) => continue,
                    // The entries so far come first; the next page returns the error.
                    Err(_) if any => return Ok(()),
                    Err(error) => return Err(error),
                },
            };
            if !sink(item, attributes.as_ref()) {
                if let Some(refused) = attributes.filter(|a| a.node != NodeId::NONE) {
                    fs.forget(map.ino(refused.node), 1);
                }
                return Ok(());
            }
            any = true;
        }
        match items.last() {
            Some(last) if !any => request.cookie = last.cookie,
            _ => return Ok(()),
        }
    }
}

fn names(fs: &dyn FileSystem, request: &PageRequest) -> Result<Vec<DirItem>> {
    let mut left = request.max_bytes;
    let mut items = Vec::new();
    if add_dots(fs, request, &mut left, &mut items)? {
        add_names(fs, request, left, &mut items)?;
    }
    Ok(items)
}

fn add_names(
    fs: &dyn FileSystem,
    request: &PageRequest,
    mut left: usize,
    items: &mut Vec<DirItem>,
) -> Result<()> {
    let mut overflow = false;
    let from = request.cookie.saturating_sub(DOT_DOT_COOKIE);
    fs.readdir(request.dir, from, &mut |entry| {
        let Some(cookie) = entry.next.checked_add(DOT_DOT_COOKIE) else {
            overflow = true;
            return ControlFlow::Break(());
        };
        let size = request.kind.wire_size(entry.name.len());
        if size > left {
            return ControlFlow::Break(());
        }
        left -= size;
        items.push(item(entry, cookie));
        ControlFlow::Continue(())
    })?;
    if overflow && items.is_empty() {
        return Err(Error::Overflow);
    }
    Ok(())
}

fn item(entry: DirEntry, cookie: u64) -> DirItem {
    DirItem {
        ino: entry.ino,
        cookie,
        kind: entry.kind,
        name: entry.name,
    }
}

/// Adds `.` and `..` if they follow the request's cookie. False if the page is full.
fn add_dots(
    fs: &dyn FileSystem,
    request: &PageRequest,
    left: &mut usize,
    items: &mut Vec<DirItem>,
) -> Result<bool> {
    for (cookie, name) in [(DOT_COOKIE, &b"."[..]), (DOT_DOT_COOKIE, &b".."[..])] {
        if request.cookie >= cookie {
            continue;
        }
        let Some(rest) = left.checked_sub(request.kind.wire_size(name.len())) else {
            return Ok(false);
        };
        *left = rest;
        let ino = if cookie == DOT_COOKIE {
            request.dir
        } else {
            parent_ino(fs, request.dir)?
        };
        items.push(DirItem {
            ino,
            cookie,
            kind: FileKind::Directory,
            name: name.to_vec(),
        });
    }
    Ok(true)
}

/// Inode number of the parent. A directory that was removed while open has no parent; its own
/// number is used.
fn parent_ino(fs: &dyn FileSystem, dir: Ino) -> Result<Ino> {
    match fs.parent(dir) {
        Ok(parent) => {
            if parent.ino() != fs.root() {
                fs.forget(parent.ino(), 1);
            }
            Ok(parent.ino())
        }
        Err(Error::NotFound | Error::Stale) => Ok(dir),
        Err(error) => Err(error),
    }
}
