//! The files of an image: in a directory or in an archive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use super::{OciError, Result};
use crate::archive::{
    ArchiveError, Entries, EntryKind, Section, TarReader, buffered, components, is_plain, plain,
};
use crate::shown;

/// The files of an image by name.
pub(super) enum Store {
    Directory(PathBuf),
    /// An archive that is not compressed, or the decompressed copy of one.
    Archive {
        file: File,
        members: HashMap<Vec<u8>, Member>,
    },
}

/// A file of an archive.
pub(super) enum Member {
    Content {
        at: u64,
        size: u64,
    },
    /// The same as the member of this name. `docker save` stores a layer once if two images share
    /// it.
    Alias(Vec<u8>),
}

impl Store {
    /// Opens a directory, or reads the headers of an archive.
    ///
    /// # Errors
    /// [`OciError::Open`], [`OciError::Archive`].
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |source| OciError::Open {
            path: path.to_owned(),
            source,
        };
        if std::fs::metadata(path).map_err(failed)?.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        let mut file = File::open(path).map_err(failed)?;
        let mut start = [0; 6];
        let count = file.read(&mut start).map_err(failed)?;
        file.rewind().map_err(failed)?;
        let of = |source| OciError::Archive {
            path: path.to_owned(),
            source: Box::new(source),
        };
        if !is_plain(start.get(..count).unwrap_or_default()) {
            let mut copy = tempfile::tempfile().map_err(failed)?;
            let mut reader = plain(file).map_err(of)?;
            io::copy(&mut reader, &mut copy).map_err(failed)?;
            drop(reader);
            copy.rewind().map_err(failed)?;
            file = copy;
        }
        let members = members(&file).map_err(of)?;
        Ok(Self::Archive { file, members })
    }

    /// Whether there is a file.
    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory(path) => path.join(name).is_file(),
            Self::Archive { members, .. } => members.contains_key(name.as_bytes()),
        }
    }

    /// Opens a file. Its name must be safe.
    ///
    /// # Errors
    /// [`OciError::Missing`], [`OciError::Read`].
    pub(super) fn open_blob(&self, name: &str) -> Result<Box<dyn Read + Send + '_>> {
        let missing = || OciError::Missing {
            blob: name.to_owned(),
        };
        match self {
            Self::Directory(path) => {
                let path = path.join(name);
                let failed = |source: io::Error| match source.kind() {
                    io::ErrorKind::NotFound => missing(),
                    _ => OciError::Read {
                        blob: name.to_owned(),
                        source,
                    },
                };
                // Opening a fifo would block.
                if !std::fs::metadata(&path).map_err(failed)?.is_file() {
                    return Err(missing());
                }
                Ok(Box::new(File::open(&path).map_err(failed)?))
            }
            Self::Archive { file, members } => {
                const ALIASES: usize = 8;
                let mut name = name.as_bytes().to_vec();
                for _ in 0..ALIASES {
                    match members.get(&name) {
                        Some(Member::Content { at, size }) => {
                            return Ok(Box::new(Section::new(file, *at, *size)));
                        }
                        Some(Member::Alias(other)) => name.clone_from(other),
                        None => break,
                    }
                }
                Err(missing())
            }
        }
    }
}

/// The files of an archive, and their ranges in it.
fn members(file: &File) -> std::result::Result<HashMap<Vec<u8>, Member>, ArchiveError> {
    let mut archive = TarReader::new(buffered(file));
    let mut members = HashMap::new();
    while let Some(entry) = archive.next()? {
        let name = components(&entry.path)?.join(&b'/');
        let member = match entry.kind {
            EntryKind::Regular => Member::Content {
                at: archive.position(),
                size: entry.size,
            },
            EntryKind::Link(target) => Member::Alias(components(&target)?.join(&b'/')),
            EntryKind::Symlink(target) => match beside(&name, &target) {
                Some(target) => Member::Alias(target),
                None => return Err(ArchiveError::Outside(crate::archive::path(&entry.path))),
            },
            _ => continue,
        };
        members.insert(name, member);
    }
    Ok(members)
}

/// The target of a symbolic link within the archive; `None` if it leads out of it.
fn beside(link: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let mut parts: Vec<&[u8]> = link.split(|byte| *byte == b'/').collect();
    parts.pop();
    if target.starts_with(b"/") {
        return None;
    }
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join(&b'/'))
}

/// Validates the name of a file that `blob` contains.
///
/// # Errors
/// [`OciError::Outside`].
pub(super) fn safe_name(name: &str, blob: &str) -> Result<String> {
    let outside = |_| OciError::Outside {
        blob: blob.to_owned(),
        text: shown::name(name.as_bytes()),
    };
    let parts = components(name.as_bytes()).map_err(outside)?;
    Ok(String::from_utf8_lossy(&parts.join(&b'/')).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_in_the_archive() {
        let of = |target: &str| beside(b"a/b", target.as_bytes());
        assert_eq!(of("../c/d").unwrap(), b"c/d");
        assert_eq!(of("./c").unwrap(), b"a/c");
        assert_eq!(of("../../c"), None);
        assert_eq!(of("/c"), None);
        assert_eq!(safe_name("./a//b", "manifest.json").unwrap(), "a/b");
        assert!(safe_name("../a", "manifest.json").is_err());
    }
}
