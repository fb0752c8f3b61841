//! [`Operand`]: the text by which a command names an image.
//!
//! | operand | image |
//! |---|---|
//! | `FILE` | a file or a block device; the disk inside if it is a qcow2 file |
//! | `FILE#N` | its partition number `N` |
//! | `FILE#LABEL` | its GPT partition of that name |
//! | `FILE#offset=BYTES,length=BYTES` | a range of it; without `length`, all from the offset on |
//! | `nbd://HOST[:PORT]/EXPORT` | an export of an NBD server; `#` and a part follow as for a file |
//! | `nbd+unix:///EXPORT?socket=PATH` | the same, on a Unix socket |
//!
//! `format=raw` or `format=qcow2` at the end, after `#` or a comma, is the format of the file,
//! which is detected otherwise. `backing=yes` opens the backing files of a qcow2 file.
//!
//! A file whose name contains a `#` is found under that name: an operand that exists as it is names
//! that file; else the first `#` after the name of an existing file ends the name.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::host;
use crate::partition::{PartitionError, PartitionTable};
use crate::{
    BackingFile, Device, DiskFormat, Error, FileDevice, NbdDevice, NbdOptions, NbdUri, OpenOptions,
    PartDevice, Qcow2Device, backing_disk, is_qcow2, open_backing,
};

/// Errors of an operand that names no image.
#[derive(Debug, thiserror::Error)]
pub enum OperandError {
    /// The file or device.
    #[error("{0}")]
    Device(#[from] Error),
    /// The partition.
    #[error("{0}")]
    Partition(#[from] PartitionError),
    /// The range after `#` has not the form of one.
    #[error("{operand}: {text:?} is no range: offset=BYTES,length=BYTES")]
    Range {
        /// The operand.
        operand: String,
        /// The part that cannot be read.
        text: String,
    },
    /// The range is not on the device.
    #[error("{operand}: the range from {offset} is not on the device of {size} bytes")]
    Outside {
        /// The operand.
        operand: String,
        /// First byte.
        offset: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// A part is asked for twice.
    #[error("{operand}: names a part of the image already")]
    TwoRanges {
        /// The operand.
        operand: String,
    },
}

/// Which part of a file or device is the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// The whole file.
    Whole,
    /// A partition, by number or label.
    Partition(String),
    /// A range.
    Bytes {
        /// First byte.
        offset: u64,
        /// Bytes; all that follow if not given.
        length: Option<u64>,
    },
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => Ok(()),
            Self::Partition(wanted) => write!(f, "#{}", wanted.escape_debug()),
            Self::Bytes { offset, length } => {
                write!(f, "#offset={offset}")?;
                length.map_or(Ok(()), |length| write!(f, ",length={length}"))
            }
        }
    }
}

/// An image as the command line names it: a file or device, or a part of it. See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operand {
    file: PathBuf,
    part: Part,
    how: How,
}

/// The words of an operand about its file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct How {
    /// The format; detected if not given.
    format: Option<DiskFormat>,
    /// Opens the backing files.
    backing: bool,
}

/// The opened file, device or export of an operand, with the backing files of a qcow2 file. Nothing
/// was read from it, unless it has backing files.
#[derive(Debug)]
pub struct OperandFiles {
    whole: Arc<dyn Device>,
    backing: Vec<BackingFile>,
}

impl Operand {
    /// Parses an operand. An operand without a part, or without an existing file, is a file name.
    ///
    /// # Errors
    /// [`OperandError::Range`].
    pub fn parse(operand: &Path) -> Result<Self, OperandError> {
        match split(operand) {
            None => Ok(Self {
                file: operand.to_owned(),
                part: Part::Whole,
                how: How::default(),
            }),
            Some((file, part)) => {
                let (part, how) = split_how(part);
                Ok(Self {
                    file: file.to_owned(),
                    part: match part {
                        Some(part) => parse_part(operand, part)?,
                        None => Part::Whole,
                    },
                    how,
                })
            }
        }
    }

