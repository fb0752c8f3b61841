//! `sapwood verity`: hash trees of images (dm-verity) and of files (fs-verity).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use sapwood::verity::{Algorithm, FileParams, Header, Params, RootHash, VerityTree};
use sapwood::{Progress, RootSignature};
use serde_json::json;

use super::choice::SubvolumeChoice;
use super::failure::{Failure, Result, USAGE};
use super::{files, interrupt, output, progress};

/// For `sapwood help verity enable`.
pub(super) const ENABLE_EXAMPLES: &[(&str, &str)] = &[(
    "sapwood verity enable root.img:/usr/bin/app",
    "makes the file immutable, and prints its digest",
)];

/// For `sapwood help verity measure`.
pub(super) const MEASURE_EXAMPLES: &[(&str, &str)] = &[(
    "sapwood verity measure 'root.img:/usr/bin/*'",
    "digests of files with a hash tree",
)];

/// Most bytes of a signature: a descriptor has at most 16384 bytes, 256 of them before the signature.
const SIGNATURE_MAX: usize = 16384 - 256;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Make the hash tree of an image, and print its root hash
    Format {
        /// Image, which is only read
        image: PathBuf,
        /// Hash device: a file that is made or replaced, or an existing device or partition
        hashes: PathBuf,
        #[command(flatten)]
        tree: Tree,
        /// Also write the root hash to a file
        #[arg(long, value_name = "FILE")]
        root_hash_file: Option<PathBuf>,
        /// No progress
        #[arg(short, long)]
        quiet: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Verify all blocks of an image
    Verify {
        /// Image
        image: PathBuf,
        /// Hash device [default for an image DISK#NAME: DISK#NAME-verity]
        #[arg(value_name = "TREE")]
        hashes: Option<PathBuf>,
        /// Root hash in hexadecimal
        #[arg(value_name = "ROOT", required_unless_present_any = ["root_hash_file", "certificate"])]
        root_hash: Option<RootHash>,
        /// Read the root hash from the partition DISK#NAME-verity-sig, and verify that the key of
        /// this certificate, a PEM file, signed it; runs the program openssl
        #[arg(long, value_name = "FILE", conflicts_with_all = ["root_hash", "root_hash_file"])]
        certificate: Option<PathBuf>,
        /// Read the root hash from a file
        #[arg(long, value_name = "FILE", conflicts_with = "root_hash")]
        root_hash_file: Option<PathBuf>,
        /// Print nothing
        #[arg(short, long)]
        quiet: bool,
    },
    /// Give files a hash tree of fs-verity: their content can never change again, and every
    /// read is verified. Prints the digests, as `fsverity digest` computes them
    Enable {
        /// Files: IMAGE:PATH; a name may be a pattern
        #[arg(value_name = "PLACE", required = true)]
        places: Vec<OsString>,
        /// Digest: sha256 or sha512
        #[arg(long, value_name = "NAME", default_value = "sha256")]
        hash_alg: Algorithm,
        /// Bytes of a block, at most a block of the file system [default: 4096, or a block of it]
        #[arg(long, value_name = "BYTES")]
        block_size: Option<u32>,
        /// Salt in hexadecimal, at most 32 bytes
        #[arg(long, value_name = "HEX", default_value = "")]
        salt: String,
        /// Store this signature of the digest, as `fsverity sign` makes it, with one file
        #[arg(long, value_name = "FILE")]
        signature: Option<PathBuf>,
        /// Print nothing
        #[arg(short, long)]
        quiet: bool,
    },
    /// Print the digests of files with a hash tree of fs-verity
    Measure {
        /// Files: IMAGE:PATH; a name may be a pattern
        #[arg(value_name = "PLACE", required = true)]
        places: Vec<OsString>,
    },
    /// Show the superblock of a hash device
    Dump {
        /// Hash device
        hashes: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// What a tree is made of.
#[derive(Debug, clap::Args)]
pub(super) struct Tree {
    /// Digest: sha256 or sha512
    #[arg(long, value_name = "NAME", default_value = "sha256")]
    hash: Algorithm,
    /// Bytes of a data block
    #[arg(long, value_name = "BYTES", default_value = "4096")]
    data_block_size: u32,
    /// Bytes of a hash block
    #[arg(long, value_name = "BYTES", default_value = "4096")]
    hash_block_size: u32,
    /// Salt in hexadecimal; - for none [default: 32 random bytes; none with SOURCE_DATE_EPOCH]
    #[arg(long, value_name = "HEX", allow_hyphen_values = true)]
    salt: Option<String>,
    /// UUID of the hash device [default: derived from the root hash]
    #[arg(long, value_name = "UUID", value_parser = output::parse_uuid)]
    uuid: Option<[u8; 16]>,
}

impl Tree {
    fn params(&self) -> Result<Params> {
        let mut params = Params {
            algorithm: self.hash,
            data_block: self.data_block_size,
            hash_block: self.hash_block_size,
            salt: Vec::new(),
        };
        let fixed = super::times::source_date_epoch()?.is_some();
        let salt = match &self.salt {
            Some(salt) => salt.clone(),
            None if fixed => "-".to_owned(),
            None => HEXLOWER.encode(&sapwood::verity::random_salt()),
        };
        let set = params.set_salt(&salt);
        set.map_err(|error| Failure::new(USAGE, format_args!("--salt: {error}")))?;
        Ok(params)
    }
}

/// Writes a root hash to a file of its own.
pub(super) fn write_root_hash(file: &Path, root: &RootHash) -> Result<()> {
    let written = std::fs::write(file, format!("{root}\n"));
    written.map_err(|error| Failure::local(file, error))
}

/// Parameters of the hash tree of a new image: no salt with a fixed time.
pub(super) fn params(fixed: bool) -> Params {
    let mut params = Params::default();
    if !fixed {
        params.salt = sapwood::verity::random_salt();
    }
    params
}

pub(super) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Format {
            image,
            hashes,
            tree,
            root_hash_file,
            quiet,
            json,
        } => {
            let made = format(image, hashes, tree, *quiet || *json)?;
            if let Some(file) = root_hash_file {
                write_root_hash(file, &made.root)?;
            }
            if *json {
                let mut object = fields(&made.header);
                object["root_hash"] = made.root.to_string().into();
                return output::object(&object);
            }
            print(hashes, &made.header)?;
            output::line(format_args!("Root hash:       \t{}", made.root))
        }
        Command::Verify {
            image,
            hashes,
            root_hash,
            certificate,
            root_hash_file,
            quiet,
        } => {
            let root = match certificate {
                Some(file) => RootSignature::verify(beside(image, "-verity-sig")?, file)?,
                None => root_of(root_hash.as_ref(), root_hash_file.as_deref())?,
            };
            let hashes = match hashes {
                Some(hashes) => hashes.clone(),
                None => beside(image, "-verity")?,
            };
            verify(image, &hashes, &root, *quiet)
        }
        Command::Enable {
            places,
            hash_alg,
            block_size,
            salt,
            signature,
            quiet,
        } => {
            let params = FileParams {
                algorithm: *hash_alg,
                block_size: block_size.unwrap_or(4096),
                salt: HEXLOWER_PERMISSIVE
                    .decode(salt.as_bytes())
                    .map_err(|error| Failure::new(USAGE, format_args!("--salt: {error}")))?,
            };
            params.check().map_err(|error| Failure::new(USAGE, error))?;
            let signature = signature.as_deref();
            enable(places, (params, block_size.is_some()), signature, *quiet)
        }
        Command::Measure { places } => measure(places),
        Command::Dump { hashes, json } => {
            let header = sapwood::verity::header(hashes)?;
            if *json {
                return output::object(&fields(&header));
            }
            print(hashes, &header)
        }
    }
}

