//! fs-verity: hash trees of files, as `fsverity digest` and the kernel compute them.
//!
//! Facts (kernel documentation, `filesystems/fsverity.rst`): a tree has a digest of each block of the
//! file, the last one padded with zeros, and digests of these blocks of digests, up to one block. The
//! salt, padded with zeros to the input size of the digest's compression function, comes before each
//! block. The root hash is the digest of the top block, of the only block of a file, or zeros for an
//! empty file. The highest level comes first. The *digest of the file* is the digest of a descriptor
//! of 256 bytes, with the size of the signature taken as zero.

use std::fmt;

use data_encoding::HEXLOWER;

use crate::digest::Algorithm;
use crate::{Error, Result};

/// Bytes of a descriptor without its signature.
pub const DESCRIPTOR_SIZE: usize = 256;
/// Most bytes of a descriptor with its signature.
pub const DESCRIPTOR_MAX: usize = 16384;
/// Version of the descriptor.
const VERSION: u8 = 1;
/// Most bytes of a salt.
pub const SALT_MAX: usize = 32;
/// Sizes of blocks, as powers of two.
const LOG_BLOCK: std::ops::RangeInclusive<u8> = 10..=16;

/// Bytes of a file that are read at a time, a multiple of every size of blocks.
const PIECE: usize = 1 << 20;

/// Offsets of the fields of a descriptor.
mod at {
    pub(super) const ALGORITHM: usize = 1;
    pub(super) const LOG_BLOCK: usize = 2;
    pub(super) const SALT_SIZE: usize = 3;
    pub(super) const SIGNATURE_SIZE: usize = 4;
    pub(super) const DATA_SIZE: usize = 8;
    pub(super) const ROOT: usize = 16;
    pub(super) const SALT: usize = 80;
}

/// Parameters of the hash tree of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileParams {
    /// Digest.
    pub algorithm: Algorithm,
    /// Bytes of a block, of data and of digests: a power of two from 1024 to 65536.
    pub block_size: u32,
    /// Salt, at most 32 bytes.
    pub salt: Vec<u8>,
}

impl Default for FileParams {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Sha256,
            block_size: 4096,
            salt: Vec::new(),
        }
    }
}

impl FileParams {
    /// Fails for parameters that fs-verity does not have.
    ///
    /// # Errors
    /// [`Error::FileBlockSize`], [`Error::FileSalt`].
    pub fn check(&self) -> Result<()> {
        let log = u8::try_from(self.block_size.trailing_zeros()).unwrap_or(u8::MAX);
        if !self.block_size.is_power_of_two() || !LOG_BLOCK.contains(&log) {
            return Err(Error::FileBlockSize(self.block_size));
        }
        if self.salt.len() > SALT_MAX {
            return Err(Error::FileSalt(self.salt.len()));
        }
        Ok(())
    }

    /// The digest of a block.
    fn digest(&self, block: &[u8]) -> Vec<u8> {
        let input = match self.algorithm {
            Algorithm::Sha256 => 64,
            Algorithm::Sha512 => 128,
        };
        let mut salt = self.salt.clone();
        salt.resize(salt.len().next_multiple_of(input), 0);
        self.algorithm.digest(&salt, block)
    }

    /// Digests of a block, at least 2.
    fn digests_per_block(&self) -> u64 {
        (u64::from(self.block_size) / self.algorithm.size() as u64).max(2)
    }
}

/// The descriptor of a file with a hash tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Parameters of the tree.
    pub params: FileParams,
    /// Bytes of the file.
    pub data_size: u64,
    /// Root hash.
    pub root: Vec<u8>,
    /// Built-in signature of the digest, as DER; empty for none.
    pub signature: Vec<u8>,
}

