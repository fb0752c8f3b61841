//! The partitions that `sapwood mkdisk` makes: `NAME[:FORMAT][:FIELD=VALUE...]`.

use std::fmt::Display;
use std::path::PathBuf;

use sapwood::internal::options::parse_size;
use sapwood::internal::{partition_type, type_names};
use sapwood::{
    FatImage, FatWidth, ImageBuilder, Kind, NewHashes, NewPartition, PartitionContent,
    PartitionSize, RootSignature, luks,
};

use crate::failure::{FAILED, Failure, Result, USAGE};
use crate::mkfs::content::ContentArgs;

/// The parts of a text between colons; `\:` is a colon in one.
pub(super) fn fields(text: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            ':' => fields.push(String::new()),
            other => {
                let escaped = other == '\\' && chars.peek() == Some(&':');
                let char = if escaped { chars.next() } else { Some(other) };
                if let (Some(field), Some(char)) = (fields.last_mut(), char) {
                    field.push(char);
                }
            }
        }
    }
    fields
}

/// Reads a UUID, and refuses the name of a type.
///
/// # Errors
/// It is none. The error is the message.
pub(super) fn uuid(text: &str) -> Result<[u8; 16], String> {
    // A GUID is also a type.
    let known = type_names().any(|name| name == text);
    let parsed = partition_type(text).filter(|_| !known);
    parsed.ok_or_else(|| "no UUID".to_owned())
}

/// A partition, and the file that gets its root hash.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) made: NewPartition,
    /// Its type was given, and does not follow from its name.
    pub(super) has_type: bool,
    pub(super) root_hash_file: Option<PathBuf>,
}

/// Reads a partition.
///
/// # Errors
/// Fields that make no sense; a source that cannot be read.
pub(super) fn partition(text: &str) -> Result<Part> {
    let mut parts = fields(text).into_iter();
    let mut made = NewPartition::default();
    made.name = parts.next().unwrap_or_default();
    let mut types = type_names();
    made.kind = types
        .find(|name| *name == made.name)
        .and_then(partition_type);
    let mut reading = Reading {
        text,
        made,
        has_type: false,
        format: None,
        root_hash_file: None,
        signature: None,
        fingerprint: None,
        signer: [None, None],
        content: Vec::new(),
    };
    for field in parts {
        match Format::named(&field) {
            Some(_) if reading.format.is_some() => return Err(reading.bad("one format")),
            Some(format) => reading.format = Some(format),
            None => reading.field(field)?,
        }
    }
    reading.end()
}

/// The content of a partition, by the name of its format.
enum Format {
    FileSystem(Box<ImageBuilder>, Kind),
    Fat(Box<FatImage>),
    Swap(String),
}

impl Format {
    fn named(name: &str) -> Option<Self> {
        let fat = |image| Some(Self::Fat(Box::new(image)));
        match name {
            "fat" => fat(FatImage::new()),
            "fat12" => fat(FatImage::new().width(FatWidth::Fat12)),
            "fat16" => fat(FatImage::new().width(FatWidth::Fat16)),
            "fat32" => fat(FatImage::new().width(FatWidth::Fat32)),
            "swap" => Some(Self::Swap(String::new())),
            name => {
                let kind = name.parse::<Kind>().ok()?;
                Some(Self::FileSystem(Box::new(ImageBuilder::new(kind)), kind))
            }
        }
    }
}

/// A partition whose fields are read.
struct Reading<'t> {
    text: &'t str,
    made: NewPartition,
    has_type: bool,
    format: Option<Format>,
    root_hash_file: Option<PathBuf>,
    /// File with the signature of the root hash.
    signature: Option<PathBuf>,
    /// SHA-256 of the signer's certificate.
    fingerprint: Option<String>,
    /// Files with the key that signs the root hash, and its certificate.
    signer: [Option<PathBuf>; 2],
    /// Fields that are options of mkfs.
    content: Vec<String>,
}

