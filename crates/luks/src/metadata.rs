//! The metadata of LUKS2: JSON after the binary header. Numbers of bytes are decimal texts in it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::cipher::IV_UNIT;
use crate::derive::{Derivation, Hash};
use crate::error::field;
use crate::{Error, Result};

/// Most key slots of a volume.
pub(crate) const SLOTS: usize = 32;
/// Most bytes of a key.
const KEY_BYTES: u64 = 512;
/// Most stripes of a split key.
const STRIPES_MAX: u64 = 1 << 16;

/// The whole metadata. Objects of types that are not known stay values.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) keyslots: BTreeMap<String, Value>,
    pub(crate) segments: BTreeMap<String, Value>,
    pub(crate) digests: BTreeMap<String, DigestObject>,
    pub(crate) config: Config,
}

/// Requirements on a reader.
#[derive(Debug, Deserialize)]
pub(crate) struct Config {
    #[serde(default)]
    pub(crate) requirements: Value,
}

/// A key slot of type `luks2`.
#[derive(Debug, Deserialize)]
pub(crate) struct KeySlot {
    pub(crate) key_size: u64,
    pub(crate) af: Splitter,
    pub(crate) area: Area,
    pub(crate) kdf: Kdf,
}

/// The splitter of a key slot.
#[derive(Debug, Deserialize)]
pub(crate) struct Splitter {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) stripes: u64,
    pub(crate) hash: String,
}

/// The place of a key slot, and how it is encrypted.
#[derive(Debug, Deserialize)]
pub(crate) struct Area {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(deserialize_with = "decimal")]
    pub(crate) offset: u64,
    #[serde(deserialize_with = "decimal")]
    pub(crate) size: u64,
    pub(crate) encryption: String,
    pub(crate) key_size: u64,
}

/// The derivation of the key of a key slot.
#[derive(Debug, Deserialize)]
pub(crate) struct Kdf {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) hash: Option<String>,
    #[serde(default)]
    pub(crate) iterations: Option<u64>,
    #[serde(default)]
    pub(crate) time: Option<u64>,
    #[serde(default)]
    pub(crate) memory: Option<u64>,
    #[serde(default)]
    pub(crate) cpus: Option<u64>,
    /// Base64.
    pub(crate) salt: String,
}

/// A segment of type `crypt`.
#[derive(Debug, Deserialize)]
pub(crate) struct Segment {
    #[serde(deserialize_with = "decimal")]
    pub(crate) offset: u64,
    /// A number of bytes, or `dynamic`: up to the end of the device.
    pub(crate) size: String,
    #[serde(deserialize_with = "decimal")]
    pub(crate) iv_tweak: u64,
    pub(crate) encryption: String,
    pub(crate) sector_size: u64,
}

/// A digest of the volume key.
#[derive(Debug, Deserialize)]
pub(crate) struct DigestObject {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) keyslots: Vec<String>,
    pub(crate) segments: Vec<String>,
    pub(crate) hash: String,
    pub(crate) iterations: u64,
    /// Base64.
    pub(crate) salt: String,
    /// Base64.
    pub(crate) digest: String,
}

/// A number as a decimal text.
fn decimal<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(serde::de::Error::custom)
}

impl Metadata {
    /// Refuses a volume that needs what Sapwood does not have.
    ///
    /// # Errors
    /// [`Error::Unsupported`]; too many key slots.
    pub(crate) fn check(&self) -> Result<()> {
        if self.keyslots.len() > SLOTS {
            return Err(field("number of key slots", self.keyslots.len()));
        }
        match &self.config.requirements["mandatory"] {
            Value::Null => Ok(()),
            Value::Array(needed) if needed.is_empty() => Ok(()),
            needed => Err(Error::Unsupported(format!("requirements {needed}"))),
        }
    }

    /// The segment that is the volume, with its name.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: several segments, another type, authenticated encryption; a field
    /// that makes no sense.
    pub(crate) fn segment(&self) -> Result<(&str, Segment)> {
        let mut segments = self.segments.iter();
        let (Some((name, value)), None) = (segments.next(), segments.next()) else {
            let count = self.segments.len();
            return Err(Error::Unsupported(format!("{count} segments")));
        };
        let kind = value["type"].as_str().unwrap_or_default();
        if kind != "crypt" {
            return Err(Error::Unsupported(format!("a segment of type {kind:?}")));
        }
        if !value["integrity"].is_null() {
            return Err(Error::Unsupported("authenticated encryption".to_owned()));
        }
        let segment = Segment::deserialize(value)?;
        let sector = segment.sector_size;
        if !(IV_UNIT..=4096).contains(&sector) || !sector.is_power_of_two() {
            return Err(field("sector size", sector));
        }
        if !segment.offset.is_multiple_of(IV_UNIT) {
            return Err(field("offset of the segment", segment.offset));
        }
        Ok((name, segment))
    }

