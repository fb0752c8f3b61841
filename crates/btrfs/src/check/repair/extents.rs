//! Repairs the extent tree: writes the items of extents from the trees that use them.
//!
//! # How it works
//! The uses of all extents are collected from the trees, and compared with the items of the extent
//! tree, extent by extent. Items that differ are changed in their leaves. If they do not fit there,
//! or if the extent tree cannot be read, the tree is written anew ([`rebuild`](super::rebuild)).
//!
//! No extent is freed that may have a user: nothing is changed unless every block of every tree can
//! be read. Extents without a user are kept if other findings show that file extents may be lost,
//! or if they have checksums.

use sapwood_btrfs_format::{Incompat, InlineRef, Item, Key, leaf_data_size, objectid};

use super::super::error::CheckError;
use super::super::finding::Finding;
use super::super::free_space::{Runs, difference, join};
use super::super::report::CheckReport;
use super::super::state::Check;
use super::Repaired;
use super::edit::Editor;
use super::extent_items::{Form, describes, generation, place};
use super::rebuild;
use super::uses::{Obstacle, Used, collect};
use crate::tree::bulk::Items;

/// More extents than this with wrong items: the tree is written anew.
const IN_PLACE: usize = 10_000;

/// Whether a finding is about the extent tree.
fn concerns(finding: &Finding) -> bool {
    const TREES: [u64; 2] = [objectid::EXTENT_TREE, objectid::FREE_SPACE_TREE];
    match finding {
        Finding::ExtentMissing { .. }
        | Finding::ExtentUnused { .. }
        | Finding::ExtentOverlap { .. }
        | Finding::ExtentNoGroup { .. }
        | Finding::ExtentWrongGroup { .. }
        | Finding::ExtentLength { .. }
        | Finding::ExtentKind { .. }
        | Finding::ExtentLevel { .. }
        | Finding::ExtentGeneration { .. }
        | Finding::BlockOwner { .. }
        | Finding::RefCount { .. }
        | Finding::RefMissing { .. }
        | Finding::RefStray { .. }
        | Finding::RefNoExtent { .. } => true,
        Finding::BlockBad { tree, .. } | Finding::TreeMissing { tree } => TREES.contains(tree),
        Finding::KeyOrder { tree, .. } | Finding::UnexpectedItem { tree, .. } => {
            *tree == objectid::EXTENT_TREE
        }
        // A shared block whose item counts one ref looks like a block with two parents.
        Finding::BlockTwice { tree, .. } => {
            *tree == objectid::EXTENT_TREE || objectid::is_fs_tree(*tree)
        }
        _ => false,
    }
}

/// Whether a finding cannot hide a user of an extent.
fn harmless(finding: &Finding) -> bool {
    let code = finding.code();
    let about = [
        "Super",
        "Backup",
        "FreeSpace",
        "BlockGroup",
        "Device",
        "Uuid",
    ];
    let names = [
        "BlockCopy",
        "BlockCopiesDiffer",
        "ChecksumStray",
        "QuotaGroup",
        "DirIndexMissing",
        "DirItemMissing",
        "DirItemDiffers",
        "InodeRefMissing",
        "DirEntryMissing",
        "DirEntryType",
        "LinkCount",
        "DirectorySize",
        "OrphanMissing",
        "OrphanStray",
    ];
    concerns(finding) || about.iter().any(|start| code.starts_with(start)) || names.contains(&code)
}

/// Whether the findings leave open which extents are in use.
pub(super) fn doubtful(report: &CheckReport) -> bool {
    report.suppressed > 0 || !report.findings.iter().all(harmless)
}

/// An extent whose items are wrong.
struct Wrong {
    bytenr: u64,
    /// Index among the extents in use; `None` if nothing uses it.
    wanted: Option<usize>,
    found: Items,
}

/// Repairs the extent tree. Returns whether something was changed. `doubt`: see [`doubtful`].
pub(super) fn repair(
    check: &mut Check<'_>,
    report: &CheckReport,
    doubt: bool,
    done: &mut Repaired,
) -> Result<bool, CheckError> {
    if !report.findings.iter().any(concerns) {
        return Ok(false);
    }
    let repaired = repair_known(check, report, doubt, done)?;
    repaired.or_else(|obstacle| {
        leave(done, format!("extent tree: not repaired: {obstacle}"));
        Ok(false)
    })
}

