//! The handshake: from a connected socket to the transmission phase of an export.

use std::io::{Read, Write};

use super::status::ALLOCATION;
use super::stream::Stream;
use super::wire::*;
use crate::NbdError;
use crate::error::Violation;

/// The longest answer to an option that is read, in bytes.
const MAX_ANSWER: u32 = 16 << 10;
/// The most answers to one option.
const MAX_ANSWERS: usize = 64;
/// The most bytes of a request where the server names no limit.
const MOST: u32 = 32 << 20;

/// The abilities of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Export {
    /// Bytes, in whole blocks.
    pub(crate) size: u64,
    pub(crate) flags: u16,
    /// The least bytes of a request, and its alignment: a power of two.
    pub(crate) least: u32,
    /// The most bytes of a request.
    pub(crate) most: u32,
    pub(crate) structured: bool,
    /// The server reports allocated ranges.
    pub(crate) status: bool,
}

/// The result of the negotiation for one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Negotiated {
    pub(super) export: Export,
    /// Number of the context of [`ALLOCATION`].
    pub(super) allocation: Option<u32>,
}

impl Export {
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Receives the first bytes of a server.
pub(super) fn greeting(stream: &mut Stream) -> Result<(), NbdError> {
    if read::<8>(stream)? != GREETING.to_be_bytes() || read::<8>(stream)? != OPTION.to_be_bytes() {
        return Err(Violation::Greeting.into());
    }
    Ok(())
}

/// Negotiates the export, after the [`greeting`].
pub(super) fn negotiate(stream: &mut Stream, export: &[u8]) -> Result<Negotiated, NbdError> {
    let flags = u16::from_be_bytes(read(stream)?);
    if flags & FIXED_NEWSTYLE == 0 {
        return Err(Violation::Greeting.into());
    }
    let ours = u32::from(FIXED_NEWSTYLE | (flags & NO_ZEROES));
    write(stream, &ours.to_be_bytes())?;
    send_option(stream, OPT_STRUCTURED_REPLY, &[])?;
    let structured = match answer(stream, OPT_STRUCTURED_REPLY)? {
        (REP_ACK, _) => true,
        (kind, _) if kind & REP_ERROR != 0 => false,
        (kind, _) => return Err(Violation::Kind(kind as u16).into()),
    };
    let allocation = if structured {
        context(stream, export)?
    } else {
        None
    };
    let mut data = counted(export);
    data.extend(1_u16.to_be_bytes());
    data.extend(INFO_BLOCK_SIZE.to_be_bytes());
    send_option(stream, OPT_GO, &data)?;
    let mut agreed = go(stream, export, structured)?;
    agreed.status = allocation.is_some();
    Ok(Negotiated {
        export: agreed,
        allocation,
    })
}

/// Text after its length, as names are sent.
fn counted(text: &[u8]) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text);
    bytes
}

/// Asks for the context of [`ALLOCATION`]; its number, if the server has it.
fn context(stream: &mut Stream, export: &[u8]) -> Result<Option<u32>, NbdError> {
    let mut data = counted(export);
    data.extend(1_u32.to_be_bytes());
    data.extend(counted(ALLOCATION));
    send_option(stream, OPT_SET_META_CONTEXT, &data)?;
    let mut number = None;
    for _ in 0..MAX_ANSWERS {
        let (kind, data) = answer(stream, OPT_SET_META_CONTEXT)?;
        match kind {
            REP_META_CONTEXT => {
                let wrong = || Violation::Length(data.len() as u64);
                let (id, name) = data.split_first_chunk::<4>().ok_or_else(wrong)?;
                if name == ALLOCATION {
                    number = Some(u32::from_be_bytes(*id));
                }
            }
            REP_ACK => return Ok(number),
            kind if kind & REP_ERROR != 0 => return Ok(None),
            kind => return Err(Violation::Kind(kind as u16).into()),
        }
    }
    Err(Violation::Endless.into())
}

