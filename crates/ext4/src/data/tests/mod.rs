//! Files on images that `mke2fs` makes, judged by a model and by `e2fsck`.

mod fixture;
mod model;
mod order;
mod small;
mod space;
mod threads;
