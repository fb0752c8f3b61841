//! Signatures of root hashes, in partitions of their own.
//!
//! Facts (Discoverable Partitions Specification, "Verity Signature Partitions"): the partition has a
//! JSON object with the root hash in hexadecimal, the SHA-256 of the signer's certificate in DER in
//! hexadecimal, and a PKCS#7 signature of the root hash as text, in DER and Base64. NUL bytes follow
//! up to a multiple of 4096.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::content::Built;
use super::table::signature_type;
use super::{DiskBuilder, DiskError, NewPartition, PartitionContent, Result, openssl};
use crate::image;
use crate::new_file::NewFile;
use crate::verity::RootHash;

/// Multiple of the bytes of the partition.
const UNIT: usize = 4096;
/// Most bytes of a signature.
const SIGNATURE_MAX: usize = 1 << 20;
/// First byte of a sequence in DER.
const SEQUENCE: u8 = 0x30;
/// The line before the Base64 of a certificate in PEM.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
/// Lines around the Base64 of a signature in PEM.
const PEM: [&str; 2] = ["-----BEGIN ", "-----END "];

/// A detached signature of the root hash of a partition's hash tree, as `openssl smime -sign
/// -binary -noattr` makes it of the root hash in hexadecimal. It is stored and not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootSignature {
    signer: Signer,
    fingerprint: [u8; 32],
}

/// The origin of a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Signer {
    /// The signature itself, in DER.
    Made(Vec<u8>),
    /// Files in PEM.
    Files { key: PathBuf, certificate: PathBuf },
}

impl RootSignature {
    /// Signs the root hash with a key, by the program `openssl`. Both files are PEM.
    ///
    /// # Errors
    /// The certificate cannot be read; [`InvalidInput`](crate::ErrorKind::InvalidInput): it is none.
    pub fn with_key(
        key: impl Into<PathBuf>,
        certificate: impl Into<PathBuf>,
    ) -> crate::Result<Self> {
        let certificate = certificate.into();
        let fingerprint = fingerprint_of(&certificate)?;
        let key = key.into();
        Ok(Self {
            signer: Signer::Files { key, certificate },
            fingerprint,
        })
    }

    /// The root hash in a partition for a signature, after the program `openssl` has verified that
    /// the key of the certificate, a PEM file, made the signature.
    ///
    /// # Errors
    /// The partition or the certificate cannot be read;
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): there is no signature by this certificate;
    /// the signature is wrong.
    pub fn verify(
        partition: impl AsRef<Path>,
        certificate: impl AsRef<Path>,
    ) -> crate::Result<RootHash> {
        Ok(verified(partition.as_ref(), certificate.as_ref())?)
    }

    /// A PKCS#7 signature in DER or PEM, and the SHA-256 of the signer's certificate in hexadecimal;
    /// colons in it are ignored.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): it is no signature, or no SHA-256.
    pub fn new(signature: &[u8], fingerprint: &str) -> crate::Result<Self> {
        let der = der_of(signature).filter(|der| der.len() <= SIGNATURE_MAX);
        let der = der.ok_or(DiskError::Signature("no PKCS#7 signature in DER or PEM"))?;
        let digits: String = fingerprint.chars().filter(|char| *char != ':').collect();
        let bytes = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok();
        let fingerprint = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        let why = "a fingerprint is the SHA-256 of a certificate in hexadecimal";
        let fingerprint = fingerprint.ok_or(DiskError::Signature(why))?;
        Ok(Self {
            signer: Signer::Made(der),
            fingerprint,
        })
    }

    /// The content of the partition for a root hash.
    fn content(&self, root: &RootHash) -> Result<Vec<u8>> {
        let der = match &self.signer {
            Signer::Made(der) => der.clone(),
            Signer::Files { key, certificate } => {
                openssl::sign(&root.to_string(), key, certificate)?
            }
        };
        let object = json!({
            "rootHash": root.to_string(),
            "certificateFingerprint": HEXLOWER.encode(&self.fingerprint),
            "signature": BASE64.encode(&der),
        });
        let mut bytes = object.to_string().into_bytes();
        bytes.resize(bytes.len().next_multiple_of(UNIT), 0);
        Ok(bytes)
    }
}

/// The fields of a partition for a signature.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    root_hash: String,
    certificate_fingerprint: String,
    signature: String,
}

fn verified(partition: &Path, certificate: &Path) -> Result<RootHash> {
    let device = image::open_device(partition, true)?;
    let size = device.size().min(2 * SIGNATURE_MAX as u64);
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    device.read_at(0, &mut bytes)?;
    let end = bytes.iter().position(|byte| *byte == 0);
    let json = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
    let stored = serde_json::from_slice::<Stored>(json).ok();
    let no_signature = DiskError::Signature("the partition has no signature of a root hash");
    let Some((stored, der)) = stored.and_then(|stored| {
        let der = BASE64.decode(stored.signature.as_bytes()).ok()?;
        Some((stored, der))
    }) else {
        return Err(no_signature);
    };
    let root: RootHash = stored.root_hash.parse().map_err(|_| no_signature)?;
    let fingerprint = HEXLOWER.encode(&fingerprint_of(certificate)?);
    if !stored
        .certificate_fingerprint
        .eq_ignore_ascii_case(&fingerprint)
    {
        return Err(DiskError::Signature(
            "the signature is by another certificate",
        ));
    }
    openssl::verify(&root.to_string(), &der, certificate)?;
    Ok(root)
}

