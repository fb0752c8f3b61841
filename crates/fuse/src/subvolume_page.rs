//! A page of a list of subvolumes, as a control command returns it.
//!
//! Layout, in the machine's byte order: the default subvolume (8 bytes), the number of records (4),
//! 1 if there are more pages (4). Each record has: id, parent, generation, generation of its
//! creation, seconds of its creation (8 each), nanoseconds, flags (4 each), its own UUID, its
//! parent's and the one that it was received from (16 each), length of the path (4), path.

use sapwood_vfs::{SubvolumeId, SubvolumeInfo, Timestamp};

const FLAG_READ_ONLY: u32 = 1;

/// Subvolumes of a mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubvolumeList {
    /// The default subvolume, which a mount shows if no other is chosen.
    pub default: SubvolumeId,
    /// All except the top level, ordered by id.
    pub subvolumes: Vec<SubvolumeInfo>,
}

/// The part of `list` that fits into `bytes`, from id `first` on; `None` if the first record does
/// not fit.
pub(crate) fn encode(list: &SubvolumeList, first: u64, bytes: usize) -> Option<Vec<u8>> {
    let mut wanted = list
        .subvolumes
        .iter()
        .filter(|one| one.id.0 >= first)
        .peekable();
    let mut records = Vec::new();
    let mut count = 0_u32;
    while let Some(one) = wanted.peek() {
        let record = record(one);
        if 16 + records.len() + record.len() > bytes {
            break;
        }
        records.extend(record);
        count += 1;
        wanted.next();
    }
    let more = wanted.peek().is_some();
    if more && count == 0 {
        return None;
    }
    let mut page = list.default.0.to_ne_bytes().to_vec();
    page.extend(count.to_ne_bytes());
    page.extend(u32::from(more).to_ne_bytes());
    page.extend(records);
    Some(page)
}

fn record(one: &SubvolumeInfo) -> Vec<u8> {
    let parent = one.parent.map_or(0, |parent| parent.0);
    let mut record = Vec::new();
    for number in [one.id.0, parent, one.generation, one.created_generation] {
        record.extend(number.to_ne_bytes());
    }
    record.extend(one.created.sec.to_ne_bytes());
    record.extend(one.created.nsec.to_ne_bytes());
    let flags = if one.read_only { FLAG_READ_ONLY } else { 0 };
    record.extend(flags.to_ne_bytes());
    for uuid in [&one.uuid, &one.parent_uuid, &one.received_uuid] {
        record.extend(uuid);
    }
    record.extend(
        u32::try_from(one.path.len())
            .unwrap_or(u32::MAX)
            .to_ne_bytes(),
    );
    record.extend(&one.path);
    record
}

/// Decodes a page, and whether there are more. `None` if it is malformed.
pub(crate) fn decode(mut page: &[u8]) -> Option<(SubvolumeList, bool)> {
    let rest = &mut page;
    let default = SubvolumeId(u64::from_ne_bytes(take(rest)?));
    let count = u32::from_ne_bytes(take(rest)?);
    let more = u32::from_ne_bytes(take(rest)?) != 0;
    let subvolumes = (0..count).map(|_| one(rest)).collect::<Option<Vec<_>>>()?;
    Some((
        SubvolumeList {
            default,
            subvolumes,
        },
        more,
    ))
}

fn one(rest: &mut &[u8]) -> Option<SubvolumeInfo> {
    let id = SubvolumeId(u64::from_ne_bytes(take(rest)?));
    let parent = u64::from_ne_bytes(take(rest)?);
    let generation = u64::from_ne_bytes(take(rest)?);
    let created_generation = u64::from_ne_bytes(take(rest)?);
    let created = Timestamp {
        sec: i64::from_ne_bytes(take(rest)?),
        nsec: u32::from_ne_bytes(take(rest)?),
    };
    let read_only = u32::from_ne_bytes(take(rest)?) & FLAG_READ_ONLY != 0;
    let (uuid, parent_uuid, received_uuid) = (take(rest)?, take(rest)?, take(rest)?);
    let len = usize::try_from(u32::from_ne_bytes(take(rest)?)).ok()?;
    let (path, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(SubvolumeInfo {
        id,
        path: path.to_vec(),
        parent: (parent != 0).then_some(SubvolumeId(parent)),
        generation,
        created_generation,
        created,
        read_only,
        uuid,
        parent_uuid,
        received_uuid,
    })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (front, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*front)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(count: u64) -> SubvolumeList {
        let one = |id: u64| SubvolumeInfo {
            id: SubvolumeId(id),
            path: format!("some/where/{id}").into_bytes(),
            parent: id.is_multiple_of(2).then_some(SubvolumeId(5)),
            generation: id + 7,
            created_generation: id + 6,
            created: Timestamp { sec: -3, nsec: 9 },
            read_only: id.is_multiple_of(3),
            uuid: [1; 16],
            parent_uuid: [2; 16],
            received_uuid: [3; 16],
        };
        SubvolumeList {
            default: SubvolumeId(257),
            subvolumes: (256..256 + count).map(one).collect(),
        }
    }

    #[test]
    fn pages_together_hold_the_list() {
        let all = list(100);
        let (mut found, mut first, mut pages) = (Vec::new(), 0, 0);
        loop {
            let page = encode(&all, first, 2000).unwrap();
            assert!(page.len() <= 2000);
            let (part, more) = decode(&page).unwrap();
            assert_eq!(part.default, all.default);
            found.extend(part.subvolumes);
            first = found.last().unwrap().id.0 + 1;
            pages += 1;
            if !more {
                break;
            }
        }
        assert_eq!(found, all.subvolumes);
        assert!(pages > 1);
    }

    #[test]
    fn a_truncated_page_is_refused() {
        let page = encode(&list(2), 0, 2000).unwrap();
        for len in 0..page.len() {
            assert_eq!(decode(&page[..len]), None);
        }
        assert_eq!(encode(&list(1), 0, 60), None);
    }
}
