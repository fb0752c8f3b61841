//! Changes files of an image without a mount: `cargo run --example edit -- disk.img`.

use std::io::Write;

use sapwood::OpenOptions;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: edit IMAGE")?;
    let fs = sapwood::open(image)?;
    fs.create_dir_all("var/log")?;
    let mut log = fs.open_with(
        "var/log/edits",
        OpenOptions::new().append(true).create(true),
    )?;
    writeln!(log, "edited")?;
    log.sync_all()?; // durable from here on, whatever happens to this process
    fs.copy("var/log/edits", "var/log/edits.old")?;
    fs.rename("var/log/edits.old", "var/log/edits.1")?;
    for entry in fs.walk("/")? {
        let entry = entry?;
        println!("{:>9} {}", entry.metadata().len(), entry.path().display());
    }
    drop(log);
    fs.close()?;
    Ok(())
}
