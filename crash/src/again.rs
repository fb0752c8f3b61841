//! [`Again`]: a second generation. The recovered state of a crash gets a second workload, and
//! crashes again.
//!
//! # How it works
//! The first workload ends with a crash. The state that a recovery makes of its image is the first
//! state of the second workload, and the reference model gets the same content. Then the engine
//! mounts the unrecovered image on a recorder. So the crashes of the second recording hit each
//! write of the recovery itself, and each write after it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use fastrand::Rng;
use sapwood_block::MemoryDevice;
use sapwood_testing::MemoryFs;
use sapwood_testing::op::{Op, from_text, to_text};
use sapwood_testing::tree::{Detail, Tree, TreeInode};
use sapwood_vfs::{
    Credentials, FileKind, FileSystem, Ino, NewInode, SetAttr, SetXattrMode, WriteMode,
};

use crate::base::BaseKind;
use crate::cut::{Cut, Depth, cuts};
use crate::engine::Format;
use crate::explore::seed_of;
use crate::judge::recover;
use crate::record::{Recording, Setting, Workload};
use crate::threads::{Threads, by_chance};

/// Two workloads with a crash between them. Its text is `again: BASE: OP; OP @ CUT => OP; OP`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Again {
    /// The first workload.
    pub first: Workload,
    /// The text of the crash that ends it.
    pub cut: String,
    /// The operations after the recovery.
    pub ops: Vec<Op>,
}

/// First word of the text.
pub const PREFIX: &str = "again:";
/// Separates the first crash and the second workload.
pub const THEN: &str = " => ";

impl fmt::Display for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let second = to_text(&self.ops);
        write!(f, "{PREFIX} {} @ {}{THEN}{second}", self.first, self.cut)
    }
}

impl FromStr for Again {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("not a second generation: {text:?}");
        let parts = text.trim().strip_prefix(PREFIX).ok_or_else(bad)?;
        let (first, ops) = parts.split_once(THEN.trim_end()).ok_or_else(bad)?;
        let (first, cut) = first.rsplit_once(" @ ").ok_or_else(bad)?;
        let cut: Cut = cut.trim().parse()?;
        Ok(Self {
            first: first.parse()?,
            cut: cut.to_string(),
            ops: from_text(ops).map_err(|error| error.to_string())?,
        })
    }
}

impl Again {
    /// A second generation that the seed determines: a number of random operations, a random crash,
    /// which leaves a log if possible, and as many random operations on its recovered state.
    ///
    /// # Errors
    /// The mismatch, or that the first crash cannot be recovered.
    pub fn by_chance(
        base: BaseKind,
        seed: u64,
        first: usize,
        second: usize,
        setting: &Setting,
    ) -> Result<Self, String> {
        let engine = base.engine();
        let mut random = Rng::with_seed(seed);
        let alone = Threads {
            engine,
            seed,
            lanes: 1,
            ops: first,
        };
        let mut again = Self {
            first: Workload {
                base,
                ops: alone.plan(0)?,
            },
            cut: String::new(),
            ops: Vec::new(),
        };
        let recording = Recording::run(&again.first, setting)?;
        let only_super = engine.only_super(sapwood_block::Device::size(&recording.base));
        let seed = seed_of(&again.first.clone().into());
        let plans = cuts(&recording.log, only_super, Depth::BRIEF, seed);
        for _ in 0..8 {
            let plan = random.choice(&plans).ok_or("no cut")?;
            let image = recording.log.image(&recording.base, plan);
            again.cut = Cut(plan.clone()).to_string();
            if engine.has_log(&image) {
                break;
            }
        }
        let model = again.between(setting)?.1;
        again.ops = by_chance(engine, &model, &mut random, second)?;
        Ok(again)
    }

