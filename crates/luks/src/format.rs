//! New volumes.

use data_encoding::BASE64;
use sapwood_block::Device;
use serde_json::{Value, json};
use zerocopy::{FromZeros, IntoBytes};

use crate::cipher::{self, IV_UNIT, SectorCipher};
use crate::derive::{Derivation, Hash};
use crate::error::field;
use crate::key::{Key, random};
use crate::layout::{Header2, MAGIC, MAGIC_2ND, padded};
use crate::luks2::BINARY;
use crate::metadata::split_bytes;
use crate::split::{self, STRIPES};
use crate::{Error, Result};

/// Bytes of a copy of the header.
const HEADER: u64 = 0x4000;
/// Bytes from the start of a new volume to its data.
pub const HEADER_SIZE: u64 = 16 << 20;
const DATA: u64 = HEADER_SIZE;
/// Bytes of a volume key: two keys of AES-256.
const KEY: usize = 64;
/// Iterations of the digest of the volume key. That key is random, so few are enough.
const DIGEST_ITERATIONS: u64 = 1000;

/// How a volume is made.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// Derivation of the key of the first key slot.
    pub derivation: Derivation,
    /// Bytes of a sector: 512, 1024, 2048 or 4096.
    pub sector: u64,
    /// Label, of at most 47 bytes.
    pub label: String,
    /// UUID; random without one.
    pub uuid: Option<[u8; 16]>,
}

impl Default for FormatOptions {
    /// Argon2id, and sectors of 4096 bytes.
    fn default() -> Self {
        Self {
            derivation: Derivation::default(),
            sector: 4096,
            label: String::new(),
            uuid: None,
        }
    }
}

/// Makes an empty LUKS2 volume with one key slot on a device. The volume key is random, so the
/// result differs each time. What was on the device before is lost.
///
/// # Errors
/// [`Error::TooSmall`]: the header alone takes 16 MiB. An option is out of range; I/O errors of the
/// device.
pub fn format(device: &dyn Device, key: &Key, options: &FormatOptions) -> Result<()> {
    let needed = DATA + options.sector;
    if device.size() < needed {
        return Err(Error::TooSmall {
            device: device.name().to_owned(),
            size: device.size(),
            needed,
        });
    }
    let sector = options.sector;
    if !(IV_UNIT..=4096).contains(&sector) || !sector.is_power_of_two() {
        return Err(field("sector size", sector));
    }
    if options.label.len() > 47 || options.label.contains('\0') {
        return Err(field("label", &options.label));
    }
    let (volume_key, slot_salt, digest_salt) = (random(KEY)?, random(32)?, random(32)?);
    let offset = 2 * HEADER;
    let len = split_bytes(KEY as u64, u64::from(STRIPES), offset).unwrap_or_default();
    let derived = options
        .derivation
        .run(Hash::Sha256, key.bytes(), &slot_salt, KEY)?;
    let mut area = split::split(Hash::Sha256, &volume_key, STRIPES)?;
    SectorCipher::new(cipher::NAME, &derived)?.encrypt(&mut area, IV_UNIT as usize, 0);
    let digest = Hash::Sha256.pbkdf2(&volume_key, &digest_salt, DIGEST_ITERATIONS, 32)?;
    let salt = BASE64.encode(&digest_salt);
    let slot = json!({
        "type": "luks2",
        "key_size": KEY,
        "af": { "type": "luks1", "stripes": STRIPES, "hash": "sha256" },
        "area": {
            "type": "raw",
            "offset": offset.to_string(),
            "size": len.next_multiple_of(4096).to_string(),
            "encryption": cipher::NAME,
            "key_size": KEY,
        },
        "kdf": kdf(options.derivation, &slot_salt),
    });
    let metadata = metadata(slot, sector, &salt, &BASE64.encode(&digest));
    // A device that is cut off before the end has no header that opens.
    device.write_at(0, &vec![0; BINARY])?;
    device.write_at(offset, &area)?;
    device.flush()?;
    write_headers(device, &metadata, options)?;
    Ok(device.flush()?)
}

/// The metadata of a volume with one key slot, and the digest of its key.
fn metadata(slot: Value, sector: u64, salt: &str, digest: &str) -> Value {
    json!({
        "keyslots": { "0": slot },
        "tokens": {},
        "segments": { "0": {
            "type": "crypt",
            "offset": DATA.to_string(),
            "size": "dynamic",
            "iv_tweak": "0",
            "encryption": cipher::NAME,
            "sector_size": sector,
        }},
        "digests": { "0": {
            "type": "pbkdf2",
            "keyslots": ["0"],
            "segments": ["0"],
            "hash": "sha256",
            "iterations": DIGEST_ITERATIONS,
            "salt": salt,
            "digest": digest,
        }},
        "config": {
            "json_size": (HEADER - BINARY as u64).to_string(),
            "keyslots_size": (DATA - 2 * HEADER).to_string(),
        },
    })
}

/// The derivation of a key slot as metadata.
fn kdf(derivation: Derivation, salt: &[u8]) -> Value {
    let salt = BASE64.encode(salt);
    let argon2 = |kind, passes, kib, lanes| json!({ "type": kind, "time": passes, "memory": kib, "cpus": lanes, "salt": salt });
    match derivation {
        Derivation::Argon2i { passes, kib, lanes } => argon2("argon2i", passes, kib, lanes),
        Derivation::Argon2id { passes, kib, lanes } => argon2("argon2id", passes, kib, lanes),
        Derivation::Pbkdf2 { iterations } => {
            json!({ "type": "pbkdf2", "hash": "sha256", "iterations": iterations, "salt": salt })
        }
    }
}

