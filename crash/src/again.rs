//! [`Again`]: a second generation. What a crash left is recovered, written to, and cut again.
//!
//! # How it works
//! A first workload is cut. What a recovery makes of that image is the first state of the second
//! workload, and the reference model gets the same content. Then the engine mounts the image on a
//! recorder. So the cuts of the second recording meet the recovery itself, at each of its writes,
//! and everything that follows on what it made.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use fastrand::Rng;
use sapwood_block::MemoryDevice;
use sapwood_testing::MemoryFs;
use sapwood_vfs::{
    Credentials, FileKind, FileSystem, Ino, NewInode, SetAttr, SetXattrMode, WriteMode,
};

use crate::base::BaseKind;
use crate::cut::{Cut, Depth, cuts};
use crate::engine::Engine;
use crate::explore::seed_of;
use crate::judge::recover;
use crate::op::{Op, from_text, to_text};
use crate::record::{Recording, Setting, Workload};
use crate::threads::{Threads, by_chance};
use crate::tree::{Node, Tree};

/// Two workloads with a crash between them. Its text is `again: BASE: OP; OP @ CUT => OP; OP`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Again {
    /// The first.
    pub first: Workload,
    /// The text of the cut that ends it.
    pub cut: String,
    /// What is done after the recovery.
    pub ops: Vec<Op>,
}

/// First word of the text.
pub const PREFIX: &str = "again:";
/// Between the cut and the second workload.
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
    /// One that the seed decides: so many operations by chance, a cut by chance, which leaves a
    /// log if it can, and so many operations on what a recovery makes of that.
    ///
    /// # Errors
    /// As [`run`](Self::run).
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

    /// What the first crash left, and a model of what a recovery makes of it.
    fn between(&self, setting: &Setting) -> Result<(MemoryDevice, MemoryFs), String> {
        let first = Recording::run(&self.first, setting)?;
        let cut: Cut = self.cut.parse()?;
        let image = first.log.image(&first.base, &cut.0);
        let tree = recover(first.engine, image.snapshot()).0?;
        Ok((image, model_of(&tree)?))
    }

    /// Runs both.
    ///
    /// # Errors
    /// As [`Recording::run`]; that the first crash cannot be recovered from.
    pub fn run(&self, setting: &Setting) -> Result<Recording, String> {
        let (image, model) = self.between(setting)?;
        let engine: Engine = self.first.base.engine();
        Recording::on(engine, &image, &model, &self.ops, setting)
    }
}

/// The reference model with the content of a tree.
///
/// # Errors
/// What the model refuses, or has otherwise afterwards.
pub fn model_of(tree: &Tree) -> Result<MemoryFs, String> {
    let model = MemoryFs::new();
    let mut made = BTreeMap::from([(tree.root, model.root())]);
    let failed = |error: sapwood_vfs::Error| format!("model of the first recovery: {error}");
    fill(&model, tree, tree.root, &mut made).map_err(failed)?;
    for ino in made.values().filter(|ino| **ino != model.root()) {
        model.forget(*ino, 1);
    }
    let mut copy = Tree::of(&model).map_err(failed)?;
    for node in copy.nodes.values_mut() {
        node.times = None;
    }
    match tree.difference(&copy) {
        None => Ok(model),
        Some(why) => Err(format!("the tree (first) and its model (second): {why}")),
    }
}

/// Makes what is in a directory, then gives it its attributes: a default ACL is not for them.
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

fn attributes(model: &MemoryFs, ino: Ino, node: &Node) -> sapwood_vfs::Result<()> {
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
