//! Prints a file of an image: `cargo run --example read_file -- disk.img /etc/hostname`.

use std::io::{self, Read};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(image), Some(path)) = (args.next(), args.next()) else {
        return Err("usage: read_file IMAGE PATH".into());
    };
    let fs = sapwood::Options::new().read_only(true).open(image)?;
    let mut file = fs.open(path)?;
    io::copy(&mut file.by_ref(), &mut io::stdout())?;
    Ok(())
}