impl Descriptor {
    /// Reads a stored descriptor.
    ///
    /// # Errors
    /// [`Error::Descriptor`]: a field makes no sense.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let (fixed, signature) = bytes
            .split_first_chunk::<DESCRIPTOR_SIZE>()
            .ok_or(Error::Descriptor("size"))?;
        let size = fixed[at::SIGNATURE_SIZE..].first_chunk();
        let size = size.map_or(0, |size| u32::from_le_bytes(*size));
        if size as usize != signature.len() {
            return Err(Error::Descriptor("size of the signature"));
        }
        Ok(Self {
            signature: signature.to_vec(),
            ..Self::parse_fixed(fixed)?
        })
    }

    /// Reads a descriptor without its signature.
    ///
    /// # Errors
    /// [`Error::Descriptor`]: a field makes no sense.
    pub fn parse_fixed(fixed: &[u8; DESCRIPTOR_SIZE]) -> Result<Self> {
        let bad = Error::Descriptor;
        if fixed[0] != VERSION {
            return Err(bad("version"));
        }
        let algorithm = Algorithm::from_number(fixed[at::ALGORITHM]).ok_or(bad("algorithm"))?;
        let log = fixed[at::LOG_BLOCK];
        let block_size = LOG_BLOCK.contains(&log).then(|| 1 << log);
        let salt_size = usize::from(fixed[at::SALT_SIZE]);
        let salt = (salt_size <= SALT_MAX).then(|| &fixed[at::SALT..at::SALT + salt_size]);
        let data_size = fixed[at::DATA_SIZE..].first_chunk();
        Ok(Self {
            params: FileParams {
                algorithm,
                block_size: block_size.ok_or(bad("block size"))?,
                salt: salt.ok_or(bad("salt"))?.to_vec(),
            },
            data_size: data_size.map_or(0, |size| u64::from_le_bytes(*size)),
            root: fixed[at::ROOT..at::ROOT + algorithm.size()].to_vec(),
            signature: Vec::new(),
        })
    }

    fn fixed(&self, signature: usize) -> [u8; DESCRIPTOR_SIZE] {
        let mut bytes = [0; DESCRIPTOR_SIZE];
        bytes[0] = VERSION;
        bytes[at::ALGORITHM] = match self.params.algorithm {
            Algorithm::Sha256 => 1,
            Algorithm::Sha512 => 2,
        };
        bytes[at::LOG_BLOCK] = u8::try_from(self.params.block_size.trailing_zeros()).unwrap_or(0);
        bytes[at::SALT_SIZE] = u8::try_from(self.params.salt.len()).unwrap_or(0);
        let mut put = |offset: usize, field: &[u8]| {
            if let Some(place) = bytes.get_mut(offset..offset + field.len()) {
                place.copy_from_slice(field);
            }
        };
        put(
            at::SIGNATURE_SIZE,
            &u32::try_from(signature).unwrap_or(0).to_le_bytes(),
        );
        put(at::DATA_SIZE, &self.data_size.to_le_bytes());
        put(at::ROOT, &self.root);
        put(at::SALT, &self.params.salt);
        bytes
    }

    /// The descriptor as it is stored, with its signature.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.fixed(self.signature.len()).to_vec();
        bytes.extend_from_slice(&self.signature);
        bytes
    }

    /// The digest of the file, which a signature signs.
    #[must_use]
    pub fn digest(&self) -> FileDigest {
        let algorithm = self.params.algorithm;
        FileDigest {
            algorithm,
            bytes: algorithm.digest(&[], &self.fixed(0)),
        }
    }
}

/// The digest of a file. Text: `sha256:HEX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDigest {
    /// Digest.
    pub algorithm: Algorithm,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl fmt::Display for FileDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm, HEXLOWER.encode(&self.bytes))
    }
}

/// Places of the levels of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLayout {
    /// First block and number of blocks of each level; the lowest level, with the digests of the
    /// data, comes first here and last in the tree.
    levels: Vec<(u64, u64)>,
    block_size: u64,
}

impl FileLayout {
    /// The layout for a file of this many bytes.
    #[must_use]
    pub fn new(params: &FileParams, data_size: u64) -> Self {
        let block_size = u64::from(params.block_size).max(1);
        let each = params.digests_per_block();
        let mut count = data_size.div_ceil(block_size);
        let mut levels = Vec::new();
        while count > 1 {
            count = count.div_ceil(each);
            levels.push((0, count));
        }
        let mut start = 0;
        for (first, blocks) in levels.iter_mut().rev() {
            *first = start;
            start += *blocks;
        }
        Self { levels, block_size }
    }

