//! Makes an ext4 image with some files: `cargo run --example build_image -- root.img`.

use sapwood::ImageBuilder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args_os()
        .nth(1)
        .ok_or("usage: build_image IMAGE")?;
    ImageBuilder::ext4()
        .label("root")
        .size(64 << 20)
        .write_to(&image)?;
    let fs = sapwood::open(&image)?;
    fs.set_creator(0, 0);
    fs.create_dir_all("etc/init.d")?;
    fs.write("etc/hostname", "box\n")?;
    fs.write("etc/init.d/start", "#!/bin/sh\nexec sleep infinity\n")?;
    fs.set_permissions("etc/init.d/start", 0o755)?;
    fs.symlink("etc/init.d/start", "init")?;
    fs.close()?;
    Ok(())
}
