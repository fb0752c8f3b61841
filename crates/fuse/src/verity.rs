//! The ioctls of fs-verity, which Linux passes on since version 6.10.
//!
//! Facts (kernel documentation, `filesystems/fsverity.rst`, and `linux/fsverity.h`): the argument of
//! `FS_IOC_ENABLE_VERITY` has pointers to a salt and a signature. FUSE sends their bytes after the
//! argument. `FS_IOC_MEASURE_VERITY` has the room for a digest in its argument, and FUSE sends and
//! expects the whole buffer.

use sapwood_verity::{
    Algorithm, DESCRIPTOR_MAX, DESCRIPTOR_SIZE, Descriptor, FileParams, ReadFailure, SALT_MAX,
    build_file,
};
use sapwood_vfs::{Error, FileKind, FileSystem, Ino, read_padded};

use crate::request::{Caller, Reply};

/// `_IOW('f', 133, struct fsverity_enable_arg)`
pub(crate) const ENABLE: u32 = 0x4080_6685;
/// `_IOWR('f', 134, struct fsverity_digest)`
pub(crate) const MEASURE: u32 = 0xc004_6686;

/// Bytes of `struct fsverity_enable_arg`.
const ARGUMENT: usize = 128;
/// Bytes of `struct fsverity_digest` before the digest.
const DIGEST_HEADER: usize = 4;
/// Most bytes of a signature.
const SIGNATURE_MAX: usize = DESCRIPTOR_MAX - DESCRIPTOR_SIZE;
/// Owner's right to write.
const OWNER_WRITES: u32 = 0o200;

/// Refuses a caller that may not give a file a hash tree: it must own the file and have the right to
/// write, or be root. The kernel checks neither.
///
/// # Errors
/// `EACCES`.
pub(crate) fn check_may_enable(who: Caller, owner: u32, perm: u32) -> Reply<()> {
    let owner = who.uid == owner && perm & OWNER_WRITES != 0;
    if who.uid == 0 || owner {
        Ok(())
    } else {
        Err(libc::EACCES)
    }
}

/// Gives a file a hash tree, durably.
///
/// # Errors
/// `EINVAL`, `EMSGSIZE` for an argument that makes no sense; errors of the engine.
pub(crate) fn enable(fs: &dyn FileSystem, ino: Ino, input: &[u8]) -> Reply<()> {
    let (params, signature) = parse(input)?;
    let attr = fs.getattr(ino).map_err(errno)?;
    if attr.kind == FileKind::Directory {
        return Err(libc::EISDIR);
    }
    match fs.verity_descriptor(ino) {
        Ok(_) => return Err(libc::EEXIST),
        Err(Error::NoAttribute) => {}
        Err(error) => return Err(errno(error)),
    }
    let built = build_file(&params, attr.size, &mut |at, buf| {
        read_padded(fs, ino, at, buf).map_err(ReadFailure::Read)
    });
    let (tree, mut descriptor) = built.map_err(|failure| match failure {
        ReadFailure::Read(error) => errno(error),
        ReadFailure::Verity(_) => libc::EINVAL,
    })?;
    descriptor.signature = signature.to_vec();
    fs.store_verity(ino, &tree, &descriptor.bytes())
        .map_err(errno)
}

/// The digest of a file, as `struct fsverity_digest`.
///
/// # Errors
/// `ENODATA` for a file without a hash tree; `EOVERFLOW` if the buffer is too small.
pub(crate) fn measure(fs: &dyn FileSystem, ino: Ino, input: &[u8]) -> Reply<Vec<u8>> {
    let stored = fs.verity_descriptor(ino).map_err(errno)?;
    let descriptor = Descriptor::parse(&stored).map_err(|_| libc::EIO)?;
    let digest = descriptor.digest();
    let size = u16::try_from(digest.bytes.len()).map_err(|_| libc::EIO)?;
    let room = input.get(2..DIGEST_HEADER).and_then(<[u8]>::first_chunk);
    if room.is_none_or(|room| u16::from_ne_bytes(*room) < size) {
        return Err(libc::EOVERFLOW);
    }
    let number = u16::from(digest.algorithm.number());
    let mut output = number.to_ne_bytes().to_vec();
    output.extend_from_slice(&size.to_ne_bytes());
    output.extend_from_slice(&digest.bytes);
    Ok(output)
}

/// The parameters and the signature.
fn parse(input: &[u8]) -> Reply<(FileParams, &[u8])> {
    let (argument, rest) = input.split_first_chunk::<ARGUMENT>().ok_or(libc::EINVAL)?;
    let word = |at: usize| {
        let bytes = argument.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    };
    let [version, algorithm, block_size, salt, signature, reserved] =
        [0, 4, 8, 12, 24, 28].map(word);
    let tail = argument.get(40..).unwrap_or_default();
    if version != 1 || reserved != 0 || tail.iter().any(|byte| *byte != 0) {
        return Err(libc::EINVAL);
    }
    let algorithm = u8::try_from(algorithm)
        .ok()
        .and_then(Algorithm::from_number);
    let algorithm = algorithm.ok_or(libc::EINVAL)?;
    let (salt, signature) = (salt as usize, signature as usize);
    if salt > SALT_MAX || signature > SIGNATURE_MAX {
        return Err(libc::EMSGSIZE);
    }
    let (salt, rest) = rest.split_at_checked(salt).ok_or(libc::EINVAL)?;
    let signature = rest.get(..signature).ok_or(libc::EINVAL)?;
    let params = FileParams {
        algorithm,
        block_size,
        salt: salt.to_vec(),
    };
    params.check().map_err(|_| libc::EINVAL)?;
    Ok((params, signature))
}

fn errno(error: Error) -> i32 {
    match error {
        Error::NotSupported => libc::EOPNOTSUPP,
        other => other.errno(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(salt: &[u8], signature: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [1, 1, 4096, u32::try_from(salt.len()).unwrap()] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(&77_u64.to_ne_bytes());
        let len = u32::try_from(signature.len()).unwrap();
        bytes.extend_from_slice(&len.to_ne_bytes());
        bytes.resize(ARGUMENT, 0);
        [&bytes[..], salt, signature].concat()
    }

    #[test]
    fn an_argument_has_its_buffers_after_it() {
        let input = argument(b"salt", b"sig");
        let (params, signature) = parse(&input).unwrap();
        assert_eq!((&params.salt[..], signature), (&b"salt"[..], &b"sig"[..]));
        assert_eq!(params.block_size, 4096);
        assert_eq!(parse(&input[..input.len() - 1]), Err(libc::EINVAL));
        assert_eq!(parse(&input[..100]), Err(libc::EINVAL));
        assert_eq!(parse(&argument(&[0; 33], b"")), Err(libc::EMSGSIZE));
        assert_eq!(parse(&argument(b"", &[0; 16129])), Err(libc::EMSGSIZE));
        for (at, value) in [(0, 2), (4, 9), (8, 3), (28, 1), (100, 1)] {
            let mut wrong = input.clone();
            wrong[at] = value;
            assert_eq!(parse(&wrong), Err(libc::EINVAL), "{at}");
        }
    }

    #[test]
    fn only_an_owner_that_may_write_seals() {
        let who = |uid| Caller {
            uid,
            gid: uid,
            umask: 0,
            pid: 1,
        };
        assert!(check_may_enable(who(0), 7, 0).is_ok());
        assert!(check_may_enable(who(7), 7, 0o600).is_ok());
        assert!(check_may_enable(who(7), 7, 0o400).is_err());
        assert!(check_may_enable(who(8), 7, 0o666).is_err());
    }
}
