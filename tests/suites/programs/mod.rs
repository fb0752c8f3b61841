//! Real programs in the mount. `SAPWOOD_FULL=1` runs the long versions.

mod builds;
mod fsx;
mod packages;
mod pjdfstest;
mod trees;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    let all = [
        fsx::trials(),
        pjdfstest::trials(),
        builds::trials(),
        packages::trials(),
        trees::trials(),
    ];
    all.into_iter().flatten().collect()
}
