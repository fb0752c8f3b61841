//! Trees from text files: what `find`, `stat`, `sha256sum` and `getfattr` printed of a mount.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sapwood_vfs::{FileKind, Ino, Timestamp};

use super::{Owner, Times, Tree, TreeInode};

type Result<T> = std::result::Result<T, String>;

impl Tree {
    /// Reads a listing, as `scripts/kernel-logs` and `scripts/kernel-journals` make it.
    ///
    /// # Errors
    /// The line that is not understood.
    pub fn of_text(listing: &str) -> Result<Self> {
        let mut all = Listing::default();
        let mut section = "";
        for line in listing.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                section = title.split([' ', ':']).next().unwrap_or_default();
            } else if !section.is_empty() && !line.is_empty() {
                all.line(section, line)
                    .ok_or_else(|| format!("a line without a meaning: {line}"))?;
            }
        }
        all.tree()
    }
}

#[derive(Default)]
struct Listing {
    /// By path; the root's is empty.
    nodes: BTreeMap<String, TreeInode>,
    /// The file whose attributes are listed.
    attributes_of: String,
}

fn time(text: &str) -> Option<Timestamp> {
    let (sec, nsec) = text.split_once('.')?;
    Some(Timestamp {
        sec: sec.parse().ok()?,
        // find(1) prints ten digits.
        nsec: nsec.get(..9)?.parse().ok()?,
    })
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect()
}

impl Listing {
    fn line(&mut self, section: &str, line: &str) -> Option<()> {
        match section {
            "find" => self.find(line)?,
            "device" => {
                let (path, numbers) = line.rsplit_once(' ')?;
                let (major, minor) = numbers.split_once(':')?;
                let rdev = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
                self.node(path)?.owner.rdev = rdev;
            }
            "sha256" => {
                let (sum, path) = line.split_once("  ")?;
                self.node(path)?.content = hex(sum)?.into();
            }
            "getfattr" => match line.strip_prefix("# file: ") {
                Some(path) => path.clone_into(&mut self.attributes_of),
                None => {
                    let (name, value) = line.split_once('=').unwrap_or((line, ""));
                    let value = hex(value.strip_prefix("0x").unwrap_or(value))?;
                    let path = self.attributes_of.clone();
                    let xattrs = &mut self.node(&path)?.xattrs;
                    Arc::make_mut(xattrs).insert(name.into(), value);
                }
            },
            "data/hole" => {
                let (path, rest) = line.split_once(" size ")?;
                let ranges = rest.split_once(" data ")?.1.split([' ', ',']);
                let range = |text: &str| {
                    let (from, to) = text.split_once('-')?;
                    Some((from.parse().ok()?, to.parse().ok()?))
                };
                let ranges = ranges.filter(|text| !text.is_empty() && *text != "-");
                let data: Option<Vec<(u64, u64)>> = ranges.map(range).collect();
                self.node(path)?.data = Some(data?.into());
            }
            "root" => {
                let mut words = line.split(' ').skip(1);
                let owner = Owner {
                    perm: u32::from_str_radix(words.next()?, 8).ok()?,
                    ..Owner::default()
                };
                let mut root = TreeInode::new(0, FileKind::Directory, owner);
                root.nlink = words.next()?.strip_prefix("nlink=")?.parse().ok()?;
                root.size = words.next()?.strip_prefix("size=")?.parse().ok()?;
                self.nodes.insert(String::new(), root);
            }
            _ => {}
        }
        Some(())
    }

    fn node(&mut self, path: &str) -> Option<&mut TreeInode> {
        self.nodes.get_mut(path.trim_start_matches("./"))
    }

    fn find(&mut self, line: &str) -> Option<()> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [
            path,
            kind,
            perm,
            nlink,
            uid,
            gid,
            size,
            mtime,
            ctime,
            ino,
            target,
        ] = fields[..]
        else {
            return None;
        };
        let kind = match kind {
            "f" => FileKind::Regular,
            "d" => FileKind::Directory,
            "l" => FileKind::Symlink,
            "p" => FileKind::Fifo,
            "s" => FileKind::Socket,
            "c" => FileKind::CharDevice,
            "b" => FileKind::BlockDevice,
            _ => return None,
        };
        let owner = Owner {
            perm: u32::from_str_radix(perm, 8).ok()?,
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            rdev: 0,
        };
        let node = TreeInode {
            nlink: nlink.parse().ok()?,
            size: size.parse().ok()?,
            content: target.as_bytes().into(),
            times: Some(Times {
                mtime: time(mtime)?,
                ctime: time(ctime)?,
                ..Times::default()
            }),
            ..TreeInode::new(ino.parse().ok()?, kind, owner)
        };
        self.nodes.insert(path.to_owned(), node);
        Some(())
    }

    /// Gives each inode a key: names of one inode with several names share it.
    fn tree(mut self) -> Result<Tree> {
        const ROOT: Ino = Ino(0);
        let root = self.nodes.remove("").ok_or("no line of the root")?;
        let mut tree = Tree::empty(ROOT);
        tree.nodes.insert(ROOT, root);
        let mut at: HashMap<String, Ino> = HashMap::from([(String::new(), ROOT)]);
        let mut linked: HashMap<u64, Ino> = HashMap::new();
        // A directory comes before its content.
        for (path, node) in self.nodes {
            let mut ino = Ino(at.len() as u64);
            if node.nlink > 1 && !node.is_dir() {
                ino = *linked.entry(node.number).or_insert(ino);
            }
            let (dir, name) = path.rsplit_once('/').unwrap_or(("", &path));
            let dir = at.get(dir).and_then(|dir| tree.nodes.get_mut(dir));
            let dir = dir.ok_or_else(|| format!("{path} has no directory"))?;
            Arc::make_mut(&mut dir.entries).insert(name.into(), ino);
            tree.nodes.insert(ino, node);
            at.insert(path, ino);
        }
        Ok(tree)
    }
}
