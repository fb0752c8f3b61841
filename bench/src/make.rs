//! Making an image of files, by every program that can.
//!
//! The source was read just before, so that no measurement includes its disk. Every image is
//! durable at the end. A file system of the kernel is filled by `cp` or `tar` through a mount: its
//! time includes the mount and the unmount.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::contestant::{Contestant, Way};
use crate::error::{Context, Error, Result};
use crate::image::{self, Room};
use crate::material;
use crate::program::{Used, output, watch};
use crate::run::Figures;
use crate::stage::Stage;

/// The source of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A directory of this machine, which is also extracted again.
    Dir(&'static str),
    /// A directory of small files.
    Tree,
    /// The same, compressed in the image.
    Zstd,
    /// An archive of them.
    Tar,
    /// The archive, compressed.
    Gzip,
    /// A container image with the compressed archive as its layer. Programs that read no container
    /// image get the unpacked layer: in a directory, or in a mount.
    Oci,
}

impl Source {
    /// The script of the shell with which `way` makes `IMAGE` of `TREE` or `ARCHIVE`, or fills
    /// `MOUNT`.
    fn script(self, way: Way) -> Option<&'static str> {
        let plain = matches!(self, Self::Dir(_) | Self::Tree);
        let archive = matches!(self, Self::Tar | Self::Gzip);
        Some(match way {
            Way::SapwoodMkfs if self == Self::Oci => {
                "exec \"$SAPWOOD\" mkfs --quiet --force -t $FORMAT --oci \"$ARCHIVE\" \"$IMAGE\""
            }
            Way::SapwoodMkfs if archive => {
                "exec \"$SAPWOOD\" mkfs --quiet --force -t $FORMAT --tar \"$ARCHIVE\" \"$IMAGE\""
            }
            Way::SapwoodMkfs => {
                "exec \"$SAPWOOD\" mkfs --quiet --force -t $FORMAT $COMPRESS \
                    --rootdir \"$TREE\" \"$IMAGE\""
            }
            Way::MkfsBtrfs if self == Self::Oci => {
                "mkdir \"$OUT\"; tar -xOf \"$ARCHIVE\" \"$LAYER\" | tar -xz -C \"$OUT\"; \
                    exec mkfs.btrfs --quiet --force --rootdir \"$OUT\" \"$IMAGE\""
            }
            Way::Mke2fs if self == Self::Oci => {
                "mkdir \"$OUT\"; tar -xOf \"$ARCHIVE\" \"$LAYER\" | tar -xz -C \"$OUT\"; \
                    exec mke2fs -q -F -t ext4 -d \"$OUT\" \"$IMAGE\""
            }
            Way::ReadSource if self == Self::Oci => {
                "tar -xOf \"$ARCHIVE\" \"$LAYER\" | gzip -dc > /dev/null"
            }
            Way::Sapwood | Way::Kernel | Way::Fuse2fs if self == Self::Oci => {
                "tar -xOf \"$ARCHIVE\" \"$LAYER\" | tar -xz -C \"$MOUNT\""
            }
            Way::MkfsBtrfs if !archive => {
                "exec mkfs.btrfs --quiet --force $COMPRESS --rootdir \"$TREE\" \"$IMAGE\""
            }
            Way::Mke2fs if plain => "exec mke2fs -q -F -t ext4 -d \"$TREE\" \"$IMAGE\"",
            // `tar` reads no file if it sees that the archive goes to /dev/null.
            Way::ReadSource if !archive => "tar -cf - -C \"$TREE\" . | cat > /dev/null",
            Way::ReadSource if self == Self::Gzip => "exec gzip -dc \"$ARCHIVE\" > /dev/null",
            Way::ReadSource => "exec cat \"$ARCHIVE\" > /dev/null",
            Way::Sapwood | Way::Kernel | Way::Fuse2fs if plain => {
                "exec cp -a \"$TREE/.\" \"$MOUNT\""
            }
            Way::Sapwood | Way::Kernel | Way::Fuse2fs if archive => {
                "exec tar -xf \"$ARCHIVE\" -C \"$MOUNT\""
            }
            _ => return None,
        })
    }
}

