//! The oracles themselves: they find nothing wrong with a good image, and something with a bad one.

use libtest_mimic::Arguments;
use sapwood_testing::machine::{Need, trial};
use sapwood_testing::oracle::{Kind, TempImage};

fn clean_image_is_clean() {
    let image = TempImage::new(256 << 20, &[]);
    {
        let mount = image.mount();
        mount.shell("mkdir d; echo hello > d/f; ln d/f g; sync");
        assert_eq!(mount.shell("cat g"), "hello\n");
    }
    image.check();
    assert!(image.dump(Some("5")).contains("DIR_INDEX"));
}

fn damage_is_found() {
    let image = TempImage::blank(256 << 20);
    assert!(image.try_check().is_err());
}

fn main() {
    let tests = vec![
        trial(
            "clean_image_is_clean",
            &[
                Need::Program("mkfs.btrfs"),
                Need::Program("btrfs"),
                Need::Kernel(Kind::Btrfs),
            ],
            clean_image_is_clean,
        ),
        trial(
            "damage_is_found",
            &[Need::Program("btrfs")],
            damage_is_found,
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}
