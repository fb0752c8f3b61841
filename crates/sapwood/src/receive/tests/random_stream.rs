//! Streams of random commands, in orders that no sender has: changes of names between changes of
//! data, renamed directories with changed files, clones of files that change later.

use std::collections::BTreeMap;

use sapwood_btrfs_format::stream::{Writer, attribute as attr, command as cmd, header};

const UUID: [u8; 16] = [7; 16];
const BLOCK: u64 = 4096;

/// The tree that the commands make.
struct Model {
    random: fastrand::Rng,
    out: Writer,
    bytes: Vec<u8>,
    /// The inode of each path. A directory has `None`.
    paths: BTreeMap<String, Option<usize>>,
    /// Sizes of the files.
    sizes: Vec<u64>,
    names: usize,
}

/// A valid stream of a subvolume `s`, with `commands` commands.
pub(super) fn random_stream(seed: u64, commands: usize) -> Vec<u8> {
    let mut model = Model {
        random: fastrand::Rng::with_seed(seed),
        out: Writer::new(1),
        bytes: header(1).to_vec(),
        paths: BTreeMap::new(),
        sizes: Vec::new(),
        names: 0,
    };
    model.command(cmd::SUBVOL, |out| {
        out.put(attr::PATH, b"s")
            .put(attr::UUID, &UUID)
            .put_u64(attr::CTRANSID, 9);
    });
    for _ in 0..commands {
        model.step();
    }
    model.command(cmd::END, |_| {});
    model.bytes
}

impl Model {
    fn command(&mut self, number: u16, compose: impl FnOnce(&mut Writer)) {
        compose(self.out.begin(number));
        self.bytes.extend_from_slice(self.out.finish());
    }

    fn on(&mut self, number: u16, path: &str, compose: impl FnOnce(&mut Writer)) {
        self.command(number, |out| {
            compose(out.put(attr::PATH, path.as_bytes()));
        });
    }

    /// A path that does not exist.
    fn fresh(&mut self) -> String {
        self.names += 1;
        let name = format!("n{}", self.names);
        match self.any(false) {
            Some(dir) if self.random.bool() => format!("{dir}/{name}"),
            _ => name,
        }
    }

    /// A path of a file, or of a directory.
    fn any(&mut self, file: bool) -> Option<String> {
        let fitting = self.paths.iter().filter(|(_, id)| id.is_some() == file);
        let fitting: Vec<_> = fitting.map(|(path, _)| path.clone()).collect();
        self.random.choice(fitting)
    }

    fn make_file(&mut self) {
        let path = self.fresh();
        self.on(cmd::MKFILE, &path, |_| {});
        self.paths.insert(path, Some(self.sizes.len()));
        self.sizes.push(0);
    }

    fn step(&mut self) {
        let Some(path) = self.any(true) else {
            return self.make_file();
        };
        let id = self.paths[&path].unwrap();
        match self.random.u8(..20) {
            0..3 => self.make_file(),
            3 => {
                let path = self.fresh();
                self.on(cmd::MKDIR, &path, |_| {});
                self.paths.insert(path, None);
            }
            4 => {
                let new = self.fresh();
                self.on(cmd::LINK, &new, |out| {
                    out.put(attr::PATH_LINK, path.as_bytes());
                });
                self.paths.insert(new, Some(id));
            }
            5 => {
                self.on(cmd::UNLINK, &path, |_| {});
                self.paths.remove(&path);
            }
            6 | 7 => self.rename_file(&path),
            8 | 9 => self.rename_directory(),
            10 => {
                let size = self.random.u64(..5 * BLOCK);
                self.on(cmd::TRUNCATE, &path, |out| {
                    out.put_u64(attr::SIZE, size);
                });
                self.sizes[id] = size;
            }
            11 => {
                let mode = self.random.u64(0o600..0o700);
                self.on(cmd::CHMOD, &path, |out| {
                    out.put_u64(attr::MODE, mode);
                });
            }
            12 => {
                let value = self.random.u64(..).to_le_bytes();
                self.on(cmd::SET_XATTR, &path, |out| {
                    out.put(attr::XATTR_NAME, b"user.x");
                    out.put(attr::XATTR_DATA, &value);
                });
            }
            13 | 14 => self.clone_block(&path, id),
            _ => {
                let start = self.random.u64(..3 * BLOCK);
                let len = self.random.usize(1..6000);
                let data = vec![self.random.u8(..); len];
                self.on(cmd::WRITE, &path, |out| {
                    out.put_u64(attr::FILE_OFFSET, start).put_data(&data);
                });
                self.sizes[id] = self.sizes[id].max(start + len as u64);
            }
        }
    }

    fn rename_file(&mut self, path: &str) {
        let mut to = self.fresh();
        if self.random.bool() {
            to = self.any(true).unwrap_or(to);
        }
        // A rename to another link of the file changes nothing.
        if self.paths.get(&to) == self.paths.get(path) {
            return;
        }
        self.on(cmd::RENAME, path, |out| {
            out.put(attr::PATH_TO, to.as_bytes());
        });
        let id = self.paths.remove(path).unwrap();
        self.paths.insert(to, id);
    }

    fn rename_directory(&mut self) {
        let Some(dir) = self.any(false) else { return };
        let (to, below) = (self.fresh(), format!("{dir}/"));
        if to.starts_with(&below) {
            return;
        }
        self.on(cmd::RENAME, &dir, |out| {
            out.put(attr::PATH_TO, to.as_bytes());
        });
        let paths = std::mem::take(&mut self.paths);
        let moved = paths.into_iter().map(|(path, id)| {
            let rest = (path == dir).then_some("");
            let rest =
                rest.or_else(|| path.strip_prefix(&dir).filter(|_| path.starts_with(&below)));
            (rest.map_or(path.clone(), |rest| format!("{to}{rest}")), id)
        });
        self.paths = moved.collect();
    }

    /// Clones a whole block, so that every file system can share it.
    fn clone_block(&mut self, path: &str, id: usize) {
        let Some(source) = self.any(true) else { return };
        let from = self.paths[&source].unwrap();
        if from == id || self.sizes[from] < BLOCK {
            return;
        }
        let at = self.random.u64(..self.sizes[from] / BLOCK) * BLOCK;
        let to = self.random.u64(..3) * BLOCK;
        self.on(cmd::CLONE, path, |out| {
            out.put_u64(attr::FILE_OFFSET, to)
                .put_u64(attr::CLONE_LEN, BLOCK)
                .put(attr::CLONE_UUID, &UUID)
                .put_u64(attr::CLONE_CTRANSID, 9)
                .put(attr::CLONE_PATH, source.as_bytes())
                .put_u64(attr::CLONE_OFFSET, at);
        });
        self.sizes[id] = self.sizes[id].max(to + BLOCK);
    }
}