    /// Bytes of the tree.
    #[must_use]
    pub fn size(&self) -> u64 {
        let blocks: u64 = self.levels.iter().map(|(_, blocks)| blocks).sum();
        blocks.saturating_mul(self.block_size)
    }
}

/// Fills a buffer from a byte offset on.
pub type ReadBytes<'r, E> = dyn FnMut(u64, &mut [u8]) -> Result<(), E> + 'r;

/// Builds the tree of a file, in memory: it has a 127th of the file's bytes. `read` fills a buffer
/// from an offset of the file, with zeros after the end.
///
/// # Errors
/// The errors of `read`, and of [`FileParams::check`].
pub fn build_file<E: From<Error>>(
    params: &FileParams,
    data_size: u64,
    read: &mut ReadBytes<'_, E>,
) -> Result<(Vec<u8>, Descriptor), E> {
    params.check()?;
    let layout = FileLayout::new(params, data_size);
    let size = params.block_size as usize;
    let mut piece = vec![0; PIECE];
    let mut digests = Vec::new();
    let mut offset = 0;
    while offset < data_size {
        let left = usize::try_from(data_size - offset).unwrap_or(PIECE);
        let used = left.min(PIECE).next_multiple_of(size).min(PIECE);
        let blocks = piece.get_mut(..used).unwrap_or_default();
        read(offset, blocks)?;
        for block in blocks.chunks(size) {
            digests.extend_from_slice(&params.digest(block));
        }
        offset = offset.saturating_add(used as u64);
    }
    let mut levels: Vec<Vec<u8>> = Vec::new();
    for _ in &layout.levels {
        digests.resize(digests.len().next_multiple_of(size), 0);
        let above: Vec<u8> = digests
            .chunks(size)
            .flat_map(|block| params.digest(block))
            .collect();
        levels.push(std::mem::replace(&mut digests, above));
    }
    levels.reverse();
    digests.resize(params.algorithm.size(), 0);
    let descriptor = Descriptor {
        params: params.clone(),
        data_size,
        root: digests,
        signature: Vec::new(),
    };
    Ok((levels.concat(), descriptor))
}

/// Verifies whole blocks of a file, from block `first` on; the last one is padded with zeros.
/// `read_tree` fills a buffer from an offset of the tree.
///
/// # Errors
/// [`Error::FileMismatch`]; the errors of `read_tree`.
fn verify_file<E: From<Error>>(
    descriptor: &Descriptor,
    first: u64,
    blocks: &[u8],
    read_tree: &mut ReadBytes<'_, E>,
) -> Result<(), E> {
    let params = &descriptor.params;
    let layout = FileLayout::new(params, descriptor.data_size);
    let mut path = Path {
        descriptor,
        layout: &layout,
        known: vec![None; layout.levels.len()],
        read_tree,
    };
    for (index, block) in (first..).zip(blocks.chunks(params.block_size as usize)) {
        let expected = path.digest_of(0, index)?;
        if params.digest(block) != expected {
            return Err(Error::FileMismatch {
                what: "data",
                block: index,
            }
            .into());
        }
    }
    Ok(())
}

/// A failure to read the bytes to verify, or a difference.
#[derive(Debug)]
pub enum ReadFailure<E> {
    /// The bytes of the file or of the tree cannot be read.
    Read(E),
    /// The descriptor, the file or its tree is wrong.
    Verity(Error),
}

impl<E> From<Error> for ReadFailure<E> {
    fn from(error: Error) -> Self {
        Self::Verity(error)
    }
}

