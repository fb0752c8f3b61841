//! The record of a received subvolume: its identity, and how much of its stream was received.
//!
//! In a directory of this machine the records are files of a hidden directory, one for each UUID,
//! because every file system has files. Extended attributes would move with the directory, but many
//! file systems lack them. They would also stay on a copy of the directory that was changed later.
//! In an image, the record of a partial subvolume is an extended attribute of its top; a complete
//! subvolume of btrfs has its received UUID.

use std::fmt;

use data_encoding::HEXLOWER;
use sapwood_btrfs_format::stream::COMMAND_HEADER;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// First line of a record.
const MAGIC: &[u8] = b"sapwood-receive 2";

/// The hidden directory of the records of complete directories.
pub(super) const DIRECTORY: &str = ".sapwood-received";

/// Prefix of the names of parts in an image without subvolumes.
pub(super) const PART_PREFIX: &str = ".sapwood-receive-";

/// Whether a name in the destination belongs to a record or a part.
pub(super) fn is_reserved(name: &[u8]) -> bool {
    name == DIRECTORY.as_bytes() || name.starts_with(PART_PREFIX.as_bytes())
}

/// Most bytes of a record.
pub(super) const RECORD_MAX: usize = 4096;

/// A number of whole commands of one subvolume, with a digest of them. Text: the three fields,
/// separated by spaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) commands: u64,
    /// Bytes of the commands.
    pub(super) bytes: u64,
    /// SHA-256 of the headers of the commands, in hexadecimal; empty without commands.
    pub(super) digest: String,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.commands, self.bytes, self.digest)
    }
}

impl Mark {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ' ');
        Some(Self {
            commands: parts.next()?.parse().ok()?,
            bytes: parts.next()?.parse().ok()?,
            digest: parts.next()?.to_owned(),
        })
    }
}

/// The whole commands of one subvolume that were executed.
#[derive(Debug, Clone, Default)]
pub(super) struct Position {
    pub(super) commands: u64,
    pub(super) bytes: u64,
    digest: Sha256,
}

impl Position {
    /// Adds the next command. Its header contains the checksum of its content.
    pub(super) fn add(&mut self, header: &[u8; COMMAND_HEADER], len: usize) {
        self.commands += 1;
        self.bytes = self.bytes.saturating_add((COMMAND_HEADER + len) as u64);
        self.digest.update(header);
    }

    pub(super) fn mark(&self) -> Mark {
        Mark {
            commands: self.commands,
            bytes: self.bytes,
            digest: HEXLOWER.encode(&self.digest.clone().finalize()),
        }
    }

    /// The first 32 bits of the digest.
    pub(super) fn short_digest(&self) -> u32 {
        let bytes = self.digest.clone().finalize();
        bytes
            .first_chunk()
            .map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }
}

/// The progress of a received subvolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// The copy of the parent is being made. It can be thrown away.
    Starting,
    /// A receive works on it, or was killed. All effects of the commands up to `checkpoint` are
    /// durable.
    Running { checkpoint: Mark, names: Mark },
    /// A receive ended in an orderly way, after these commands. `doubtful`: it could not find out
    /// whether the next change of names was executed by an earlier receive that was killed.
    Interrupted { mark: Mark, doubtful: bool },
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
    /// No change of an owner was refused until now.
    pub(super) keeps_owners: bool,
    /// The mount of a directory that is being received. Empty: not known.
    pub(super) mount: String,
    pub(super) name: Vec<u8>,
}

impl Record {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let none = Mark::default();
        let (state, checkpoint, names) = match &self.state {
            State::Starting => ("starting", &none, &none),
            State::Running { checkpoint, names } => ("running", checkpoint, names),
            State::Interrupted {
                mark,
                doubtful: false,
            } => ("interrupted", mark, mark),
            State::Interrupted {
                mark,
                doubtful: true,
            } => ("doubtful", mark, mark),
            State::Complete => ("complete", &none, &none),
        };
        let owners = if self.keeps_owners {
            ""
        } else {
            "owners refused\n"
        };
        let (uuid, transid, mode) = (Uuid::from_bytes(self.uuid), self.transid, self.mode);
        let fields = format!(
            "\nuuid {uuid}\nctransid {transid}\nstate {state}\ncheckpoint {checkpoint}\n\
             names {names}\nmode {mode:o}\n{owners}mount {}\nname ",
            self.mount,
        );
        [MAGIC, fields.as_bytes(), &self.name].concat()
    }

    /// Reads a record; `None` if the bytes are none.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        // The value of the next field, if that has this key.
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
        let checkpoint = Mark::parse(field("checkpoint")?)?;
        let names = Mark::parse(field("names")?)?;
        let state = match state {
            "starting" => State::Starting,
            "running" if checkpoint.commands <= names.commands => {
                State::Running { checkpoint, names }
            }
            "interrupted" | "doubtful" => State::Interrupted {
                mark: checkpoint,
                doubtful: state == "doubtful",
            },
            "complete" => State::Complete,
            _ => return None,
        };
        let mode = u32::from_str_radix(field("mode")?, 8).ok()? & 0o7777;
        let keeps_owners = field("owners").is_none();
        let mount = field("mount")?.to_owned();
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
            keeps_owners,
            mount,
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
        position.add(&[7; COMMAND_HEADER], 5);
        let checkpoint = position.mark();
        assert_eq!((checkpoint.commands, checkpoint.bytes), (1, 15));
        position.add(&[8; COMMAND_HEADER], 0);
        let names = position.mark();
        let interrupted = |doubtful| State::Interrupted {
            mark: names.clone(),
            doubtful,
        };
        let running = State::Running {
            checkpoint,
            names: names.clone(),
        };
        for (state, keeps_owners) in [
            (State::Starting, true),
            (running, false),
            (interrupted(false), true),
            (interrupted(true), false),
            (State::Complete, true),
        ] {
            let record = Record {
                uuid: [9; 16],
                transid: u64::MAX,
                state,
                mode: 0o2755,
                keeps_owners,
                mount: "boot 12".to_owned(),
                name: b"two\nlines \xff".to_vec(),
            };
            assert_eq!(Record::parse(&record.to_bytes()), Some(record));
        }
    }

    #[test]
    fn a_record_names_a_single_component_and_no_names_before_its_checkpoint() {
        let mut record = Record {
            uuid: [9; 16],
            transid: 1,
            state: State::Complete,
            mode: 0,
            keeps_owners: true,
            mount: String::new(),
            name: b"monday".to_vec(),
        };
        let mark = |commands| Mark {
            commands,
            ..Mark::default()
        };
        record.state = State::Running {
            checkpoint: mark(2),
            names: mark(1),
        };
        assert_eq!(Record::parse(&record.to_bytes()), None);
        record.state = State::Complete;
        for name in [&b""[..], b"..", b".", b"../x", b"/etc", b"a\0"] {
            record.name = name.to_vec();
            assert_eq!(Record::parse(&record.to_bytes()), None, "{name:?}");
        }
        assert_eq!(Record::parse(b"sapwood-receive 2"), None);
    }
}
