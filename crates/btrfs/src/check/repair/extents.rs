//! Repairs the extent tree: writes the items of extents from the trees that use them.
//!
//! # How it works
//! The uses of all extents are collected from the trees, and compared with the items of the extent
//! tree, extent by extent. If items differ, or if the extent tree cannot be read, the tree is
//! written anew ([`rebuild`](super::rebuild)). All obstacles are found before the first write.
//!
//! No extent is freed that may have a user: nothing is changed unless every block of every tree can
//! be read. Data without a user is kept; tree blocks without a user are kept if other findings show
//! that trees may be lost. Items of an extent that overlaps one in use are dropped.

use sapwood_btrfs_format::{Incompat, InlineRef, Item, Key, kind, leaf_data_size, objectid};

use super::super::error::CheckError;
use super::super::finding::Finding;
use super::super::free_space::{Runs, difference, join};
use super::super::report::CheckReport;
use super::super::state::Check;
use super::Repaired;
use super::extent_items::{Form, describes, generation, place};
use super::rebuild;
use super::uses::{Obstacle, Used, collect};
use crate::tree::bulk::Items;

/// Most extents that are listed as left, for each reason.
const LISTED: usize = 20;
/// Start of each text about an extent that is left.
const EXTENT: &str = "extent ";

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
        | Finding::FullBackref { .. }
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
    // An earlier round may have listed other extents.
    done.left.retain(|text| !text.starts_with(EXTENT));
    if !report.findings.iter().any(concerns) {
        return Ok(false);
    }
    let repaired = repair_known(check, report, doubt, done)?;
    repaired.or_else(|obstacle| {
        let text = format!("{EXTENT}tree: not repaired: {obstacle}");
        done.left.push(text);
        Ok(false)
    })
}

/// The same; the inner error is the reason why nothing was changed.
fn repair_known(
    check: &mut Check<'_>,
    report: &CheckReport,
    doubt: bool,
    done: &mut Repaired,
) -> Result<Result<bool, Obstacle>, CheckError> {
    if report.findings.iter().any(is_about_chunks) {
        return Ok(Err(Obstacle::Chunks));
    }
    let nodesize = check.nodesize();
    let form = Form {
        skinny: check.sb.incompat().contains(Incompat::SKINNY_METADATA),
        nodesize,
        limit: (leaf_data_size(nodesize as usize) / 16).saturating_sub(Item::SIZE),
    };
    check.csum_tree();
    let own = rebuild::trees(check);
    let unreadable = report.findings.iter().any(lost);
    let no_free_space_tree = report.findings.iter().any(free_space_lost);
    let skipped: &[u64] = if unreadable || no_free_space_tree {
        &own
    } else {
        &[]
    };
    let mut used = match collect(check, skipped) {
        Ok(used) => used,
        Err(obstacle) => return Ok(Err(obstacle)),
    };
    if doubt && !skipped.is_empty() {
        return Ok(Err(Obstacle::Doubt));
    }
    if let Some(odd) = used.iter().find(|used| used.odd) {
        let bytenr = odd.bytenr;
        return Ok(Err(Obstacle::Contradiction { bytenr }));
    }
    let strays = strays(check, &used);
    if unreadable {
        if !strays.is_empty() {
            return Ok(Err(Obstacle::Doubt));
        }
        return anew(check, &form, &used, &Items::new(), &strays, done);
    }
    let mut wrong = compare(check, &form, &mut used);
    let found = wrong.len();
    wrong.retain(|one| may_have_user(one, &used, doubt, nodesize));
    let changed = wrong.len() < found || no_free_space_tree;
    list(&wrong, nodesize, done);
    if !changed {
        return Ok(Ok(false));
    }
    used.retain(
        |used| !matches!(*used.refs, [InlineRef::TreeBlock { root }] if own.contains(&root)),
    );
    let kept = wrong.into_iter().flat_map(|one| one.found).collect();
    anew(check, &form, &used, &kept, &strays, done)
}

/// Whether the map of chunks is in doubt, and with it the space that is free.
fn is_about_chunks(finding: &Finding) -> bool {
    let code = finding.code();
    code.starts_with("Chunk") || code.starts_with("DevExtent")
}

/// Whether a finding shows that the extent tree cannot be read.
pub(super) fn lost(finding: &Finding) -> bool {
    match finding {
        Finding::BlockBad { tree, .. }
        | Finding::TreeMissing { tree }
        | Finding::KeyOrder { tree, .. }
        | Finding::BlockTwice { tree, .. } => *tree == objectid::EXTENT_TREE,
        _ => false,
    }
}

/// Whether a finding shows that the free-space tree cannot be read.
fn free_space_lost(finding: &Finding) -> bool {
    match finding {
        Finding::BlockBad { tree, .. } | Finding::TreeMissing { tree } => {
            *tree == objectid::FREE_SPACE_TREE
        }
        _ => false,
    }
}

/// Writes the extent tree anew. `avoided` is space that stays as it is.
fn anew(
    check: &Check<'_>,
    form: &Form,
    used: &[Used],
    kept: &Items,
    avoided: &Runs,
    done: &mut Repaired,
) -> Result<Result<bool, Obstacle>, CheckError> {
    let extents = used.len();
    let blocks = match rebuild::write(check, form, (used, kept), avoided)? {
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

/// Whether the items of an extent stay, because it may have a user that no tree shows. `used` is
/// ascending, and nothing in it overlaps.
fn may_have_user(wrong: &Wrong, used: &[Used], doubt: bool, nodesize: u64) -> bool {
    if wrong.wanted.is_some() {
        return false;
    }
    let Some((start, end, data)) = place(&wrong.found, nodesize) else {
        // Refs without an extent item.
        return doubt || wrong.found.iter().any(|(key, _)| is_data_ref(key.kind));
    };
    let before = used.partition_point(|used| used.bytenr < end);
    let last = before.checked_sub(1).and_then(|last| used.get(last));
    let overlaps = last.is_some_and(|used| used.end() > start);
    !overlaps && (data || doubt)
}

fn is_data_ref(kind: u8) -> bool {
    matches!(kind, kind::EXTENT_DATA_REF | kind::SHARED_DATA_REF)
}

/// Lists the extents that are kept.
fn list(kept: &[Wrong], nodesize: u64, done: &mut Repaired) {
    let is_data = |one: &&Wrong| place(&one.found, nodesize).is_some_and(|(_, _, is_data)| is_data);
    let (data, other): (Vec<&Wrong>, Vec<&Wrong>) = kept.iter().partition(is_data);
    let reasons = [
        (data, "nothing uses it, but data is never freed"),
        (other, "nothing uses it, but its user may be lost"),
    ];
    for (kept, reason) in reasons {
        for one in kept.iter().take(LISTED) {
            let bytenr = one.bytenr;
            done.left.push(format!("{EXTENT}{bytenr}: {reason}"));
        }
        if let Some(more) = kept.len().checked_sub(LISTED).filter(|more| *more > 0) {
            done.left
                .push(format!("{EXTENT}items of {more} more: {reason}"));
        }
    }
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