impl Reading<'_> {
    fn bad(&self, why: impl Display) -> Failure {
        Failure::new(USAGE, format_args!("--part {}: {why}", self.text))
    }

    /// Reads a field.
    fn field(&mut self, field: String) -> Result<()> {
        let (name, value) = match field.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (field.as_str(), None),
        };
        match (name, value) {
            ("size", Some("rest")) => self.made.size = PartitionSize::Rest,
            ("size", Some(value)) => {
                let size = parse_size(value).ok_or_else(|| self.bad("size= is not a size"))?;
                self.made.size = PartitionSize::Bytes(size);
            }
            ("type", Some(value)) => {
                self.has_type = true;
                self.kind(value)?;
            }
            ("uuid", Some(value)) => {
                self.made.uuid = Some(uuid(value).map_err(|why| self.bad(why))?);
            }
            ("luks", Some(value)) => {
                let key = luks::read_key(value);
                self.made.key = Some(key.map_err(|error| Failure::new(FAILED, error))?);
            }
            ("verity", value) => {
                let mut hashes = NewHashes::default();
                let own = || format!("{}-verity", self.made.name);
                hashes.partition = value.map_or_else(own, str::to_owned);
                self.made.verity = Some(hashes);
            }
            ("root-hash-file", Some(value)) => self.root_hash_file = Some(value.into()),
            ("verity-sig", Some(value)) => self.signature = Some(value.into()),
            ("fingerprint", Some(value)) => self.fingerprint = Some(value.to_owned()),
            ("verity-key", Some(value)) => self.signer[0] = Some(value.into()),
            ("verity-cert", Some(value)) => self.signer[1] = Some(value.into()),
            ("boot", None) => self.made.boot = true,
            ("file", Some(value)) => self.made.content = PartitionContent::File(value.into()),
            ("label", Some(value)) => self.label(value)?,
            ("opt", Some(value)) => match self.format.take() {
                Some(Format::FileSystem(image, kind)) => {
                    let image = with_option(*image, value)?;
                    self.format = Some(Format::FileSystem(Box::new(image), kind));
                }
                Some(_) => return Err(self.bad("opt= is for btrfs and ext4")),
                None => return Err(self.needs(name, true)),
            },
            _ => match self.format {
                Some(Format::Swap(_)) => {
                    let why = format_args!("swap space has no field {name}");
                    return Err(self.bad(why));
                }
                Some(_) => self.content.push(field),
                None => return Err(self.needs(name, value.is_some())),
            },
        }
        Ok(())
    }

    /// The failure of a field that needs a format.
    fn needs(&self, name: &str, has_value: bool) -> Failure {
        if has_value {
            self.bad(format_args!("{name}= needs a format before it"))
        } else {
            self.bad("formats are btrfs, ext4, fat, fat12, fat16, fat32 and swap")
        }
    }

    fn kind(&mut self, value: &str) -> Result<()> {
        if let [_, _] = value.as_bytes()
            && let Ok(number) = u8::from_str_radix(value, 16)
        {
            self.made.mbr_kind = Some(number);
            return Ok(());
        }
        let kind = partition_type(value);
        self.made.kind = Some(kind.ok_or_else(|| self.bad(unknown_type(value)))?);
        Ok(())
    }

    fn label(&mut self, label: &str) -> Result<()> {
        self.format = Some(match self.format.take() {
            Some(Format::FileSystem(image, kind)) => {
                Format::FileSystem(Box::new(image.label(label)), kind)
            }
            Some(Format::Fat(image)) => {
                let labelled = image.label(label).map_err(|error| self.bad(error))?;
                Format::Fat(Box::new(labelled))
            }
            Some(Format::Swap(_)) => Format::Swap(label.to_owned()),
            None => return Err(self.needs("label", true)),
        });
        Ok(())
    }

    /// The partition, after its last field.
    fn end(mut self) -> Result<Part> {
        if self.root_hash_file.is_some() && self.made.verity.is_none() {
            return Err(self.bad("root-hash-file= needs verity"));
        }
        self.made.signature = self.signature()?;
        let root_hash_file = self.root_hash_file.take();
        let has_type = self.has_type;
        let made = self.content()?;
        Ok(Part {
            made,
            has_type,
            root_hash_file,
        })
    }

    /// The signature of the root hash.
    fn signature(&self) -> Result<Option<RootSignature>> {
        let made = self.signature.is_some() || self.fingerprint.is_some();
        match &self.signer {
            [None, None] => {}
            _ if made => return Err(self.bad("verity-sig= or verity-key=")),
            [Some(key), Some(certificate)] if self.made.verity.is_some() => {
                let signature = RootSignature::with_key(key, certificate);
                return Ok(Some(signature.map_err(|error| self.bad(error))?));
            }
            [Some(_), Some(_)] => return Err(self.bad("verity-key= needs verity")),
            _ => return Err(self.bad("verity-key= and verity-cert= need each other")),
        }
        let (path, fingerprint) = match (&self.signature, &self.fingerprint) {
            (None, None) => return Ok(None),
            (Some(path), Some(fingerprint)) => (path, fingerprint),
            _ => return Err(self.bad("verity-sig= and fingerprint= need each other")),
        };
        if self.made.verity.is_none() {
            return Err(self.bad("verity-sig= needs verity"));
        }
        let bytes = std::fs::read(path).map_err(|error| Failure::local(path, error))?;
        let signature = RootSignature::new(&bytes, fingerprint);
        Ok(Some(signature.map_err(|error| self.bad(error))?))
    }

    /// The partition with its content.
    fn content(mut self) -> Result<NewPartition> {
        let Some(format) = self.format.take() else {
            return Ok(self.made);
        };
        if matches!(self.made.content, PartitionContent::File(_)) {
            return Err(self.bad("a file, or a format"));
        }
        let content = ContentArgs::of_fields(&self.content).map_err(|why| self.bad(why))?;
        let text = self.text;
        let about = |failure: Failure| failure.about(format_args!("--part {text}"));
        self.made.content = match format {
            Format::FileSystem(builder, kind) => {
                let builder = content.fill(*builder, kind).map_err(about)?;
                PartitionContent::Image(Box::new(builder))
            }
            Format::Fat(image) => {
                let image = content.fill_fat(*image).map_err(about)?;
                PartitionContent::Fat(Box::new(image))
            }
            Format::Swap(label) => PartitionContent::Swap(label),
        };
        Ok(self.made)
    }
}