/// Makes an image on `medium`. `files`: the small files.
///
/// # Errors
/// The program fails, or it cannot do this.
pub(crate) fn run(
    contestant: &Contestant,
    source: Source,
    files: &material::Source,
    medium: &Path,
) -> Result<Figures> {
    let script = source.script(contestant.way);
    let script = script.ok_or_else(|| Error::new("it cannot make an image of this"))?;
    let tree = match source {
        Source::Dir(dir) => Path::new(dir),
        _ => &files.tree,
    };
    let archive = match source {
        Source::Gzip => &files.gzip,
        Source::Oci => &files.oci,
        _ => &files.tar,
    };
    let home = image::home(medium)?;
    let [image, dir, out] = ["image", "mount", "out"].map(|name| home.path().join(name));
    fs::create_dir(&dir)?;
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command
            .args(["-ec", script])
            .env("SAPWOOD", &contestant.program);
        command
            .env("FORMAT", contestant.format.name())
            .env("SAPWOOD_WITHOUT", &contestant.without);
        command.env(
            "COMPRESS",
            if source == Source::Zstd {
                "--compress=zstd"
            } else {
                ""
            },
        );
        command.env("TREE", tree).env("ARCHIVE", archive);
        command.env("LAYER", &files.layer);
        command
            .env("IMAGE", &image)
            .env("MOUNT", &dir)
            .env("OUT", &out);
        command
    };
    // One inode for each 16 KiB is the default of mke2fs.
    let room = Room {
        bytes: Room::USUAL
            .bytes
            .max((u64::from(files.files) * 5 / 4 * 16384).next_multiple_of(1 << 30)),
        sparse: true,
        ..Room::USUAL
    };
    output(&mut shell(
        "tar -cf - -C \"$TREE\" . | cat > /dev/null; cat \"$ARCHIVE\" > /dev/null",
    ))?;
    let file = File::create(&image)?;
    file.set_len(room.bytes)?;
    let began = Instant::now();
    let used = if contestant.is_maker() {
        watch(&mut shell(script))?
    } else {
        image::format(contestant.format, &image, room)?;
        mounted(contestant, &image, &dir, &mut shell(script))?
    };
    file.sync_all().on(image.display())?;
    let mut figures = Figures::new();
    let mut set = |key: &str, value| figures.insert(key.to_owned(), value);
    set("s", began.elapsed().as_secs_f64());
    set("cpu_s", used.cpu_seconds);
    set("peak_mib", used.peak_mib);
    if contestant.way != Way::ReadSource {
        set(
            "size_mib",
            file.metadata()?.blocks() as f64 * 512.0 / 1048576.0,
        );
    }
    if matches!(source, Source::Dir(_)) && contestant.way != Way::ReadSource {
        let began = Instant::now();
        if contestant.way == Way::SapwoodMkfs {
            output(&mut shell(
                "exec \"$SAPWOOD\" cp --quiet -a \"$IMAGE:/\" \"$OUT\"",
            ))?;
        } else {
            let kernel = Contestant {
                way: if contestant.is_maker() {
                    Way::Kernel
                } else {
                    contestant.way
                },
                ..contestant.clone()
            };
            mounted(
                &kernel,
                &image,
                &dir,
                &mut shell("exec cp -a \"$MOUNT\" \"$OUT\""),
            )?;
        }
        set("out_s", began.elapsed().as_secs_f64());
    }
    Ok(figures)
}

/// Runs a program while the image is mounted.
fn mounted(
    contestant: &Contestant,
    image: &Path,
    dir: &Path,
    command: &mut Command,
) -> Result<Used> {
    let mut stage = Stage::start(contestant, image, dir)?;
    let used = watch(command);
    stage.sync()?;
    stage.end()?;
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant::Format;

    #[test]
    fn the_source_alone_is_measured_and_has_no_size() {
        let medium = tempfile::tempdir().unwrap();
        let files = material::Source::new(medium.path(), 150).unwrap();
        let programs = crate::contestant::Programs(Vec::new());
        let read = Contestant::parse("source-read", &programs).unwrap();
        for source in [Source::Tree, Source::Tar, Source::Gzip, Source::Oci] {
            let seen = run(&read, source, &files, medium.path()).unwrap();
            assert!(seen["s"] > 0.0 && !seen.contains_key("size_mib"));
        }
        let mke2fs = Contestant {
            way: Way::Mke2fs,
            format: Format::Ext4,
            ..read
        };
        assert!(run(&mke2fs, Source::Tar, &files, medium.path()).is_err());
    }
}
