//! Mounts an image, writes a file through the mount, and unmounts:
//! `cargo run --features fuse --example mount -- disk.img mnt`.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(image), Some(dir)) = (args.next(), args.next()) else {
        return Err("usage: mount IMAGE DIR".into());
    };
    let mount = sapwood::mount(&image, &dir, &sapwood::Options::default())?;
    let written = std::fs::write(dir.join("hello"), "written through the mount\n");
    mount.unmount()?;
    mount.wait()?;
    Ok(written?)
}
