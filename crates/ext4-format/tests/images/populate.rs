//! Inodes of all kinds, made with `debugfs`.

use std::fmt::Write;
use std::process::Command;

use libtest_mimic::Failed;

use crate::image::{TempImage, run};

/// Fills the image's root directory.
pub(crate) fn fill(image: &TempImage) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    std::fs::write(&data, vec![b'x'; 300_000])?;
    let small = dir.path().join("small");
    std::fs::write(&small, b"a few bytes")?;
    let (data, small) = (data.display(), small.display());
    let long = "t".repeat(200);
    let mut script = format!(
        "write {data} file\nwrite {small} small\nmkdir dir\nmkdir dir/sub\n\
         symlink short target\nsymlink long {long}\n\
         mknod pipe p\nmknod tty c 5 1\nmknod disk b 8 17\nmknod nvme b 259 3\n\
         mknod many c 4000 1000000\n\
         ea_set file user.name value\n\
         sif file uid 70001\nsif file gid 131073\nsif file generation 77\n\
         sif file flags 0x800c0\nsif dir mode 041777\nsif small links_count 3\n\
         sif file mtime @0x7fffffff\nsif file atime @-1\nsif file ctime @1000000000\n"
    );
    let size = image.geometry.inode_size();
    if size > 128 {
        script += "sif file mtime_extra 0x12345677\nsif file atime_extra 0x2\n\
                   sif file ctime_extra 0xee6b27fd\nsif file crtime_extra 0x77359401\n\
                   sif file version_hi 5\nsif file projid 42\n";
    }
    for number in 0..40 {
        writeln!(script, "write {small} many{number}")?;
    }
    let path = dir.path().join("script");
    std::fs::write(&path, script)?;
    run(Command::new("debugfs")
        .args(["-w", "-f"])
        .arg(path)
        .arg(image.path()))?;
    Ok(())
}