    /// The file or block device, or the address of an export.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The part that is the image.
    #[must_use]
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// Opens the image. The lock is one on the whole file or device; an export has none.
    ///
    /// # Errors
    /// [`OperandError`].
    pub fn open(&self, options: OpenOptions) -> Result<Arc<dyn Device>, OperandError> {
        self.part_of(self.open_whole(options)?)
    }

    /// Opens the whole file, device or export, and the backing files if the operand asks for them.
    /// Otherwise nothing is read.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open_whole(&self, options: OpenOptions) -> Result<OperandFiles, Error> {
        let whole = self.open_file(options)?;
        let backing = if self.how.backing && self.is_in_qcow2(&*whole)? {
            open_backing(&self.file, &*whole)?
        } else {
            Vec::new()
        };
        Ok(OperandFiles { whole, backing })
    }

    fn open_file(&self, options: OpenOptions) -> Result<Arc<dyn Device>, Error> {
        if !is_export(&self.file) {
            return Ok(Arc::new(FileDevice::open(&self.file, options)?));
        }
        let uri = self.file.to_string_lossy();
        let options = NbdOptions {
            read_only: options.read_only,
            ..NbdOptions::default()
        };
        Ok(Arc::new(NbdDevice::open(&uri, options)?))
    }

    /// Whether it is, or is a part of, an export of an NBD server.
    #[must_use]
    pub fn is_export(&self) -> bool {
        is_export(&self.file)
    }

    /// The wanted part of the opened file or device.
    ///
    /// # Errors
    /// [`OperandError`].
    pub fn part_of(&self, files: OperandFiles) -> Result<Arc<dyn Device>, OperandError> {
        let whole = if self.is_in_qcow2(&*files.whole)? {
            let below = backing_disk(files.backing)?;
            Arc::new(Qcow2Device::open(files.whole, below)?)
        } else {
            files.whole
        };
        let device = whole.name().to_owned();
        let (start, len) = match &self.part {
            Part::Whole => return Ok(whole),
            Part::Partition(wanted) => {
                let table = PartitionTable::read(&*whole)?;
                let part = table.find(&device, wanted)?;
                (part.start, part.len)
            }
            Part::Bytes { offset, length } => {
                let size = whole.size();
                let left = size.checked_sub(*offset).filter(|left| *left > 0);
                let left = left.ok_or(OperandError::Outside {
                    operand: device.clone(),
                    offset: *offset,
                    size,
                })?;
                (*offset, length.unwrap_or(left))
            }
        };
        let name = format!("{device}{}", self.part);
        Ok(Arc::new(PartDevice::new(whole, name, start, len)?))
    }

    /// Whether the disk is in a qcow2 file. An export counts as raw unless the operand has a
    /// format.
    fn is_in_qcow2(&self, whole: &dyn Device) -> Result<bool, Error> {
        match self.how.format {
            Some(format) => Ok(format == DiskFormat::Qcow2),
            None => Ok(!self.is_export() && is_qcow2(whole)?),
        }
    }

    /// The operand with the real path of its file or of its socket, which a daemon can use from any
    /// directory.
    ///
    /// # Errors
    /// The file does not exist, or its path cannot be followed.
    pub fn canonical(operand: &Path) -> io::Result<PathBuf> {
        let real = |file: &Path| match file.to_str().filter(|_| is_export(file)) {
            Some(uri) => NbdUri::absolute(uri).map(PathBuf::from),
            None if is_export(file) => Ok(file.to_owned()),
            None => file.canonicalize(),
        };
        let Some((file, part)) = split(operand) else {
            return real(operand);
        };
        let mut text = real(file)?.into_os_string();
        text.push("#");
        text.push(part);
        Ok(text.into())
    }

    /// The file or device that an operand names, or names a part of.
    #[must_use]
    pub fn file_of(operand: &Path) -> PathBuf {
        split(operand).map_or(operand, |(file, _)| file).to_owned()
    }

    /// Whether the file or device of an operand exists, and is no directory. An export does.
    #[must_use]
    pub fn exists(operand: &Path) -> bool {
        Self::is_fixed(operand) || is_image(operand)
    }

    /// Whether an operand names an image that cannot be created or resized: a part of an existing
    /// file or device, or an export.
    #[must_use]
    pub fn is_fixed(operand: &Path) -> bool {
        is_export(operand) || split(operand).is_some()
    }

    /// The first byte of an argument `IMAGE:PATH` at which a colon can end the name of the image.
    /// The colons before it belong to the address of an export.
    #[must_use]
    pub fn least_end(argument: &[u8]) -> usize {
        let start = argument.windows(3).position(|three| three == b"://");
        let Some(start) = start.filter(|_| NbdUri::is_one(argument)) else {
            return 0;
        };
        let authority = &argument[start + 3..];
        let end = authority.iter().position(|byte| *byte == b'/');
        start + 3 + end.unwrap_or(authority.len())
    }

    /// The operand for a range of the image that `operand` names.
    ///
    /// # Errors
    /// [`OperandError::TwoRanges`]: it names a part already.
    pub fn with_range(
        operand: &Path,
        offset: Option<u64>,
        length: Option<u64>,
    ) -> Result<PathBuf, OperandError> {
        if offset.is_none() && length.is_none() {
            return Ok(operand.to_owned());
        }
        let offset = offset.unwrap_or(0);
        Self::with_part(operand, &Part::Bytes { offset, length })
    }

    /// The operand for a partition of the disk that `operand` names.
    ///
    /// # Errors
    /// [`OperandError::TwoRanges`]: it names a part already.
    pub fn with_partition(operand: &Path, wanted: &str) -> Result<PathBuf, OperandError> {
        Self::with_text(operand, &format!("#{wanted}"))
    }

    /// The operand for a file of this format, with the backing files that it names.
    #[must_use]
    pub fn with_format(operand: &Path, format: Option<DiskFormat>, backing: bool) -> PathBuf {
        let mut text = operand.as_os_str().to_owned();
        let format = format.map(|format| format!("format={}", format.name()));
        let backing = backing.then(|| "backing=yes".to_owned());
        let mut mark = if split(operand).is_some() { "," } else { "#" };
        for word in [format, backing].into_iter().flatten() {
            text.push(mark);
            text.push(word);
            mark = ",";
        }
        text.into()
    }

    fn with_part(operand: &Path, part: &Part) -> Result<PathBuf, OperandError> {
        Self::with_text(operand, &part.to_string())
    }

    /// The operand with a part, which begins with `#`. If the operand has a format, that follows
    /// the part.
    fn with_text(operand: &Path, part: &str) -> Result<PathBuf, OperandError> {
        let (file, how) = match split(operand) {
            None => (operand, None),
            Some((file, text)) => match split_how(text) {
                (None, _) => (file, Some(text)),
                _ => {
                    return Err(OperandError::TwoRanges {
                        operand: operand.display().to_string(),
                    });
                }
            },
        };
        let mut text = file.as_os_str().to_owned();
        text.push(part);
        if let Some(how) = how {
            text.push(",");
            text.push(how);
        }
        Ok(text.into())
    }
}