/// The SHA-256 of a certificate in PEM.
fn fingerprint_of(path: &Path) -> Result<[u8; 32]> {
    let text = std::fs::read(path).map_err(|source| DiskError::File {
        path: path.to_owned(),
        source,
    })?;
    let der = pem(&text, CERTIFICATE);
    let der = der.ok_or_else(|| DiskError::Certificate(path.to_owned()))?;
    Ok(Sha256::digest(&der).into())
}

/// The DER of a signature that may be PEM.
fn der_of(bytes: &[u8]) -> Option<Vec<u8>> {
    if bytes.first() == Some(&SEQUENCE) {
        return Some(bytes.to_vec());
    }
    pem(bytes, PEM[0])
}

/// The DER of the first block that begins with this line.
fn pem(bytes: &[u8], begin: &str) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut lines = text.lines().skip_while(|line| !line.starts_with(begin));
    lines.next()?;
    let body: String = lines
        .take_while(|line| !line.starts_with(PEM[1]))
        .flat_map(|line| line.chars())
        .filter(|char| !char.is_ascii_whitespace())
        .collect();
    let der = BASE64.decode(body.as_bytes()).ok()?;
    (der.first() == Some(&SEQUENCE)).then_some(der)
}

/// Name of the partition with the signature.
pub(super) fn partition_name(data: &str) -> String {
    format!("{data}-verity-sig")
}

impl DiskBuilder {
    /// Adds the partitions of signatures that are not there. They follow all others, so the other
    /// partitions are the same on a disk without signatures.
    pub(super) fn add_signature_partitions(&mut self) -> Result<()> {
        for index in 0..self.partitions.len() {
            let Some(partition) = self.partitions.get(index) else {
                break;
            };
            if partition.signature.is_none() {
                continue;
            }
            if partition.verity.is_none() {
                let (name, why) = (partition.name.clone(), "a signature needs a hash tree");
                return Err(DiskError::Layers { name, why });
            }
            let name = partition_name(&partition.name);
            let kind = signature_type(partition.gpt_type());
            let has_types = self.from.is_some();
            match self.partitions.iter_mut().find(|other| other.name == name) {
                None => self.partitions.push(NewPartition {
                    name,
                    kind,
                    ..NewPartition::default()
                }),
                Some(there) => {
                    let plain = there.key.is_none() && there.verity.is_none();
                    if !plain || !matches!(there.content, PartitionContent::Empty) {
                        let why = "the partition of a signature has no other content";
                        return Err(DiskError::Layers { name, why });
                    }
                    if !has_types {
                        there.kind = there.kind.or(kind);
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes the contents of the partitions with signatures.
    pub(super) fn build_signatures(
        &self,
        built: &mut [Built],
        roots: &[Option<RootHash>],
        new: &NewFile,
    ) -> Result<()> {
        for (partition, root) in self.partitions.iter().zip(roots) {
            let (Some(signature), Some(root)) = (&partition.signature, root) else {
                continue;
            };
            let name = partition_name(&partition.name);
            let mut all = self.partitions.iter();
            let at = all.position(|other| other.name == name);
            let Some(place) = at.and_then(|at| built.get_mut(at)) else {
                continue;
            };
            let made = new.scratch()?;
            let written = made.file().write_all_at(&signature.content(root)?, 0);
            written.map_err(|source| DiskError::File {
                path: new.path().to_owned(),
                source,
            })?;
            *place = Built::Made(made);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_der_or_pem() {
        let finger = "0A:".repeat(31) + "ff";
        let der = RootSignature::new(&[SEQUENCE, 1, 0], &finger).unwrap();
        assert_eq!(der.fingerprint[..2], [10, 10]);
        let pem = "text\n-----BEGIN PKCS7-----\nMAEA\n-----END PKCS7-----\n";
        assert_eq!(RootSignature::new(pem.as_bytes(), &finger).unwrap(), der);
        for (bytes, finger) in [
            (&b""[..], &*finger),
            (b"text", &finger),
            (b"-----BEGIN PKCS7-----\n%\n-----END PKCS7-----\n", &finger),
            (&[SEQUENCE], "00"),
            (&[SEQUENCE], "zz"),
        ] {
            assert!(RootSignature::new(bytes, finger).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn the_content_is_padded_with_nul_bytes() {
        let signature = RootSignature::new(&[SEQUENCE, 0], &"11".repeat(32)).unwrap();
        let content = signature.content(&RootHash(vec![0xab; 32])).unwrap();
        assert_eq!(content.len(), UNIT);
        let end = content.iter().position(|byte| *byte == 0).unwrap();
        assert!(content[end..].iter().all(|byte| *byte == 0));
        let object: serde_json::Value = serde_json::from_slice(&content[..end]).unwrap();
        assert_eq!(object["rootHash"], "ab".repeat(32));
        assert_eq!(object["certificateFingerprint"], "11".repeat(32));
        assert_eq!(object["signature"], "MAA=");
    }
}