/// Fills `buf`, which ends at the end of the file or before, with verified bytes from `offset` on.
/// `read` fills a buffer from an offset of the file, up to its end; `read_tree` from an offset of
/// the tree.
///
/// # Errors
/// [`Error::FileMismatch`]; the errors of `read` and `read_tree`.
pub fn read_verified<E>(
    descriptor: &Descriptor,
    offset: u64,
    buf: &mut [u8],
    read: &mut ReadBytes<'_, E>,
    read_tree: &mut ReadBytes<'_, E>,
) -> Result<(), ReadFailure<E>> {
    let block = u64::from(descriptor.params.block_size).max(1);
    let start = offset - offset % block;
    let end = offset.saturating_add(buf.len() as u64);
    let whole = end.next_multiple_of(block).saturating_sub(start);
    let used = descriptor.data_size.min(start.saturating_add(whole));
    let used = usize::try_from(used.saturating_sub(start)).unwrap_or_default();
    let mut bytes = vec![0; usize::try_from(whole).unwrap_or_default()];
    let part = bytes.get_mut(..used).unwrap_or_default();
    read(start, part).map_err(ReadFailure::Read)?;
    verify_file(descriptor, start / block, &bytes, &mut |at, piece| {
        read_tree(at, piece).map_err(ReadFailure::Read)
    })?;
    let skipped = usize::try_from(offset - start).unwrap_or_default();
    if let Some(found) = bytes.get(skipped..skipped + buf.len()) {
        buf.copy_from_slice(found);
    }
    Ok(())
}

/// The verified blocks of the tree from one block of data up.
struct Path<'d, 'r, E> {
    descriptor: &'d Descriptor,
    layout: &'d FileLayout,
    /// For each level the number of a block in the level, and its bytes.
    known: Vec<Option<(u64, Vec<u8>)>>,
    read_tree: &'r mut ReadBytes<'r, E>,
}

impl<E: From<Error>> Path<'_, '_, E> {
    /// The digest that block `index` below a level must have.
    fn digest_of(&mut self, level: usize, index: u64) -> Result<Vec<u8>, E> {
        let params = &self.descriptor.params;
        let Some(&(start, count)) = self.layout.levels.get(level) else {
            return Ok(self.descriptor.root.clone());
        };
        let each = params.digests_per_block();
        let number = index / each;
        let mismatch = |block| Error::FileMismatch {
            what: "the hash tree",
            block,
        };
        let place = start.saturating_add(number);
        if number >= count {
            return Err(mismatch(place).into());
        }
        let is_known = |known: &Option<(u64, Vec<u8>)>| {
            known.as_ref().is_some_and(|(found, _)| *found == number)
        };
        if !self.known.get(level).is_some_and(is_known) {
            let mut bytes = vec![0; params.block_size as usize];
            (self.read_tree)(place.saturating_mul(self.layout.block_size), &mut bytes)?;
            if params.digest(&bytes) != self.digest_of(level + 1, number)? {
                return Err(mismatch(place).into());
            }
            if let Some(known) = self.known.get_mut(level) {
                *known = Some((number, bytes));
            }
        }
        let size = params.algorithm.size();
        let begin = usize::try_from(index % each).unwrap_or(0) * size;
        let block = self.known.get(level).and_then(Option::as_ref);
        let digest = block.and_then(|(_, bytes)| bytes.get(begin..begin + size));
        Ok(digest.ok_or_else(|| mismatch(place))?.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(params: &FileParams, data: &[u8]) -> (Vec<u8>, Descriptor) {
        build_file::<Error>(params, data.len() as u64, &mut |at, buf| {
            fill(data, at, buf);
            Ok(())
        })
        .unwrap()
    }

    fn fill(data: &[u8], at: u64, buf: &mut [u8]) {
        buf.fill(0);
        let rest = &data[data.len().min(at as usize)..];
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
    }

    fn verify(tree: &[u8], descriptor: &Descriptor, data: &[u8]) -> Result<()> {
        let size = descriptor.params.block_size as usize;
        let mut padded = data.to_vec();
        padded.resize(data.len().next_multiple_of(size), 0);
        verify_file::<Error>(descriptor, 0, &padded, &mut |at, buf| {
            fill(tree, at, buf);
            Ok(())
        })
    }

    fn data(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * 7 + n / 4096) as u8).collect()
    }