fn is_export(operand: &Path) -> bool {
    NbdUri::is_one(operand.as_os_str().as_encoded_bytes())
}

/// A directory is no image; anything else that exists may be one.
fn is_image(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| !meta.is_dir())
}

/// The file, and the text after its `#`. `None` for an operand that exists as it is, and for one
/// without an existing file.
fn split(operand: &Path) -> Option<(&Path, &OsStr)> {
    let bytes = operand.as_os_str().as_encoded_bytes();
    if is_export(operand) {
        let at = bytes.iter().position(|byte| *byte == b'#')?;
        let (uri, part) = (&bytes[..at], &bytes[at + 1..]);
        return Some((Path::new(host::os_str(uri)), host::os_str(part)));
    }
    if !bytes.contains(&b'#') || operand.symlink_metadata().is_ok() {
        return None;
    }
    let marks = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'#');
    marks
        .map(|(at, _)| (&bytes[..at], &bytes[at + 1..]))
        .map(|(file, part)| (Path::new(host::os_str(file)), host::os_str(part)))
        .find(|(file, _)| is_image(file))
}

/// Splits the text after a `#` into the part, if there is one, and the words about the file at the
/// end. If two words contradict each other, the first counts.
fn split_how(text: &OsStr) -> (Option<&OsStr>, How) {
    let mut part = text.as_encoded_bytes();
    let mut how = How::default();
    loop {
        let comma = part.iter().rposition(|byte| *byte == b',');
        match part.get(comma.map_or(0, |at| at + 1)..).unwrap_or_default() {
            b"format=raw" => how.format = Some(DiskFormat::Raw),
            b"format=qcow2" => how.format = Some(DiskFormat::Qcow2),
            b"backing=yes" => how.backing = true,
            _ => return (Some(host::os_str(part)), how),
        }
        match comma {
            Some(at) => part = part.get(..at).unwrap_or_default(),
            None => return (None, how),
        }
    }
}