fn unknown_type(value: &str) -> String {
    let names: Vec<&str> = type_names().collect();
    format!(
        "unknown type {value}; a GUID, or one of {}",
        names.join(", ")
    )
}

/// The builder with an option of mkfs, `NAME` or `NAME=VALUE`.
fn with_option(builder: ImageBuilder, text: &str) -> Result<ImageBuilder> {
    let (option, value) = match text.split_once('=') {
        Some((option, value)) => (option, Some(value)),
        None => (text, None),
    };
    let set = builder.option(option, value);
    set.map_err(|error| Failure::new(USAGE, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_between_colons() {
        assert_eq!(fields("a:b=c"), ["a", "b=c"]);
        assert_eq!(fields(r"a:file=x\:y\z"), ["a", r"file=x:y\z"]);
        assert_eq!(fields(""), [""]);
    }

    #[test]
    fn a_partition_is_read() {
        let made = partition("esp:size=3M:uuid=11111111-2222-3333-4444-555555555555")
            .unwrap()
            .made;
        assert_eq!(
            made.kind,
            partition_type("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
        );
        assert_eq!(
            (made.size, made.uuid.unwrap()[0]),
            (PartitionSize::Bytes(3 << 20), 0x11)
        );
        assert!(matches!(made.content, PartitionContent::Empty));
        let made = partition("x:ext4:label=l:opt=inode-size=512:type=home:size=rest")
            .unwrap()
            .made;
        assert_eq!(made.kind, partition_type("home"));
        assert!(matches!(made.content, PartitionContent::Image(_)));
        let sources = ["rootdir", "tar", "oci", "layer", "overlay", "cpio"];
        for source in sources.map(|name| format!("x:btrfs:{name}=y")) {
            let made = partition(&source).unwrap().made;
            assert!(
                matches!(made.content, PartitionContent::Image(_)),
                "{source}"
            );
        }
        let stored =
            "x:btrfs:rootdir=y:subvol=ro\\:a:compress=zstd\\:3=*.c:dedupe:all-root:free=5%";
        assert!(partition(stored).is_ok());
        let made = partition("esp:fat32:rootdir=y:label=efi:boot:type=0c")
            .unwrap()
            .made;
        assert!(matches!(made.content, PartitionContent::Fat(_)));
        assert_eq!((made.boot, made.mbr_kind), (true, Some(0x0c)));
        let made = partition("x:swap:label=s:size=1M").unwrap().made;
        assert!(matches!(made.content, PartitionContent::Swap(label) if label == "s"));
        for wrong in [
            "x:xfs",
            "x:fat:fat32",
            "x:fat:label=too long a label",
            "x:fat:subvol=a",
            "x:fat:opt=inode-size=512",
            "x:fat:free=5%",
            "x:fat:free-inodes=5",
            "x:swap:rootdir=y",
            "x:boot=1",
            "x:ext4:root-hash-file=y",
            "x:ext4:verity:verity-sig=y",
            "x:ext4:verity:fingerprint=y",
            "x:ext4:verity:verity-sig=none/such:fingerprint=y",
            "x:ext4:luks=none/such",
            "x:ext4:dedupe",
            "x:btrfs:dedupe=yes",
            "x:btrfs:free=much",
            "x:btrfs:compress",
            "x:all-root:ext4",
            "x:size=y",
            "x:type=y",
            "x:uuid=esp",
            "x:label=y",
            "x:turbo=1",
            "x:ext4:btrfs",
            "x:ext4:file=y",
            "x:ext4:opt=turbo",
            "x:tar=y",
            "x:ext4:turbo=1",
        ] {
            assert!(partition(wrong).is_err(), "{wrong}");
        }
    }
}