/// Makes a hash tree, with a progress bar unless `quiet`.
fn format(image: &Path, hashes: &Path, tree: &Tree, quiet: bool) -> Result<VerityTree> {
    let (params, uuid) = (tree.params()?, tree.uuid);
    interrupt::abandon_new_files();
    let bar = progress::moved(quiet);
    let made = sapwood::verity::format(image, hashes, &params, uuid, &mut |step| {
        show(&bar, &step);
    });
    bar.finish_and_clear();
    Ok(made?)
}

/// Verifies all blocks of an image.
fn verify(image: &Path, hashes: &Path, root: &RootHash, quiet: bool) -> Result<()> {
    let bar = progress::moved(quiet);
    let verified = sapwood::verity::verify(image, hashes, root, &mut |step| {
        show(&bar, &step);
    });
    bar.finish_and_clear();
    verified?;
    if quiet {
        return Ok(());
    }
    output::line(format_args!("{}: every block is verified", image.display()))
}

/// Gives files hash trees. The size of blocks was given, or depends on the file system.
fn enable(
    places: &[OsString],
    (mut params, has_block_size): (FileParams, bool),
    signature: Option<&Path>,
    quiet: bool,
) -> Result<()> {
    let signature = match signature {
        Some(file) => std::fs::read(file).map_err(|error| Failure::local(file, error))?,
        None => Vec::new(),
    };
    if signature.len() > SIGNATURE_MAX {
        let why = format_args!("a signature has at most {SIGNATURE_MAX} bytes");
        return Err(Failure::new(USAGE, why));
    }
    let mut signed = false;
    files::for_each(places, &SubvolumeChoice::default(), false, |fs, path, _| {
        if !signature.is_empty() && std::mem::replace(&mut signed, true) {
            return Err(Failure::new(USAGE, "--signature is for one file"));
        }
        let usual = fs.verity_block_size().map_err(files::failed)?;
        if !has_block_size {
            params.block_size = usual;
        } else if usual < 4096 && params.block_size > usual {
            let why = format!("--block-size: a block of the file system has {usual} bytes");
            return Err(Failure::new(USAGE, why));
        }
        let digest = fs.enable_verity(path, &params, &signature);
        let digest = digest.map_err(files::failed)?;
        if quiet {
            return Ok(());
        }
        output::line(format_args!("{digest} {}", files::shown_path(path)))
    })
}