fn parse_part(operand: &Path, part: &OsStr) -> Result<Part, OperandError> {
    let text = part.to_string_lossy();
    if !text.starts_with("offset=") && !text.starts_with("length=") {
        return Ok(Part::Partition(text.into_owned()));
    }
    let (mut offset, mut length) = (None, None);
    for word in text.split(',') {
        let wrong = || OperandError::Range {
            operand: operand.display().to_string(),
            text: word.to_owned(),
        };
        let (place, number) = match word.split_once('=') {
            Some(("offset", number)) => (&mut offset, number),
            Some(("length", number)) => (&mut length, number),
            _ => return Err(wrong()),
        };
        let number = number.parse().map_err(|_| wrong())?;
        if place.replace(number).is_some() {
            return Err(wrong());
        }
    }
    Ok(Part::Bytes {
        offset: offset.unwrap_or(0),
        length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Disk {
        dir: tempfile::TempDir,
    }

    impl Disk {
        fn with(names: &[&str]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            for name in names {
                std::fs::write(dir.path().join(name), vec![0; 8192]).unwrap();
            }
            Self { dir }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn parse(&self, name: &str) -> (PathBuf, Part) {
            let operand = Operand::parse(&self.at(name)).unwrap();
            (operand.file().to_owned(), operand.part().clone())
        }
    }

    #[test]
    fn a_part_follows_the_name_of_an_existing_file() {
        let disk = Disk::with(&["a.img", "b#2", "b"]);
        let part = |text: &str| Part::Partition(text.to_owned());
        assert_eq!(disk.parse("a.img"), (disk.at("a.img"), Part::Whole));
        assert_eq!(disk.parse("a.img#2"), (disk.at("a.img"), part("2")));
        assert_eq!(disk.parse("a.img#my #1"), (disk.at("a.img"), part("my #1")));
        // The file with that name comes first.
        assert_eq!(disk.parse("b#2"), (disk.at("b#2"), Part::Whole));
        assert_eq!(disk.parse("b#3"), (disk.at("b"), part("3")));
        assert_eq!(disk.parse("b#2#1"), (disk.at("b"), part("2#1")));
        // Without a file there is no part.
        assert_eq!(disk.parse("none#1"), (disk.at("none#1"), Part::Whole));
        assert!(!Operand::exists(&disk.at("none#1")));
        assert!(Operand::exists(&disk.at("a.img#1")));
        assert!(!Operand::exists(disk.dir.path()));
    }

    #[test]
    fn addresses_of_exports_have_parts_too() {
        let unix = "nbd+unix:///x?socket=/run/s";
        for (text, file, part) in [
            ("nbd://box/x", "nbd://box/x", Part::Whole),
            (
                "nbd://box:7/x#2",
                "nbd://box:7/x",
                Part::Partition("2".to_owned()),
            ),
            (unix, unix, Part::Whole),
        ] {
            let operand = Operand::parse(Path::new(text)).unwrap();
            assert_eq!((operand.file(), operand.part()), (Path::new(file), &part));
            assert!(Operand::exists(Path::new(text)) && Operand::is_fixed(Path::new(text)));
            assert_eq!(
                Operand::canonical(Path::new(text)).unwrap(),
                Path::new(text)
            );
        }
        let part = Operand::canonical(Path::new("nbd+unix:///x?socket=s#2")).unwrap();
        let socket = std::env::current_dir().unwrap().join("s");
        let text = part.to_str().unwrap();
        assert!(text.ends_with(&format!("{}#2", socket.display())), "{text}");
        let end = |text: &str| Operand::least_end(text.as_bytes());
        assert_eq!(end("nbd://box:7/x:etc"), "nbd://box:7".len());
        assert_eq!(end("nbd+unix:///x?socket=/s:etc"), "nbd+unix://".len());
        assert_eq!((end("file:etc"), end("nbd://box")), (0, "nbd://box".len()));
    }

    #[test]
    fn ranges_are_read_and_written() {
        let disk = Disk::with(&["a"]);
        let with = |offset, length| Operand::with_range(&disk.at("a"), offset, length).unwrap();
        assert_eq!(with(None, None), disk.at("a"));
        assert_eq!(with(Some(7), None), disk.at("a#offset=7"));
        assert_eq!(with(None, Some(9)), disk.at("a#offset=0,length=9"));
        let bytes = |offset, length| Part::Bytes { offset, length };
        assert_eq!(disk.parse("a#offset=7").1, bytes(7, None));
        assert_eq!(disk.parse("a#length=9,offset=7").1, bytes(7, Some(9)));
        let raw = |name: &str| Operand::with_format(&disk.at(name), Some(DiskFormat::Raw), true);
        assert_eq!(raw("a"), disk.at("a#format=raw,backing=yes"));
        assert_eq!(raw("a#1"), disk.at("a#1,format=raw,backing=yes"));
        let both = Operand::with_range(&raw("a"), Some(7), None).unwrap();
        assert_eq!(both, disk.at("a#offset=7,format=raw,backing=yes"));
        let parsed = Operand::parse(&both).unwrap();
        assert_eq!(parsed.part(), &bytes(7, None));
        let how = How {
            format: Some(DiskFormat::Raw),
            backing: true,
        };
        assert_eq!(parsed.how, how);
        assert_eq!(disk.parse("a#format=qcow2").1, Part::Whole);
        assert_eq!(
            disk.parse("a#format=vmdk").1,
            Part::Partition("format=vmdk".to_owned())
        );
        let twice = Operand::with_range(&disk.at("a#1"), Some(0), None);
        assert!(matches!(twice, Err(OperandError::TwoRanges { .. })));
        for wrong in [
            "offset=",
            "offset=-1",
            "offset=1,offset=2",
            "offset=1;length=2",
        ] {
            let operand = disk.at(&format!("a#{wrong}"));
            let refused = Operand::parse(&operand);
            assert!(
                matches!(refused, Err(OperandError::Range { .. })),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_range_outside_of_the_device_is_refused() {
        let disk = Disk::with(&["a"]);
        let open = |text: &str| {
            let operand = Operand::parse(&disk.at(text)).unwrap();
            operand
                .open(OpenOptions::default())
                .map(|device| device.size())
        };
        assert_eq!(open("a#offset=4096").unwrap(), 4096);
        assert_eq!(open("a#offset=512,length=1024").unwrap(), 1024);
        assert!(matches!(
            open("a#offset=8192"),
            Err(OperandError::Outside { .. })
        ));
        assert!(open("a#offset=1,length=8192").is_err());
        let none = open("a#1").unwrap_err().to_string();
        assert!(
            none.ends_with("a: no partition table (neither GPT nor MBR)"),
            "{none}"
        );
    }
}