fn leave(done: &mut Repaired, text: String) {
    if !done.left.contains(&text) {
        done.left.push(text);
    }
}

/// The same; the inner error is the reason why nothing was changed.
fn repair_known(
    check: &mut Check<'_>,
    report: &CheckReport,
    doubt: bool,
    done: &mut Repaired,
) -> Result<Result<bool, Obstacle>, CheckError> {
    let nodesize = check.nodesize();
    let form = Form {
        skinny: check.sb.incompat().contains(Incompat::SKINNY_METADATA),
        nodesize,
        limit: (leaf_data_size(nodesize as usize) / 16).saturating_sub(Item::SIZE),
    };
    check.csum_tree();
    let own = rebuild::trees(check);
    if report.findings.iter().any(lost) {
        let used = match collect(check, &own) {
            Ok(_) if doubt => return Ok(Err(Obstacle::Doubt)),
            Ok(used) if !strays(check, &used).is_empty() => return Ok(Err(Obstacle::Doubt)),
            Ok(used) => used,
            Err(obstacle) => return Ok(Err(obstacle)),
        };
        return anew(check, &form, used, Items::new(), done);
    }
    let mut used = match collect(check, &[]) {
        Ok(used) => used,
        Err(obstacle) => return Ok(Err(obstacle)),
    };
    let wrong = compare(check, &form, &mut used);
    let strays = strays(check, &used);
    let (keep, change): (Vec<Wrong>, Vec<Wrong>) = wrong.into_iter().partition(|one| {
        let reason = reason_to_keep(one, &used, doubt, &strays, nodesize);
        if let Some(reason) = reason {
            leave(done, format!("extent {}: {reason}", one.bytenr));
        }
        reason.is_some()
    });
    if change.len() <= IN_PLACE && in_place(check, &form, &used, &change, done)? {
        return Ok(Ok(!change.is_empty()));
    }
    if let Some(odd) = used.iter().find(|used| used.odd) {
        let bytenr = odd.bytenr;
        return Ok(Err(Obstacle::Contradiction { bytenr }));
    }
    used.retain(
        |used| !matches!(*used.refs, [InlineRef::TreeBlock { root }] if own.contains(&root)),
    );
    let kept = keep.into_iter().flat_map(|one| one.found).collect();
    anew(check, &form, used, kept, done)
}

/// Whether a finding shows that the extent tree cannot be read.
fn lost(finding: &Finding) -> bool {
    match finding {
        Finding::BlockBad { .. } | Finding::TreeMissing { .. } => concerns(finding),
        Finding::KeyOrder { tree, .. } | Finding::BlockTwice { tree, .. } => {
            *tree == objectid::EXTENT_TREE
        }
        _ => false,
    }
}

/// Writes the extent tree anew.
fn anew(
    check: &Check<'_>,
    form: &Form,
    used: Vec<Used>,
    kept: Items,
    done: &mut Repaired,
) -> Result<Result<bool, Obstacle>, CheckError> {
    if let Some(odd) = used.iter().find(|used| used.odd) {
        let bytenr = odd.bytenr;
        return Ok(Err(Obstacle::Contradiction { bytenr }));
    }
    let extents = used.len();
    let blocks = match rebuild::write(check, form, &used, &kept)? {
        Ok(blocks) => blocks,
        Err(obstacle) => return Ok(Err(obstacle)),
    };
    let text = format!(
        "extent tree: written anew from the other trees, {extents} extents in {blocks} blocks"
    );
    done.add("ExtentTree", text);
    Ok(Ok(true))
}

/// Data that has checksums and no user.
fn strays(check: &Check<'_>, used: &[Used]) -> Runs {
    let data = used.iter().filter(|used| used.block.is_none());
    let data = join(data.map(|used| (used.bytenr, used.end())));
    difference(check.checksums.runs(), &data)
}

