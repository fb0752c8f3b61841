//! Makes a subvolume and a snapshot of it: `cargo run --example snapshot -- disk.img` (btrfs).

use sapwood::ErrorKind;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: snapshot IMAGE")?;
    let fs = sapwood::open(image)?;
    match fs.create_subvolume("home") {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        other => other?,
    }
    fs.write("home/note", "before\n")?;
    fs.create_dir_all("snapshots")?;
    fs.snapshot_read_only("home", "snapshots/monday")?;
    fs.write("home/note", "after\n")?;
    assert_eq!(fs.read("snapshots/monday/note")?, b"before\n");
    for subvolume in fs.subvolumes()? {
        println!(
            "{:>5} {}",
            subvolume.id.0,
            String::from_utf8_lossy(&subvolume.path)
        );
    }
    fs.close()?;
    Ok(())
}