/// Writes both copies of the header, the second one first: it does not count without the first.
fn write_headers(device: &dyn Device, metadata: &Value, options: &FormatOptions) -> Result<()> {
    let mut json = metadata.to_string().into_bytes();
    json.resize(HEADER as usize - BINARY, 0);
    let given = options.uuid.map(uuid::Uuid::from_bytes);
    let uuid = given.unwrap_or_else(uuid::Uuid::new_v4);
    for (offset, magic) in [(HEADER, MAGIC_2ND), (0, MAGIC)] {
        let mut header = Header2::new_zeroed();
        header.magic = magic;
        header.version = 2.into();
        header.size = HEADER.into();
        header.sequence = 1.into();
        header.label = padded(&options.label);
        header.checksum_name = padded("sha256");
        header.salt.copy_from_slice(&random(64)?);
        header.uuid = padded(&uuid.to_string());
        header.offset = offset.into();
        let checksum = Hash::Sha256.of(header.as_bytes(), &json);
        header.checksum[..checksum.len()].copy_from_slice(&checksum);
        device.write_at(offset, &[header.as_bytes(), &json].concat())?;
        device.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sapwood_block::MemoryDevice;

    use super::*;
    use crate::{describe, open};

    const FAST: Derivation = Derivation::Argon2id {
        passes: 1,
        kib: 64,
        lanes: 1,
    };

    fn volume(sector: u64) -> (Arc<dyn Device>, Key) {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(18 << 20));
        let key = Key::new(b"key".to_vec());
        let options = FormatOptions {
            derivation: FAST,
            sector,
            label: "root".to_owned(),
            uuid: None,
        };
        format(&*device, &key, &options).unwrap();
        (device, key)
    }

    /// Records the ranges that leave the cache.
    #[derive(Debug)]
    struct Dropping(Arc<dyn Device>, std::sync::Mutex<Vec<(u64, u64)>>);

    impl sapwood_block::Layer for Dropping {
        type Below = dyn Device;

        fn below(&self) -> &(dyn Device + 'static) {
            &*self.0
        }

        fn drop_cached(&self, offset: u64, len: u64) {
            self.1.lock().unwrap().push((offset, len));
        }
    }

    #[test]
    fn caches_are_dropped_where_the_data_is_stored() {
        let (device, key) = volume(512);
        let dropping = Arc::new(Dropping(device, std::sync::Mutex::default()));
        let opened = open(dropping.clone(), &key).unwrap();
        opened.drop_cached(4096, 1024);
        let dropped = dropping.1.lock().unwrap().clone();
        assert_eq!(dropped, [((16 << 20) + 4096, 1024)]);
    }

    #[test]
    fn a_new_volume_opens_with_its_key_only() {
        let (device, key) = volume(4096);
        assert_eq!(describe(&*device).unwrap().label, "root");
        let other = Key::new(b"yek".to_vec());
        assert!(matches!(
            open(Arc::clone(&device), &other),
            Err(Error::WrongKey { slots: 1, .. })
        ));
        let opened = open(device, &key).unwrap();
        assert_eq!(opened.size(), 2 << 20);
    }

    #[test]
    fn writes_at_any_offset_are_read_back() {
        let mut random = fastrand::Rng::with_seed(7);
        for sector in [512, 4096] {
            let (device, key) = volume(sector);
            let opened = open(Arc::clone(&device), &key).unwrap();
            let size = 100_000;
            let mut expected = vec![0; size];
            opened.write_at(0, &expected).unwrap();
            for round in 0..200 {
                let len = random.usize(1..9000);
                let at = random.usize(0..size - len);
                let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
                let (first, second) = bytes.split_at(len / 3);
                match round % 3 {
                    0 => opened.write_at(at as u64, &bytes),
                    1 => opened.write_fua(at as u64, &bytes),
                    _ => opened.write_vectored_at(at as u64, &[first, second]),
                }
                .unwrap();
                expected[at..at + len].copy_from_slice(&bytes);
            }
            let again = open(Arc::clone(&device), &key).unwrap();
            let mut found = vec![0; size];
            again.read_at(0, &mut found).unwrap();
            assert_eq!(found, expected);
            again.read_at(777, &mut found[..5000]).unwrap();
            assert_eq!(found[..5000], expected[777..5777]);
            let mut raw = vec![0; 16];
            device.read_at(DATA, &mut raw).unwrap();
            assert_ne!(raw, expected[..16]);
        }
    }

    #[test]
    fn one_damaged_copy_of_the_header_is_enough() {
        for damaged in [0, HEADER] {
            let (device, key) = volume(512);
            device.write_at(damaged + 5000, b"damage").unwrap();
            assert!(open(Arc::clone(&device), &key).is_ok());
            device
                .write_at((HEADER - damaged) + 5000, b"damage")
                .unwrap();
            assert!(matches!(open(device, &key), Err(Error::Damaged { .. })));
        }
    }

    #[test]
    fn nothing_is_written_past_the_end() {
        let (device, key) = volume(4096);
        let opened = open(device, &key).unwrap();
        assert!(opened.write_at((2 << 20) - 1, b"xy").is_err());
        assert!(opened.read_at(2 << 20, &mut [0]).is_err());
        assert!(opened.grow(3 << 20).is_err());
    }
}
