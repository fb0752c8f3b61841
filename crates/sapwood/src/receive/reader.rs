//! Reading a stream command by command.

use std::io::{self, Read};

use sapwood_btrfs_format::stream::{
    self, COMMAND_HEADER, Command, CommandHeader, HEADER, command as cmd,
};

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

    /// Reads the next command, verifies its checksum, and replaces `attributes` by its attributes;
    /// `None` at the end of the input after a whole stream.
    pub(super) fn read(&mut self, attributes: &mut Vec<u8>) -> Result<Option<RawCommand>> {
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
        attributes.resize(header.len, 0);
        if !self.fill(attributes)? && header.len > 0 {
            return Err(self.cut());
        }
        stream::verify(&header, attributes)?;
        self.count += 1;
        if header.command == cmd::END {
            // Another stream may follow.
            self.version = None;
        }
        Ok(Some(RawCommand {
            version,
            raw,
            header,
        }))
    }
}

/// A command whose checksum is verified, without its attributes.
pub(super) struct RawCommand {
    version: u32,
    raw: RawHeader,
    pub(super) header: CommandHeader,
}

impl RawCommand {
    /// The command with its attributes.
    pub(super) fn parse<'a>(&self, attributes: &'a [u8]) -> Result<OneCommand<'a>> {
        let command = stream::parse(self.version, &self.header, attributes)?;
        Ok((self.raw, self.header.len, command))
    }
}

/// The bytes of a command's header, the length of the rest, and the command.
pub(super) type OneCommand<'a> = (RawHeader, usize, Command<'a>);

/// The commands of one or several streams.
pub(super) trait CommandSource {
    /// The next command; `None` at the end of the input after a whole stream.
    fn next(&mut self) -> Result<Option<OneCommand<'_>>>;
}

impl<R: Read> CommandSource for Commands<R> {
    fn next(&mut self) -> Result<Option<OneCommand<'_>>> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let read = self.read(&mut buffer);
        self.buffer = buffer;
        match read? {
            Some(command) => command.parse(&self.buffer).map(Some),
            None => Ok(None),
        }
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
    while let Some((_, _, command)) = commands.next()? {
        each(&command)?;
    }
    Ok(())
}