    /// Digests that `fsverity digest` 1.5 prints: bytes of the file, block size, salt, digest.
    const KNOWN: &[(usize, u32, &[u8], &str)] = &[
        (
            0,
            4096,
            b"",
            "sha256:3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95",
        ),
        (
            1,
            1024,
            SALT,
            "sha256:ba80b0ca654624909ce971c53e2517702329b48bd2a864a8ad13c3b076cdcd95",
        ),
        (
            4096,
            4096,
            b"",
            "sha256:87a706bdba32be89a173dc11d6a91c08165b4dcfcf743988c94595e82934a41a",
        ),
        (
            5000,
            4096,
            b"salt",
            "sha512:bd1684b7bde3a46b7322b1ac430c28f9f9d5285f583b26de6448275fa047392f\
             a9ff55dc50021f536f1a1bb28d33d43b17ea32b58561b549e39396d83f38b2f9",
        ),
        (
            1_200_000,
            4096,
            b"",
            "sha256:c8cef701485cd28f701d01a73389dcb98d3d4ed381be9de74ff4530526bc1046",
        ),
        (
            1_200_000,
            1024,
            SALT,
            "sha256:29c07eaf091cfdb78da0400ad3dfe99ba48745cd14f99ed142c37cbdc39ada27",
        ),
        (
            1_200_000,
            4096,
            b"salt",
            "sha512:2fd80ab13b73222d3388d0206ee3cf673866f0ad717ecd956098fedcaba4a6a2\
             4cd74cd1f8f28d26270e76d683433dae8b097395350af70a6f550387abf887cb",
        ),
    ];
    const SALT: &[u8] = &[0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99];

    #[test]
    fn digests_are_the_digests_of_the_tool() {
        for (len, block_size, salt, known) in KNOWN {
            let params = FileParams {
                algorithm: known.split(':').next().unwrap().parse().unwrap(),
                block_size: *block_size,
                salt: salt.to_vec(),
            };
            let (_, descriptor) = build(&params, &data(*len));
            assert_eq!(descriptor.digest().to_string(), *known, "{len}");
        }
    }

    #[test]
    fn every_wrong_byte_is_found() {
        for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
            for (block_size, len) in [
                (1024, 40_000),
                (4096, 5000),
                (4096, 4096),
                (1024, 1_200_000),
            ] {
                let params = FileParams {
                    algorithm,
                    block_size,
                    salt: b"salt".to_vec(),
                };
                let data = data(len);
                let (tree, descriptor) = build(&params, &data);
                assert_eq!(
                    tree.len() as u64,
                    FileLayout::new(&params, len as u64).size()
                );
                verify(&tree, &descriptor, &data).unwrap();
                for at in [0, len / 2, len - 1] {
                    let mut wrong = data.clone();
                    wrong[at] ^= 1;
                    assert!(verify(&tree, &descriptor, &wrong).is_err(), "{len} {at}");
                }
                for at in (0..tree.len()).step_by(997) {
                    let mut wrong = tree.clone();
                    wrong[at] ^= 1;
                    let found = verify(&wrong, &descriptor, &data).is_err();
                    assert!(found, "{len}: byte {at} of the tree");
                }
            }
        }
    }

    #[test]
    fn descriptors_are_stored_and_read() {
        let params = FileParams {
            salt: vec![9; 32],
            ..FileParams::default()
        };
        let (_, mut descriptor) = build(&params, &data(100_000));
        let digest = descriptor.digest();
        descriptor.signature = vec![3; 700];
        let bytes = descriptor.bytes();
        assert_eq!(bytes.len(), DESCRIPTOR_SIZE + 700);
        let read = Descriptor::parse(&bytes).unwrap();
        assert_eq!(read, descriptor);
        assert_eq!(read.digest(), digest, "without the signature");
        for (offset, value) in [(0, 2), (1, 9), (2, 9), (2, 40), (3, 33), (4, 1)] {
            let mut bad = bytes.clone();
            bad[offset] = value;
            assert!(Descriptor::parse(&bad).is_err(), "{offset}");
        }
        assert!(Descriptor::parse(&bytes[..255]).is_err());
    }

    #[test]
    fn parameters_are_checked() {
        for block_size in [0, 512, 4095, 131_072] {
            let params = FileParams {
                block_size,
                ..FileParams::default()
            };
            assert!(params.check().is_err(), "{block_size}");
        }
        let params = FileParams {
            salt: vec![0; 33],
            ..FileParams::default()
        };
        assert!(params.check().is_err());
    }
}
