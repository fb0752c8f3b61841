//! Send streams: any bytes give commands or a typed error, and no path leads out of the subvolume.
//!
//! Input: a byte for the version and for checksums, which are made right if it is odd; the commands.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sapwood_btrfs_format::stream::{
    COMMAND_HEADER, Command, CommandHeader, Writer, attribute, parse, parse_header, verify,
};

fn look(command: &Command<'_>) {
    for (number, _) in command.attributes() {
        let _ = (command.u64(number), command.u32(number));
        let _ = (command.uuid(number), command.time(number));
        if let Ok(path) = command.path(number) {
            assert!(!path.starts_with(b"/"));
            assert!(path.split(|byte| *byte == b'/').all(|name| name != b".."));
        }
    }
}

/// A command with a right checksum and one attribute: the first bytes are its number.
fn sealed(version: u32, header: &CommandHeader, attributes: &[u8]) -> Option<Vec<u8>> {
    let (number, value) = attributes.split_first_chunk::<2>()?;
    let mut writer = Writer::new(version);
    let writer = writer.begin(header.command);
    let writer = match u16::from_le_bytes(*number) % 36 {
        attribute::DATA => writer.put_data(value),
        number => writer.put(number, value),
    };
    Some(writer.finish().to_vec())
}

fuzz_target!(|data: &[u8]| {
    let Some((mode, mut rest)) = data.split_first() else {
        return;
    };
    if let Some(header) = data.first_chunk() {
        let _ = parse_header(header);
    }
    let version = 1 + u32::from(mode >> 1 & 1);
    while let Some((head, tail)) = rest.split_first_chunk::<COMMAND_HEADER>() {
        let Ok(header) = CommandHeader::parse(head) else {
            return;
        };
        let (attributes, next) = tail.split_at(header.len.min(tail.len()));
        rest = next;
        if mode & 1 == 0 {
            if verify(&header, attributes).is_ok()
                && let Ok(command) = parse(version, &header, attributes)
            {
                look(&command);
            }
            continue;
        }
        let Some(bytes) = sealed(version, &header, attributes) else {
            return;
        };
        let (head, attributes) = bytes.split_first_chunk().expect("a header");
        let header = CommandHeader::parse(head).expect("a known command");
        look(&parse(version, &header, attributes).expect("a sealed command"));
    }
});
