//! The record of a received subvolume: its identity, and how much of its stream was received.
//!
//! In a directory of this machine the records are files of a hidden directory, one for each UUID,
//! because every file system has files. Extended attributes would move with the directory, but many
//! file systems lack them. They would also stay on a copy of the directory that was changed later.
//! In an image, the record of a partial subvolume is an extended attribute of its top; a complete
//! subvolume of btrfs has its received UUID.

use std::fmt::Write as _;

use sapwood_btrfs_format::stream::COMMAND_HEADER;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// First line of a record.
const MAGIC: &[u8] = b"sapwood-receive 1";

/// Most bytes of a record.
pub(super) const RECORD_MAX: usize = 4096;

/// The whole commands of one subvolume that were executed, with a digest of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Position {
    pub(super) commands: u64,
    digest: Sha256,
}

impl Position {
    /// Adds the next command. Its header contains the checksum of its content.
    pub(super) fn add(&mut self, header: &[u8; COMMAND_HEADER]) {
        self.commands += 1;
        self.digest.update(header);
    }

    pub(super) fn digest(&self) -> String {
        let bytes = self.digest.clone().finalize();
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// The progress of a received subvolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// A receive works on it, or ended without recording its position.
    Running,
    /// A receive was interrupted after this number of whole commands, with this digest.
    Interrupted { commands: u64, digest: String },
    /// It is complete.
    Complete,
}

/// The identity and progress of a subvolume; see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) uuid: [u8; 16],
    pub(super) transid: u64,
    pub(super) state: State,
    /// Mode that the top of a directory gets when it is complete.
    pub(super) mode: u32,
    pub(super) name: Vec<u8>,
}

impl Record {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (state, commands, digest) = match &self.state {
            State::Running => ("running", 0, "-"),
            State::Interrupted { commands, digest } => ("interrupted", *commands, &**digest),
            State::Complete => ("complete", 0, "-"),
        };
        let fields = format!(
            "\nuuid {}\nctransid {}\nstate {state}\ncommands {commands}\ndigest {digest}\nmode {:o}\nname ",
            Uuid::from_bytes(self.uuid),
            self.transid,
            self.mode,
        );
        [MAGIC, fields.as_bytes(), &self.name].concat()
    }

    /// `None`: the bytes are no record.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let mut field = |key: &str| {
            let tail = rest.strip_prefix(format!("\n{key} ").as_bytes())?;
            let end = tail.iter().position(|byte| *byte == b'\n');
            let (value, left) = tail.split_at_checked(end.unwrap_or(tail.len()))?;
            rest = left;
            std::str::from_utf8(value).ok()
        };
        let uuid = field("uuid")?.parse::<Uuid>().ok()?.into_bytes();
        let transid = field("ctransid")?.parse().ok()?;
        let state = field("state")?;
        let commands = field("commands")?.parse().ok()?;
        let digest = field("digest")?.to_owned();
        let state = match state {
            "running" => State::Running,
            "interrupted" => State::Interrupted { commands, digest },
            "complete" => State::Complete,
            _ => return None,
        };
        let mode = u32::from_str_radix(field("mode")?, 8).ok()? & 0o7777;
        let name = rest.strip_prefix(b"\nname ")?;
        let single = !name.is_empty() && name != b"." && name != b"..";
        if !single || name.contains(&b'/') || name.contains(&0) {
            return None;
        }
        Some(Self {
            uuid,
            transid,
            state,
            mode,
            name: name.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_with_any_name() {
        let mut position = Position::default();
        position.add(&[7; COMMAND_HEADER]);
        let interrupted = State::Interrupted {
            commands: 1,
            digest: position.digest(),
        };
        for state in [State::Running, interrupted, State::Complete] {
            let record = Record {
                uuid: [9; 16],
                transid: u64::MAX,
                state,
                mode: 0o2755,
                name: b"two\nlines \xff".to_vec(),
            };
            assert_eq!(Record::parse(&record.to_bytes()), Some(record));
        }
    }

    #[test]
    fn a_record_names_a_single_component() {
        let mut record = Record {
            uuid: [9; 16],
            transid: 1,
            state: State::Complete,
            mode: 0,
            name: b"monday".to_vec(),
        };
        for name in [&b""[..], b"..", b".", b"../x", b"/etc", b"a\0"] {
            record.name = name.to_vec();
            assert_eq!(Record::parse(&record.to_bytes()), None, "{name:?}");
        }
        assert_eq!(Record::parse(b"sapwood-receive 1"), None);
    }
}