    /// The digest of the volume key of a segment.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Field`].
    pub(crate) fn digest_of(&self, segment: &str) -> Result<&DigestObject> {
        let mut digests = self.digests.values();
        let of_it = |digest: &&DigestObject| digest.segments.iter().any(|name| name == segment);
        let digest = digests.find(of_it);
        let digest = digest.ok_or_else(|| field("digest of the segment", "missing"))?;
        if digest.kind != "pbkdf2" {
            return Err(Error::Unsupported(format!("digest {}", digest.kind)));
        }
        Ok(digest)
    }

    /// The key slots that open a digest, in the order of their numbers.
    ///
    /// # Errors
    /// [`Error::Metadata`]: a slot of type `luks2` does not parse; [`Error::Field`]: its name.
    pub(crate) fn slots_of(&self, digest: &DigestObject) -> Result<Vec<(u32, KeySlot)>> {
        let mut slots = Vec::new();
        for name in &digest.keyslots {
            let Some(value) = self.keyslots.get(name) else {
                continue;
            };
            if value["type"] == "luks2" {
                slots.push((slot_number(name)?, KeySlot::deserialize(value)?));
            }
        }
        slots.sort_by_key(|(number, _)| *number);
        slots.dedup_by_key(|(number, _)| *number);
        Ok(slots)
    }
}

impl KeySlot {
    /// Bytes of the split key, after a check of all sizes.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Field`].
    pub(crate) fn split_bytes(&self) -> Result<usize> {
        if self.af.kind != "luks1" {
            let kind = &self.af.kind;
            return Err(Error::Unsupported(format!("splitter {kind}")));
        }
        if self.area.kind != "raw" {
            let kind = &self.area.kind;
            return Err(Error::Unsupported(format!(
                "a key slot area of type {kind}"
            )));
        }
        split_bytes(self.key_size, self.af.stripes, self.area.offset)
            .filter(|bytes| *bytes as u64 <= self.area.size)
            .ok_or_else(|| field("size of a key slot area", self.area.size))
    }

    /// The derivation of its key, and the salt.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Field`].
    pub(crate) fn derivation(&self) -> Result<(Derivation, Hash, Vec<u8>)> {
        let kdf = &self.kdf;
        let number = |name, value: Option<u64>| value.ok_or_else(|| field(name, "missing"));
        let (passes, kib, lanes) = (kdf.time, kdf.memory, kdf.cpus);
        let cost = || -> Result<_> {
            let passes = number("time of a key slot", passes)?;
            let kib = number("memory of a key slot", kib)?;
            Ok((passes, kib, number("cpus of a key slot", lanes)?))
        };
        let mut hash = Hash::Sha256;
        let derivation = match kdf.kind.as_str() {
            "pbkdf2" => {
                hash = Hash::named(kdf.hash.as_deref().unwrap_or_default())?;
                let iterations = number("iterations of a key slot", kdf.iterations)?;
                Derivation::Pbkdf2 { iterations }
            }
            "argon2i" => {
                let (passes, kib, lanes) = cost()?;
                Derivation::Argon2i { passes, kib, lanes }
            }
            "argon2id" => {
                let (passes, kib, lanes) = cost()?;
                Derivation::Argon2id { passes, kib, lanes }
            }
            kind => return Err(Error::Unsupported(format!("key derivation {kind}"))),
        };
        Ok((derivation, hash, bytes_of("salt of a key slot", &kdf.salt)?))
    }
}

/// The key slot in an object; `None` if it is of a type that no passphrase opens.
///
/// # Errors
/// [`Error::Metadata`]: it has type `luks2` and does not parse.
pub(crate) fn slot_of(value: &Value) -> Result<Option<KeySlot>> {
    let is_ours = value["type"] == "luks2";
    let slot = is_ours.then(|| KeySlot::deserialize(value));
    Ok(slot.transpose()?)
}

/// The number that is the name of a key slot.
///
/// # Errors
/// [`Error::Field`].
pub(crate) fn slot_number(name: &str) -> Result<u32> {
    name.parse().map_err(|_| field("name of a key slot", name))
}

/// Bytes of a split key at a byte offset; `None` if a value makes no sense.
pub(crate) fn split_bytes(key: u64, stripes: u64, offset: u64) -> Option<usize> {
    let makes_sense = (1..=KEY_BYTES).contains(&key)
        && (1..=STRIPES_MAX).contains(&stripes)
        && offset.is_multiple_of(IV_UNIT);
    if !makes_sense {
        return None;
    }
    usize::try_from((key * stripes).next_multiple_of(IV_UNIT)).ok()
}

/// The bytes of a Base64 text.
///
/// # Errors
/// [`Error::Field`].
pub(crate) fn bytes_of(name: &'static str, text: &str) -> Result<Vec<u8>> {
    let bytes = data_encoding::BASE64.decode(text.as_bytes());
    bytes.map_err(|_| field(name, "no Base64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        assert_eq!(split_bytes(64, 4000, 32768), Some(256_000));
        for (key, stripes, offset) in [
            (u64::MAX, u64::MAX, 0),
            (64, u64::MAX, 0),
            (0, 4000, 0),
            (64, 0, 0),
            (64, 4000, 100),
        ] {
            assert_eq!(split_bytes(key, stripes, offset), None);
        }
    }
}