/// Prints digests as `fsverity measure` does.
fn measure(places: &[OsString]) -> Result<()> {
    files::for_each(places, &SubvolumeChoice::default(), true, |fs, path, _| {
        let digest = fs.measure_verity(path).map_err(files::failed)?;
        match digest {
            Some(digest) => output::line(format_args!("{digest} {}", files::shown_path(path))),
            None => Err(Failure::local(path, "has no hash tree of fs-verity")),
        }
    })
}

/// The root hash of the command line, or of a file.
fn root_of(given: Option<&RootHash>, file: Option<&Path>) -> Result<RootHash> {
    match (given, file) {
        (Some(root), _) => Ok(root.clone()),
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file);
            let text = text.map_err(|error| Failure::local(file, error))?;
            RootHash::from_str(text.trim()).map_err(|error| Failure::local(file, error))
        }
        (None, None) => Err(Failure::new(USAGE, "a root hash is needed")),
    }
}

/// The partition of the same disk with this end of its name.
fn beside(image: &Path, end: &str) -> Result<PathBuf> {
    let mut name = image.as_os_str().to_owned();
    if !name.as_encoded_bytes().contains(&b'#') {
        let why = format_args!("{}: only a partition DISK#NAME has others", image.display());
        return Err(Failure::new(USAGE, why));
    }
    name.push(end);
    Ok(name.into())
}

fn show(bar: &indicatif::ProgressBar, step: &Progress<'_>) {
    match step {
        Progress::Total(total) => bar.set_length(*total),
        Progress::Done { done, .. } => bar.set_position(*done),
        _ => {}
    }
}

fn fields(header: &Header) -> serde_json::Value {
    json!({
        "uuid": output::uuid(&header.uuid),
        "hash_type": 1,
        "data_blocks": header.data_blocks,
        "data_block_size": header.params.data_block,
        "hash_block_size": header.params.hash_block,
        "hash_algorithm": header.params.algorithm.name(),
        "salt": HEXLOWER.encode(&header.params.salt),
    })
}

/// Prints a superblock as `veritysetup` does.
fn print(hashes: &Path, header: &Header) -> Result<()> {
    let salt = if header.params.salt.is_empty() {
        "-".to_owned()
    } else {
        HEXLOWER.encode(&header.params.salt)
    };
    output::line(format_args!(
        "VERITY header information for {}",
        hashes.display()
    ))?;
    for (name, value) in [
        ("UUID:", output::uuid(&header.uuid)),
        ("Hash type:", "1".to_owned()),
        ("Data blocks:", header.data_blocks.to_string()),
        (
            "Data block size:",
            format!("{} [bytes]", header.params.data_block),
        ),
        (
            "Hash block size:",
            format!("{} [bytes]", header.params.hash_block),
        ),
        ("Hash algorithm:", header.params.algorithm.to_string()),
        ("Salt:", salt),
    ] {
        output::line(format_args!("{name:<16}\t{value}"))?;
    }
    Ok(())
}
