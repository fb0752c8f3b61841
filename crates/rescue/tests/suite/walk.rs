//! The files of a file system, read through its interface.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sapwood_vfs::{FileKind, FileSystem, Ino};

/// Paths of regular files with their contents; `None` if a file cannot be read.
pub(crate) type Contents = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Most entries of a walk.
const MOST: usize = 20_000;

/// All regular files. Directories that cannot be read are left out.
pub(crate) fn files(fs: &dyn FileSystem) -> Contents {
    let mut found = Contents::new();
    let mut todo = vec![(fs.root(), Vec::new())];
    let mut seen = 0;
    while let Some((dir, path)) = todo.pop() {
        for (ino, name) in names(fs, dir) {
            seen += 1;
            assert!(seen < MOST, "a walk does not end");
            let path = [&path[..], b"/", &name].concat();
            let Ok(entry) = fs.lookup(dir, &name) else {
                continue;
            };
            match entry.attr.kind {
                FileKind::Directory if path.len() < 4096 => todo.push((ino, path)),
                FileKind::Regular => {
                    let mut bytes = vec![0; entry.attr.size.min(64 << 20) as usize];
                    let read = fs.read(ino, 0, &mut bytes);
                    found.insert(path, read.ok().map(|_| bytes));
                }
                _ => {}
            }
            fs.forget(ino, 1);
        }
    }
    found
}

fn names(fs: &dyn FileSystem, dir: Ino) -> Vec<(Ino, Vec<u8>)> {
    let mut names = Vec::new();
    let mut from = 0;
    loop {
        let before = from;
        let listed = fs.readdir(dir, from, &mut |entry| {
            assert!(entry.next > from, "a listing does not advance");
            from = entry.next;
            names.push((entry.ino, entry.name));
            ControlFlow::Continue(())
        });
        if listed.is_err() || from == before {
            return names;
        }
    }
}

/// Files of `found` that are not files of `whole` with the same content.
pub(crate) fn wrong<'f>(found: &'f Contents, whole: &Contents) -> Vec<&'f Vec<u8>> {
    let differs = |(path, content): &(&Vec<u8>, &Option<Vec<u8>>)| {
        content.is_some() && whole.get(*path).is_some_and(|other| other != *content)
    };
    let wrong = found.iter().filter(differs);
    wrong.map(|(path, _)| path).collect()
}
