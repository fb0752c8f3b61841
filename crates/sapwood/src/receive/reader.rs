//! Reading a stream command by command.

use std::io::{self, Read};

use sapwood_btrfs_format::stream::{
    self, COMMAND_HEADER, Command, CommandHeader, HEADER, command as cmd,
};
use sapwood_vfs::SharedBytes;

use super::error::{ReceiveError, Result};
use crate::seal::SealError;

/// The bytes of the header of a command.
pub(super) type RawHeader = [u8; COMMAND_HEADER];

/// The commands of one or several streams that follow each other.
pub(super) struct Commands<R> {
    reader: R,
    version: Option<u32>,
    buffer: Vec<u8>,
    /// Whole commands that were read.
    pub(super) count: u64,
}

/// The error of a stream that cannot be read, or does not match its seal.
pub(super) fn failed(error: io::Error) -> ReceiveError {
    match error.downcast::<SealError>() {
        Ok(error) => ReceiveError::Seal(error),
        Err(error) => ReceiveError::Read(error),
    }
}

impl<R: Read> Commands<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader,
            version: None,
            buffer: Vec::new(),
            count: 0,
        }
    }

    /// Fills the buffer. Returns false at the end of the input, before the first byte.
    fn fill(&mut self, buf: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.reader.read(rest) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(self.cut()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(true)
    }

    fn cut(&self) -> ReceiveError {
        ReceiveError::Cut {
            commands: self.count,
        }
    }

    /// Reads the header of the next command; `None` at the end of the input after a whole stream.
    pub(super) fn header(&mut self) -> Result<Option<RawCommand>> {
        let version = match self.version {
            Some(version) => version,
            None => {
                let mut header = [0; HEADER];
                if !self.fill(&mut header)? {
                    return if self.count == 0 {
                        Err(self.cut())
                    } else {
                        Ok(None)
                    };
                }
                let version = stream::parse_header(&header)?;
                self.version = Some(version);
                version
            }
        };
        let mut raw = [0; COMMAND_HEADER];
        if !self.fill(&mut raw)? {
            return Err(self.cut());
        }
        let header = CommandHeader::parse(&raw)?;
        Ok(Some(RawCommand {
            version,
            raw,
            header,
        }))
    }

    /// Reads the attributes of a command into an empty buffer, and verifies the checksum.
    pub(super) fn attributes(&mut self, command: &RawCommand, into: &mut Vec<u8>) -> Result<()> {
        let header = &command.header;
        into.reserve(header.len);
        let mut attributes = self.reader.by_ref().take(header.len as u64);
        if attributes.read_to_end(into).map_err(failed)? < header.len {
            return Err(self.cut());
        }
        stream::verify(header, into)?;
        self.count += 1;
        if header.command == cmd::END {
            // Another stream may follow.
            self.version = None;
        }
        Ok(())
    }
}

/// A command without its attributes.
pub(super) struct RawCommand {
    version: u32,
    raw: RawHeader,
    pub(super) header: CommandHeader,
}

impl RawCommand {
    /// The command with its attributes.
    pub(super) fn parse<'a>(&self, attributes: &'a [u8]) -> Result<OneCommand<'a>> {
        Ok(OneCommand {
            header: self.raw,
            len: self.header.len,
            command: stream::parse(self.version, &self.header, attributes)?,
            owner: None,
        })
    }
}

/// A command of a stream.
pub(super) struct OneCommand<'a> {
    /// The bytes of its header.
    pub(super) header: RawHeader,
    /// Bytes of its attributes.
    pub(super) len: usize,
    pub(super) command: Command<'a>,
    /// The buffer of the attributes, if it may be kept.
    pub(super) owner: Option<&'a SharedBytes>,
}

/// The commands of one or several streams.
pub(super) trait CommandSource {
    /// The next command; `None` at the end of the input after a whole stream.
    fn next(&mut self) -> Result<Option<OneCommand<'_>>>;
}

impl<R: Read> CommandSource for Commands<R> {
    fn next(&mut self) -> Result<Option<OneCommand<'_>>> {
        let Some(command) = self.header()? else {
            return Ok(None);
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let read = self.attributes(&command, &mut buffer);
        self.buffer = buffer;
        read?;
        command.parse(&self.buffer).map(Some)
    }
}

/// Calls `each` for the commands of a stream.
///
/// # Errors
/// The stream cannot be read, is damaged or ends early; the errors of `each`.
pub fn read_stream<E: From<ReceiveError>>(
    reader: impl Read,
    mut each: impl FnMut(&Command<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut commands = Commands::new(reader);
    while let Some(one) = commands.next()? {
        each(&one.command)?;
    }
    Ok(())
}