    /// The image that the first crash left, and a model of its recovered state.
    fn between(&self, setting: &Setting) -> Result<(MemoryDevice, MemoryFs), String> {
        let first = Recording::run(&self.first, setting)?;
        let cut: Cut = self.cut.parse()?;
        let image = first.log.image(&first.base, &cut.0);
        let tree = recover(first.engine, image.snapshot()).0?.tree;
        Ok((image, model_of(&tree)?))
    }

    /// Runs both workloads.
    ///
    /// # Errors
    /// The mismatch with the model, or that the first crash cannot be recovered.
    pub fn run(&self, setting: &Setting) -> Result<Recording, String> {
        let (image, model) = self.between(setting)?;
        let engine: Format = self.first.base.engine();
        Recording::on(engine, &image, &model, &self.ops, setting)
    }
}

/// The reference model with the content of a tree.
///
/// # Errors
/// An operation that the model refuses, or a difference between the tree and its model.
pub fn model_of(tree: &Tree) -> Result<MemoryFs, String> {
    let model = MemoryFs::new();
    let mut made = BTreeMap::from([(tree.root, model.root())]);
    let failed = |error: sapwood_vfs::Error| format!("model of the first recovery: {error}");
    fill(&model, tree, tree.root, &mut made).map_err(failed)?;
    for ino in made.values().filter(|ino| **ino != model.root()) {
        model.forget(*ino, 1);
    }
    let mut copy = Tree::of(&model, Detail::Bytes)
        .map_err(|why| format!("model of the first recovery: {why}"))?;
    for node in copy.nodes.values_mut() {
        node.times = None;
    }
    match tree.difference(&copy) {
        None => Ok(model),
        Some(why) => Err(format!("the tree (first) and its model (second): {why}")),
    }
}

/// Makes the content of a directory first, and then sets its attributes: a default ACL must not
/// apply to the content.
fn fill(
    model: &MemoryFs,
    tree: &Tree,
    dir: Ino,
    made: &mut BTreeMap<Ino, Ino>,
) -> sapwood_vfs::Result<()> {
    let Some(node) = tree.nodes.get(&dir) else {
        return Ok(());
    };
    let at = made.get(&dir).copied().unwrap_or(model.root());
    for (name, ino) in node.entries.iter() {
        let Some(child) = tree.nodes.get(ino) else {
            continue;
        };
        if let Some(there) = made.get(ino) {
            let linked = model.link(*there, at, name)?;
            model.forget(linked.ino(), 1);
            continue;
        }
        let what = match child.kind {
            FileKind::Regular => NewInode::Regular,
            FileKind::Directory => NewInode::Directory,
            FileKind::Symlink => NewInode::Symlink(&child.content),
            FileKind::CharDevice => NewInode::CharDevice(child.owner.rdev),
            FileKind::BlockDevice => NewInode::BlockDevice(child.owner.rdev),
            FileKind::Fifo => NewInode::Fifo,
            FileKind::Socket => NewInode::Socket,
        };
        let new = model.create(&Credentials::ROOT, at, name, what, child.owner.perm)?;
        made.insert(*ino, new.ino());
        if child.kind == FileKind::Regular && !child.content.is_empty() {
            model.write(new.ino(), 0, &child.content, WriteMode::default())?;
        }
        match child.kind {
            FileKind::Directory => fill(model, tree, *ino, made)?,
            _ => attributes(model, new.ino(), child)?,
        }
    }
    attributes(model, at, node)
}

fn attributes(model: &MemoryFs, ino: Ino, node: &TreeInode) -> sapwood_vfs::Result<()> {
    for (name, value) in node.xattrs.iter() {
        model.setxattr(ino, name, value, SetXattrMode::Any)?;
    }
    let owner = SetAttr {
        uid: Some(node.owner.uid),
        gid: Some(node.owner.gid),
        ..SetAttr::default()
    };
    model.setattr(ino, &owner)?;
    if node.kind == FileKind::Symlink {
        return Ok(());
    }
    let perm = SetAttr {
        perm: Some(node.owner.perm),
        ..SetAttr::default()
    };
    model.setattr(ino, &perm).map(drop)
}
