//! The send stream: commands that turn a parent snapshot, or an empty subvolume, into a snapshot.
//!
//! A stream is a header, then commands. A command is a header with its length, number and checksum,
//! then attributes: number, length, value. In version 2 the attribute with data is the last of its
//! command and has no length. Facts: the btrfs documentation, "Send stream format".
//!
//! [`Writer`] composes commands, [`parse`] reads one. Nothing here does I/O.

/// First bytes of a stream; a version of 4 bytes follows.
pub const MAGIC: &[u8; 13] = b"btrfs-stream\0";

/// Bytes of the stream's header.
pub const HEADER: usize = MAGIC.len() + 4;

/// Bytes of a command's header.
pub const COMMAND_HEADER: usize = 10;

/// Newest version that is read and written.
pub const VERSION: u32 = 2;

/// Most bytes of a command in version 1.
pub const COMMAND_MAX_V1: usize = 64 << 10;

/// Most bytes of a command that a reader accepts: the largest extent with its attributes.
pub const COMMAND_MAX: usize = (128 << 10) + COMMAND_MAX_V1;

/// Bytes of data of one write in version 1.
pub const WRITE_V1: usize = 48 << 10;

/// Bytes of data of one write in version 2.
pub const WRITE_V2: usize = 128 << 10;

macro_rules! numbers {
    ($(#[$doc:meta])* $module:ident $(, $name:ident = $value:literal)* $(,)?) => {
        $(#[$doc])*
        pub mod $module {
            $(#[allow(missing_docs)] pub const $name: u16 = $value;)*

            /// The name of a number.
            #[must_use]
            pub const fn name(number: u16) -> Option<&'static str> {
                match number { $($value => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

numbers!(
    /// Numbers of commands.
    command,
    SUBVOL = 1, SNAPSHOT = 2, MKFILE = 3, MKDIR = 4, MKNOD = 5, MKFIFO = 6, MKSOCK = 7,
    SYMLINK = 8, RENAME = 9, LINK = 10, UNLINK = 11, RMDIR = 12, SET_XATTR = 13,
    REMOVE_XATTR = 14, WRITE = 15, CLONE = 16, TRUNCATE = 17, CHMOD = 18, CHOWN = 19, UTIMES = 20,
    END = 21, UPDATE_EXTENT = 22, FALLOCATE = 23, FILEATTR = 24, ENCODED_WRITE = 25,
);

numbers!(
    /// Numbers of attributes.
    attribute,
    UUID = 1, CTRANSID = 2, INO = 3, SIZE = 4, MODE = 5, UID = 6, GID = 7, RDEV = 8, CTIME = 9,
    MTIME = 10, ATIME = 11, OTIME = 12, XATTR_NAME = 13, XATTR_DATA = 14, PATH = 15, PATH_TO = 16,
    PATH_LINK = 17, FILE_OFFSET = 18, DATA = 19, CLONE_UUID = 20, CLONE_CTRANSID = 21,
    CLONE_PATH = 22, CLONE_OFFSET = 23, CLONE_LEN = 24, FALLOCATE_MODE = 25, FILEATTR = 26,
    UNENCODED_FILE_LEN = 27, UNENCODED_LEN = 28, UNENCODED_OFFSET = 29, COMPRESSION = 30,
    ENCRYPTION = 31,
);

/// Compression of the data of an encoded write.
pub mod encoding {
    /// Not compressed.
    pub const NONE: u32 = 0;
    /// zlib.
    pub const ZLIB: u32 = 1;
    /// zstd.
    pub const ZSTD: u32 = 2;
    /// LZO in sectors of 4 KiB; the following numbers double the sector.
    pub const LZO_4K: u32 = 3;
}

/// The largest number of an attribute.
const ATTRIBUTES: usize = 32;

/// Reasons why bytes are no stream, or no command of a stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The first bytes are no header of a stream.
    #[error("not a send stream")]
    Magic,
    /// A version that is not known.
    #[error("version {0} of the stream is not known")]
    Version(u32),
    /// A command is longer than any valid one.
    #[error("a command of {0} bytes is longer than any")]
    Long(u32),
    /// The checksum of a command is wrong.
    #[error("the checksum of a command is {found:#010x} instead of {expected:#010x}")]
    Checksum {
        /// The checksum in its header.
        expected: u32,
        /// The checksum of its bytes.
        found: u32,
    },
    /// An unknown command.
    #[error("command {0} is not known")]
    Command(u16),
    /// An attribute does not fit into its command, is given twice, or has a wrong length.
    #[error("{}: attribute {}: {why}", command_name(*command), attribute_name(*attribute))]
    Attribute {
        /// The command.
        command: u16,
        /// The attribute.
        attribute: u16,
        /// The defect.
        why: &'static str,
    },
}

/// The name of a command for people.
#[must_use]
pub fn command_name(number: u16) -> String {
    match command::name(number) {
        Some(name) => name.to_ascii_lowercase(),
        None => format!("command {number}"),
    }
}

fn attribute_name(number: u16) -> String {
    match attribute::name(number) {
        Some(name) => name.to_ascii_lowercase(),
        None => number.to_string(),
    }
}

/// The stream's header.
#[must_use]
pub fn header(version: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    let (magic, tail) = bytes.split_at_mut(MAGIC.len());
    magic.copy_from_slice(MAGIC);
    tail.copy_from_slice(&version.to_le_bytes());
    bytes
}

/// The version in a stream's header.
///
/// # Errors
/// [`StreamError::Magic`], [`StreamError::Version`].
pub fn parse_header(bytes: &[u8; HEADER]) -> Result<u32, StreamError> {
    let tail = bytes.strip_prefix(MAGIC).ok_or(StreamError::Magic)?;
    let version = u32_of(tail).ok_or(StreamError::Magic)?;
    if (1..=VERSION).contains(&version) {
        Ok(version)
    } else {
        Err(StreamError::Version(version))
    }
}

/// Composes one command after another in a buffer.
#[derive(Debug)]
pub struct Writer {
    version: u32,
    bytes: Vec<u8>,
    cut: bool,
}

impl Writer {
    /// A writer for a version.
    #[must_use]
    pub fn new(version: u32) -> Self {
        Self {
            version,
            bytes: Vec::new(),
            cut: false,
        }
    }

    /// The stream's version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Begins a command.
    pub fn begin(&mut self, command: u16) -> &mut Self {
        self.cut = false;
        self.bytes.clear();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&command.to_le_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self
    }

    /// Whether no stream can have the command: a value is over 65535 bytes, or the whole command is
    /// too long for its version.
    #[must_use]
    pub fn is_too_long(&self) -> bool {
        let most = if self.version < 2 {
            COMMAND_MAX_V1
        } else {
            COMMAND_MAX
        };
        self.cut || self.bytes.len() > most
    }

    /// The path of the command, its first attribute of this kind.
    #[must_use]
    pub fn path(&self) -> Option<&[u8]> {
        let mut rest = self.bytes.get(COMMAND_HEADER..)?;
        loop {
            let (head, tail) = rest.split_first_chunk::<4>()?;
            let [a, b, c, d] = *head;
            let number = u16::from_le_bytes([a, b]);
            if number == attribute::DATA && self.version >= 2 {
                return None;
            }
            let (value, next) = tail.split_at_checked(u16::from_le_bytes([c, d]).into())?;
            if number == attribute::PATH {
                return Some(value);
            }
            rest = next;
        }
    }

    /// Adds an attribute. A value over 65535 bytes cannot be stored; see
    /// [`is_too_long`](Self::is_too_long).
    pub fn put(&mut self, attribute: u16, value: &[u8]) -> &mut Self {
        self.cut |= value.len() > u16::MAX.into();
        let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
        self.bytes.extend_from_slice(&attribute.to_le_bytes());
        self.bytes.extend_from_slice(&len.to_le_bytes());
        let value = value.get(..len.into()).unwrap_or_default();
        self.bytes.extend_from_slice(value);
        self
    }

    /// Adds a number of 8 bytes.
    pub fn put_u64(&mut self, attribute: u16, value: u64) -> &mut Self {
        self.put(attribute, &value.to_le_bytes())
    }

    /// Adds a number of 4 bytes.
    pub fn put_u32(&mut self, attribute: u16, value: u32) -> &mut Self {
        self.put(attribute, &value.to_le_bytes())
    }

    /// Adds a time.
    pub fn put_time(&mut self, attribute: u16, sec: i64, nsec: u32) -> &mut Self {
        let mut bytes = [0; 12];
        let (seconds, nanos) = bytes.split_at_mut(8);
        seconds.copy_from_slice(&sec.to_le_bytes());
        nanos.copy_from_slice(&nsec.to_le_bytes());
        self.put(attribute, &bytes)
    }

    /// Adds the data, as the last attribute.
    pub fn put_data(&mut self, data: &[u8]) -> &mut Self {
        if self.version < 2 {
            return self.put(attribute::DATA, data);
        }
        self.bytes.extend_from_slice(&attribute::DATA.to_le_bytes());
        self.bytes.extend_from_slice(data);
        self
    }

    /// Completes the command and returns its bytes.
    pub fn finish(&mut self) -> &[u8] {
        let len = self.bytes.len().saturating_sub(COMMAND_HEADER);
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if let Some(place) = self.bytes.get_mut(..4) {
            place.copy_from_slice(&len.to_le_bytes());
        }
        let sum = checksum(&self.bytes);
        if let Some(place) = self.bytes.get_mut(6..COMMAND_HEADER) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        &self.bytes
    }
}

/// CRC-32C with initial value and final inversion zero.
fn checksum(bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(u32::MAX, bytes)
}

/// The header of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandHeader {
    /// Bytes of its attributes.
    pub len: usize,
    /// Its number.
    pub command: u16,
    checksum: u32,
}

impl CommandHeader {
    /// Parses the header of a command.
    ///
    /// # Errors
    /// [`StreamError::Long`], [`StreamError::Command`].
    pub fn parse(bytes: &[u8; COMMAND_HEADER]) -> Result<Self, StreamError> {
        let [a, b, c, d, e, f, g, h, i, j] = *bytes;
        let len = u32::from_le_bytes([a, b, c, d]);
        let command = u16::from_le_bytes([e, f]);
        let fits = usize::try_from(len).ok().filter(|len| *len <= COMMAND_MAX);
        if command::name(command).is_none() {
            return Err(StreamError::Command(command));
        }
        Ok(Self {
            len: fits.ok_or(StreamError::Long(len))?,
            command,
            checksum: u32::from_le_bytes([g, h, i, j]),
        })
    }

    fn bytes_without_checksum(&self) -> [u8; COMMAND_HEADER] {
        let [a, b, c, d] = u32::try_from(self.len).unwrap_or(u32::MAX).to_le_bytes();
        let [e, f] = self.command.to_le_bytes();
        [a, b, c, d, e, f, 0, 0, 0, 0]
    }
}

/// A parsed command.
#[derive(Debug, Clone)]
pub struct Command<'a> {
    /// Its number.
    pub number: u16,
    values: [Option<&'a [u8]>; ATTRIBUTES],
}

/// Verifies the checksum of a command.
///
/// # Errors
/// [`StreamError::Checksum`].
pub fn verify(header: &CommandHeader, attributes: &[u8]) -> Result<(), StreamError> {
    let sum = crc32c::crc32c_append(u32::MAX, &header.bytes_without_checksum());
    let found = !crc32c::crc32c_append(sum, attributes);
    if found == header.checksum {
        return Ok(());
    }
    Err(StreamError::Checksum {
        expected: header.checksum,
        found,
    })
}

/// Parses the attributes of a command, whose checksum is [verified](verify).
///
/// # Errors
/// [`StreamError::Attribute`].
pub fn parse<'a>(
    version: u32,
    header: &CommandHeader,
    attributes: &'a [u8],
) -> Result<Command<'a>, StreamError> {
    let mut values = [None; ATTRIBUTES];
    let mut rest = attributes;
    while !rest.is_empty() {
        let (number, tail) = split_u16(rest).ok_or(bad(header.command, 0, "cut short"))?;
        let error = |why| bad(header.command, number, why);
        let value = if number == attribute::DATA && version >= 2 {
            rest = &[];
            tail
        } else {
            let (len, tail) = split_u16(tail).ok_or(error("cut short"))?;
            let (value, tail) = tail
                .split_at_checked(len.into())
                .ok_or(error("longer than its command"))?;
            rest = tail;
            value
        };
        // An attribute of a later version changes nothing that is known here.
        let Some(place) = values.get_mut(usize::from(number)) else {
            continue;
        };
        if place.replace(value).is_some() {
            return Err(error("given twice"));
        }
    }
    Ok(Command {
        number: header.command,
        values,
    })
}

fn bad(command: u16, attribute: u16, why: &'static str) -> StreamError {
    StreamError::Attribute {
        command,
        attribute,
        why,
    }
}

fn split_u16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (head, tail) = bytes.split_first_chunk::<2>()?;
    Some((u16::from_le_bytes(*head), tail))
}

fn u32_of(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

impl<'a> Command<'a> {
    /// The value of an attribute, if the command has it.
    #[must_use]
    pub fn find(&self, attribute: u16) -> Option<&'a [u8]> {
        self.values.get(usize::from(attribute)).copied().flatten()
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// [`StreamError::Attribute`]: the command has none.
    pub fn get(&self, attribute: u16) -> Result<&'a [u8], StreamError> {
        self.find(attribute)
            .ok_or(bad(self.number, attribute, "missing"))
    }

    fn array<const N: usize>(&self, attribute: u16) -> Result<[u8; N], StreamError> {
        let value = self.get(attribute)?.try_into();
        value.map_err(|_| bad(self.number, attribute, "of a wrong length"))
    }

    /// A number of 8 bytes.
    ///
    /// # Errors
    /// [`StreamError::Attribute`].
    pub fn u64(&self, attribute: u16) -> Result<u64, StreamError> {
        Ok(u64::from_le_bytes(self.array(attribute)?))
    }

    /// A number of 4 bytes; one of 8 bytes if it fits, as old senders wrote some.
    ///
    /// # Errors
    /// [`StreamError::Attribute`].
    pub fn u32(&self, attribute: u16) -> Result<u32, StreamError> {
        if self.get(attribute)?.len() == 8 {
            let value = u32::try_from(self.u64(attribute)?);
            return value.map_err(|_| bad(self.number, attribute, "too large"));
        }
        Ok(u32::from_le_bytes(self.array(attribute)?))
    }

    /// A UUID.
    ///
    /// # Errors
    /// [`StreamError::Attribute`].
    pub fn uuid(&self, attribute: u16) -> Result<[u8; 16], StreamError> {
        self.array(attribute)
    }

    /// A time: seconds and nanoseconds.
    ///
    /// # Errors
    /// [`StreamError::Attribute`], also for more nanoseconds than a second has.
    pub fn time(&self, attribute: u16) -> Result<(i64, u32), StreamError> {
        let bytes: [u8; 12] = self.array(attribute)?;
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        let sec = i64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let nsec = u32::from_le_bytes([i, j, k, l]);
        if nsec >= 1_000_000_000 {
            return Err(bad(self.number, attribute, "not a time"));
        }
        Ok((sec, nsec))
    }

    /// A path below the top of the subvolume: its names. None is empty, `.`, `..` or too long, so
    /// the path never leads out of the subvolume.
    ///
    /// # Errors
    /// [`StreamError::Attribute`].
    pub fn path(&self, attribute: u16) -> Result<&'a [u8], StreamError> {
        let path = self.get(attribute)?;
        let wrong = |name: &[u8]| {
            name.is_empty()
                || name == b"."
                || name == b".."
                || name.len() > crate::NAME_MAX
                || name.contains(&0)
        };
        if !path.is_empty() && path.split(|byte| *byte == b'/').any(wrong) {
            return Err(bad(self.number, attribute, "not a path in a subvolume"));
        }
        Ok(path)
    }

    /// All attributes with their values, by number.
    pub fn attributes(&self) -> impl Iterator<Item = (u16, &'a [u8])> + '_ {
        let numbered = (0u16..).zip(&self.values);
        numbered.filter_map(|(number, value)| Some((number, (*value)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(version: u32, bytes: &[u8]) -> Result<Command<'_>, StreamError> {
        let (head, rest) = bytes.split_first_chunk().unwrap();
        let head = CommandHeader::parse(head)?;
        assert_eq!(head.len, rest.len());
        verify(&head, rest)?;
        parse(version, &head, rest)
    }

    #[test]
    fn the_checksum_is_the_one_of_known_streams() {
        // The last command of every stream.
        let end = [0, 0, 0, 0, 21, 0, 0x50, 0x6c, 0xc9, 0x9d];
        let found = Writer::new(1).begin(command::END).finish().to_vec();
        assert_eq!(found, end);
    }

    #[test]
    fn values_and_commands_that_are_too_long_are_known() {
        for (version, value, data, too_long) in [
            (1, 60_000, 0, false),
            (1, 65_536, 0, true),
            (2, 65_535, 0, false),
            (2, 65_536, 0, true),
            (1, 60_000, 6000, true),
            (2, 60_000, 128 << 10, false),
            (2, 60_000, 192 << 10, true),
        ] {
            let mut writer = Writer::new(version);
            writer.begin(command::SET_XATTR).put_u64(attribute::SIZE, 1);
            writer.put(attribute::PATH, b"dir/file");
            writer.put(attribute::XATTR_DATA, &vec![1; value]);
            writer.put_data(&vec![2; data]);
            assert_eq!(writer.is_too_long(), too_long, "{version} {value} {data}");
            assert_eq!(writer.path(), Some(&b"dir/file"[..]));
            writer.begin(command::END);
            assert!(!writer.is_too_long());
            assert_eq!(writer.path(), None);
        }
    }

    #[test]
    fn commands_round_trip_in_both_versions() {
        for version in [1, 2] {
            let mut writer = Writer::new(version);
            let bytes = writer
                .begin(command::WRITE)
                .put(attribute::PATH, b"dir/file")
                .put_u64(attribute::FILE_OFFSET, 4096)
                .put_data(b"content")
                .finish();
            let found = read(version, bytes).unwrap();
            assert_eq!(found.number, command::WRITE);
            assert_eq!(found.path(attribute::PATH), Ok(&b"dir/file"[..]));
            assert_eq!(found.u64(attribute::FILE_OFFSET), Ok(4096));
            assert_eq!(found.get(attribute::DATA), Ok(&b"content"[..]));
            assert!(found.get(attribute::UUID).is_err());
            for at in 0..bytes.len() {
                let mut wrong = bytes.to_vec();
                wrong[at] ^= 0x40;
                let (head, rest) = wrong.split_first_chunk().unwrap();
                let verified = CommandHeader::parse(head).and_then(|head| verify(&head, rest));
                assert!(verified.is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn paths_stay_in_the_subvolume() {
        let path = |path: &[u8]| {
            let mut writer = Writer::new(1);
            let bytes = writer.begin(command::MKDIR).put(attribute::PATH, path);
            let bytes = bytes.finish();
            read(1, bytes).unwrap().path(attribute::PATH).is_ok()
        };
        for good in [&b""[..], b"a", b"a/b", b"..a/b.."] {
            assert!(path(good), "{good:?}");
        }
        for bad in [&b"/a"[..], b"a/", b"..", b"a/../b", b"a//b", b".", b"a\0b"] {
            assert!(!path(bad), "{bad:?}");
        }
        assert!(!path(&[b'x'; 256]));
    }

    #[test]
    fn headers_have_a_known_version() {
        assert_eq!(parse_header(&header(1)), Ok(1));
        assert_eq!(parse_header(&header(2)), Ok(2));
        assert_eq!(parse_header(&header(3)), Err(StreamError::Version(3)));
        assert_eq!(parse_header(&[0; HEADER]), Err(StreamError::Magic));
    }
}
