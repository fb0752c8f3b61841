//! The oracles themselves: they find nothing wrong with a good image, and something with a bad one.

mod common;

use common::{Image, Need, oracle};
use libtest_mimic::Arguments;

fn clean_image_is_clean() {
    let image = Image::new(256 << 20, &[]);
    {
        let mount = image.mount();
        mount.shell("mkdir d; echo hello > d/f; ln d/f g; sync");
        assert_eq!(mount.shell("cat g"), "hello\n");
    }
    image.check();
    assert!(image.dump(Some("5")).contains("DIR_INDEX"));
}

fn damage_is_found() {
    let image = Image::blank(256 << 20);
    assert!(image.try_check().is_err());
}

fn main() {
    let tests = vec![
        oracle(
            "clean_image_is_clean",
            &[Need::Mkfs, Need::Check, Need::Mount],
            clean_image_is_clean,
        ),
        oracle("damage_is_found", &[Need::Check], damage_is_found),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}
