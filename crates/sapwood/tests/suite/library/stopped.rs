//! Builds that are stopped.

use sapwood::{ErrorKind, ImageBuilder, Kind, Stop};

use super::kind;

#[test]
fn a_build_that_is_stopped_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), "text").unwrap();
    let path = dir.path().join("disk.img");
    for format in Kind::ALL {
        for reproducible in [false, true] {
            let stop = Stop::new();
            let builder = ImageBuilder::new(format).from_dir(&tree).unwrap();
            let builder = builder.stop(stop.clone());
            let builder = if reproducible {
                builder.reproducible()
            } else {
                builder
            };
            builder.write_to(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            stop.stop();
            assert_eq!(kind(builder.write_to(&path)), ErrorKind::Interrupted);
            let left = std::fs::read_dir(dir.path()).unwrap();
            assert_eq!(left.count(), 1);
        }
    }
}