/// Why the items of an extent stay.
fn reason_to_keep(
    wrong: &Wrong,
    used: &[Used],
    doubt: bool,
    strays: &Runs,
    nodesize: u64,
) -> Option<&'static str> {
    if let Some(used) = wrong.wanted.and_then(|at| used.get(at)) {
        return used.odd.then_some("its uses contradict each other");
    }
    let place = place(&wrong.found, nodesize);
    let summed = place.is_some_and(|(start, end, data)| {
        data && strays.iter().any(|(from, to)| *from < end && start < *to)
    });
    if summed {
        return Some("nothing uses it, but it has checksums");
    }
    doubt.then_some("nothing uses it, but other damage may hide its user")
}

/// Writes the items of extents into their leaves. Returns false if some do not fit; then only the
/// items of earlier extents were written.
fn in_place(
    check: &Check<'_>,
    form: &Form,
    used: &[Used],
    wrong: &[Wrong],
    done: &mut Repaired,
) -> Result<bool, CheckError> {
    let tree = objectid::EXTENT_TREE;
    let editor = Editor::new(check);
    for one in wrong {
        let used = one.wanted.and_then(|at| used.get(at));
        let target = used.map(|used| form.encode(used)).unwrap_or_default();
        let stale = one.found.iter().filter(|(key, _)| {
            let mut wanted = target.iter();
            !wanted.any(|(other, _)| other == key)
        });
        for (key, _) in stale {
            if !editor.remove(tree, key)? {
                return Ok(false);
            }
        }
        for (key, data) in target.iter().filter(|item| !one.found.contains(item)) {
            if !editor.put(tree, key, data)? {
                return Ok(false);
            }
        }
        let text = match used {
            Some(_) => "items written from the trees that use it",
            None => "nothing uses it, removed",
        };
        done.add("ExtentItems", format!("extent {}: {text}", one.bytenr));
    }
    Ok(true)
}

/// Compares the items of the extent tree with the extents in use, both ascending.
struct Comparison<'u> {
    form: Form,
    used: &'u mut [Used],
    /// Index of the first extent in use that was not compared.
    next: usize,
    /// Items of one extent.
    group: Items,
    wrong: Vec<Wrong>,
}

/// Returns the extents whose items are wrong. Data gets the generation that its item has.
fn compare(check: &Check<'_>, form: &Form, used: &mut [Used]) -> Vec<Wrong> {
    let tree = objectid::EXTENT_TREE;
    let mut comparison = Comparison {
        form: *form,
        used,
        next: 0,
        group: Items::new(),
        wrong: Vec::new(),
    };
    if let Some(root) = check.roots.pointer(tree) {
        check.range(tree, &root, &Key::MIN, &Key::MAX, &mut |key, data| {
            if describes(key.kind) {
                comparison.add(key, data);
            }
        });
    }
    comparison.end_group();
    comparison.missing_before(u64::MAX);
    comparison.wrong
}

impl Comparison<'_> {
    fn add(&mut self, key: Key, data: &[u8]) {
        let other = self.group.first();
        if other.is_some_and(|(first, _)| first.objectid != key.objectid) {
            self.end_group();
        }
        self.group.push((key, data.to_vec()));
    }

    /// Extents in use below an address that have no items.
    fn missing_before(&mut self, bytenr: u64) {
        while let Some(used) = self.used.get(self.next).filter(|used| used.bytenr < bytenr) {
            self.wrong.push(Wrong {
                bytenr: used.bytenr,
                wanted: Some(self.next),
                found: Items::new(),
            });
            self.next += 1;
        }
    }

    fn end_group(&mut self) {
        let found = std::mem::take(&mut self.group);
        let Some(bytenr) = found.first().map(|(key, _)| key.objectid) else {
            return;
        };
        self.missing_before(bytenr);
        let mut wanted = None;
        if let Some(used) = self.used.get_mut(self.next)
            && used.bytenr == bytenr
        {
            wanted = Some(self.next);
            self.next += 1;
            if used.block.is_none() {
                used.generation = generation(&found, used.len).unwrap_or(used.generation);
            }
            if self.form.agrees(used, &found) {
                return;
            }
        }
        self.wrong.push(Wrong {
            bytenr,
            wanted,
            found,
        });
    }
}
