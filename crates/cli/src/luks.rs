//! `sapwood luks`: encrypted volumes.

use std::path::PathBuf;

use sapwood::luks::{Derivation, Description, FormatOptions, NewVolume, SlotDescription};
use serde_json::json;

use super::failure::{Failure, Result, USAGE};
use super::sizes::size;
use super::{choice, interrupt, output};

/// Examples of `luks format`, for its help.
pub(super) const FORMAT_EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood luks format --size 1G --key-file root.key root.img",
        "a new file",
    ),
    (
        "sapwood luks format --ask-passphrase disk.img#2",
        "a partition that exists",
    ),
];

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Make an empty encrypted volume (LUKS2); --key-file or --ask-passphrase gives its key
    Format(Box<FormatArgs>),
    /// Show the header of an encrypted volume
    Dump {
        /// Image
        image: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct FormatArgs {
    /// Image, device or partition; with --size a new file
    image: PathBuf,
    /// Make a new file of this size; the header takes 16 MiB of it
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Overwrite what is there
    #[arg(short, long)]
    force: bool,
    /// Bytes of a sector: 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value = "4096")]
    sector_size: u64,
    /// Label of the volume
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    label: String,
    /// UUID of the volume [default: random]
    #[arg(long, value_name = "UUID", value_parser = output::parse_uuid)]
    uuid: Option<[u8; 16]>,
    /// Derivation of the key from the passphrase: argon2id, argon2i or pbkdf2
    #[arg(long, value_name = "NAME", default_value = "argon2id")]
    pbkdf: Pbkdf,
    /// KiB of memory that argon2 takes
    #[arg(long, value_name = "KIB", default_value = "65536")]
    pbkdf_memory: u64,
    /// Passes of argon2 [default: 3], or iterations of pbkdf2 [default: 600000]
    #[arg(long, value_name = "COUNT")]
    pbkdf_force_iterations: Option<u64>,
}

/// Name of a derivation.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Pbkdf {
    Argon2id,
    Argon2i,
    Pbkdf2,
}

/// Lanes of argon2.
const LANES: u64 = 4;
/// Iterations of pbkdf2 with SHA-256 (OWASP, "Password Storage Cheat Sheet").
const ITERATIONS: u64 = 600_000;

impl FormatArgs {
    fn options(&self) -> FormatOptions {
        let (kib, lanes) = (self.pbkdf_memory, LANES);
        let passes = self.pbkdf_force_iterations.unwrap_or(3);
        let derivation = match self.pbkdf {
            Pbkdf::Argon2id => Derivation::Argon2id { passes, kib, lanes },
            Pbkdf::Argon2i => Derivation::Argon2i { passes, kib, lanes },
            Pbkdf::Pbkdf2 => Derivation::Pbkdf2 {
                iterations: self.pbkdf_force_iterations.unwrap_or(ITERATIONS),
            },
        };
        FormatOptions {
            derivation,
            sector: self.sector_size,
            label: self.label.clone(),
            uuid: self.uuid,
        }
    }

    fn run(&self) -> Result<()> {
        let key = choice::new_key()?;
        let key = key.ok_or_else(|| Failure::new(USAGE, "give --key-file or --ask-passphrase"))?;
        interrupt::abandon_new_files();
        let mut new = NewVolume::new(&self.image).replace(self.force);
        if let Some(size) = self.size {
            new = new.size(size);
        }
        Ok(sapwood::luks::format(&new, &key, &self.options())?)
    }
}

pub(super) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Format(args) => args.run(),
        Command::Dump { image, json } => {
            let found = sapwood::luks::describe(image)?;
            if *json {
                return output::object(&fields(&found));
            }
            print(&found)
        }
    }
}

fn fields(found: &Description) -> serde_json::Value {
    let slots = found.slots.iter();
    let slots = slots.map(|slot| json!({ "number": slot.number, "pbkdf": derivation(slot) }));
    json!({
        "version": found.version,
        "uuid": found.uuid,
        "label": found.label,
        "cipher": found.cipher,
        "sector_size": found.sector,
        "offset": found.offset,
        "keyslots": slots.collect::<Vec<_>>(),
    })
}

fn derivation(slot: &SlotDescription) -> String {
    let derivation = slot.derivation;
    derivation.map_or_else(|| "no passphrase".to_owned(), |how| how.to_string())
}

fn print(found: &Description) -> Result<()> {
    output::line(format_args!("Version:     {}", found.version))?;
    output::line(format_args!("UUID:        {}", found.uuid))?;
    if !found.label.is_empty() {
        output::line(format_args!("Label:       {}", found.label))?;
    }
    output::line(format_args!("Cipher:      {}", found.cipher))?;
    output::line(format_args!("Sector size: {}", found.sector))?;
    output::line(format_args!("Data offset: {}", found.offset))?;
    for slot in &found.slots {
        let (number, derivation) = (slot.number, derivation(slot));
        output::line(format_args!("Key slot {number}:  {derivation}"))?;
    }
    Ok(())
}