/// Reads the answers to `NBD_OPT_GO`.
fn go(stream: &mut Stream, export: &[u8], structured: bool) -> Result<Export, NbdError> {
    let (mut size, mut blocks) = (None, (1, MOST));
    for _ in 0..MAX_ANSWERS {
        let (kind, data) = answer(stream, OPT_GO)?;
        match kind {
            REP_INFO => match info(&data)? {
                Info::Export(bytes, flags) => size = Some((bytes, flags)),
                Info::Blocks(least, most) => blocks = (least, most),
                Info::Other => {}
            },
            REP_ACK => {
                let (size, flags) = size.ok_or(Violation::NoSize)?;
                let (least, most) = blocks;
                let flags = if flags & HAS_FLAGS == 0 { 0 } else { flags };
                return Ok(Export {
                    size: size - size % u64::from(least),
                    flags,
                    least,
                    most: most - most % least,
                    structured,
                    status: false,
                });
            }
            kind if kind & REP_ERROR != 0 => {
                return Err(NbdError::Refused {
                    export: String::from_utf8_lossy(export).into_owned(),
                    why: refusal(kind, &data),
                });
            }
            kind => return Err(Violation::Kind(kind as u16).into()),
        }
    }
    Err(Violation::Endless.into())
}

enum Info {
    Export(u64, u16),
    Blocks(u32, u32),
    Other,
}

fn info(data: &[u8]) -> Result<Info, NbdError> {
    let wrong = || Violation::Length(data.len() as u64);
    let (kind, rest) = data.split_first_chunk::<2>().ok_or_else(wrong)?;
    Ok(match u16::from_be_bytes(*kind) {
        INFO_EXPORT => {
            let (size, rest) = rest.split_first_chunk::<8>().ok_or_else(wrong)?;
            let flags = <[u8; 2]>::try_from(rest).map_err(|_| wrong())?;
            Info::Export(u64::from_be_bytes(*size), u16::from_be_bytes(flags))
        }
        INFO_BLOCK_SIZE => {
            let (least, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
            let (_, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
            let most = <[u8; 4]>::try_from(rest).map_err(|_| wrong())?;
            let (least, most) = (u32::from_be_bytes(*least), u32::from_be_bytes(most));
            // The document allows at most 64 KiB for the least.
            if !least.is_power_of_two() || least > 64 << 10 || most < least {
                return Err(Violation::BlockSize { least, most }.into());
            }
            Info::Blocks(least, most.min(MOST))
        }
        _ => Info::Other,
    })
}

fn refusal(kind: u32, data: &[u8]) -> String {
    let meaning = match kind {
        REP_ERR_UNSUP => "it does not know NBD_OPT_GO",
        REP_ERR_POLICY => "not permitted",
        REP_ERR_TLS_REQUIRED => "it demands TLS, which is not supported",
        REP_ERR_UNKNOWN => "no such export",
        _ => "refused",
    };
    if data.is_empty() {
        meaning.to_owned()
    } else {
        format!(
            "{meaning}: {}",
            String::from_utf8_lossy(data).escape_debug()
        )
    }
}

fn send_option(stream: &mut Stream, option: u32, data: &[u8]) -> Result<(), NbdError> {
    let mut bytes = Vec::with_capacity(16 + data.len());
    bytes.extend(OPTION.to_be_bytes());
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    write(stream, &bytes)
}

/// Reads an answer to `option`: its kind and its data.
fn answer(stream: &mut Stream, option: u32) -> Result<(u32, Vec<u8>), NbdError> {
    let magic = u64::from_be_bytes(read(stream)?);
    if magic != OPTION_REPLY {
        return Err(Violation::Magic(magic).into());
    }
    let of = u32::from_be_bytes(read(stream)?);
    if of != option {
        return Err(Violation::Option(of).into());
    }
    let kind = u32::from_be_bytes(read(stream)?);
    let len = u32::from_be_bytes(read(stream)?);
    if len > MAX_ANSWER {
        return Err(Violation::Length(len.into()).into());
    }
    let mut data = vec![0; len as usize];
    stream.read_exact(&mut data).map_err(NbdError::Lost)?;
    Ok((kind, data))
}

fn read<const N: usize>(stream: &mut Stream) -> Result<[u8; N], NbdError> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).map_err(NbdError::Lost)?;
    Ok(bytes)
}

fn write(stream: &mut Stream, bytes: &[u8]) -> Result<(), NbdError> {
    stream.write_all(bytes).map_err(NbdError::Lost)
}
