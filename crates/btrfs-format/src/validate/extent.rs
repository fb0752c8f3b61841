//! Checks of extent items and their refs.

use super::item::{Check, Checked, ItemProblem, at_most};
use crate::{ExtentFlags, ExtentItemRef, InlineRef, Key, kind};

impl Check<'_> {
    pub(super) fn extent_item(&self) -> Checked {
        let nodesize = u64::from(self.expect.nodesize);
        let item = ExtentItemRef::parse(self.key.kind, self.data)?;
        self.extent_flags(&item)?;
        let tree_block = item.flags.contains(ExtentFlags::TREE_BLOCK);
        let length = self.extent_length(&self.key);
        self.range("extent", self.key.objectid, length)?;
        if self.key.kind == kind::METADATA_ITEM {
            at_most("level", self.key.offset, crate::block::MAX_LEVEL.into())?;
        } else if tree_block && length != nodesize {
            return Err(ItemProblem::KeyOffset { found: length });
        }
        if let Some((_, level)) = item.tree_block {
            at_most("level", level.into(), crate::block::MAX_LEVEL.into())?;
        }
        if item.refs == 0 {
            return Err(ItemProblem::Field {
                field: "refs",
                value: 0,
            });
        }
        self.generation("generation", item.generation)?;
        self.inline_refs(&item)?;
        match self.previous {
            Some((key, _)) if matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM) => {
                let end = key.objectid.saturating_add(self.extent_length(&key));
                self.after(self.key.objectid, end)
            }
            _ => Ok(()),
        }
    }

    fn extent_length(&self, key: &Key) -> u64 {
        if key.kind == kind::METADATA_ITEM {
            self.expect.nodesize.into()
        } else {
            key.offset
        }
    }

    fn extent_flags(&self, item: &ExtentItemRef<'_>) -> Checked {
        let data = item.flags == ExtentFlags::DATA;
        let tree_block = item.flags - ExtentFlags::FULL_BACKREF == ExtentFlags::TREE_BLOCK;
        if tree_block || (data && self.key.kind == kind::EXTENT_ITEM) {
            return Ok(());
        }
        Err(ItemProblem::Flags {
            field: "extent flags",
            flags: item.flags.bits(),
        })
    }

    fn inline_refs(&self, item: &ExtentItemRef<'_>) -> Checked {
        let tree_block = item.flags.contains(ExtentFlags::TREE_BLOCK);
        let (mut inline, mut last) = (0u64, None);
        for r in item.inline_refs() {
            let r = r?;
            if tree_block != is_tree_ref(&r) {
                return Err(ItemProblem::RefKind { kind: r.kind() });
            }
            self.check_ref(&r)?;
            let order = r.inline_order();
            if last.is_some_and(|last| last > order) {
                return Err(ItemProblem::RefOrder);
            }
            last = Some(order);
            inline = inline.saturating_add(r.count());
        }
        if inline > item.refs {
            return Err(ItemProblem::RefCount {
                inline,
                refs: item.refs,
            });
        }
        Ok(())
    }

    fn check_ref(&self, r: &InlineRef) -> Checked {
        let nonzero = |field, value| {
            if value == 0 {
                Err(ItemProblem::Field { field, value })
            } else {
                Ok(())
            }
        };
        match *r {
            InlineRef::TreeBlock { root } | InlineRef::Owner { root } => nonzero("root", root),
            InlineRef::SharedBlock { parent } => {
                nonzero("parent", parent)?;
                self.sector_aligned("parent", parent)
            }
            InlineRef::ExtentData {
                root,
                objectid: _,
                offset,
                count,
            } => {
                nonzero("root", root)?;
                nonzero("count", count.into())?;
                self.sector_aligned("ref offset", offset)
            }
            InlineRef::SharedData { parent, count } => {
                nonzero("parent", parent)?;
                nonzero("count", count.into())?;
                self.sector_aligned("parent", parent)
            }
        }
    }

    pub(super) fn keyed_ref(&self) -> Checked {
        self.sector_aligned("extent", self.key.objectid)?;
        self.check_ref(&InlineRef::parse_keyed(&self.key, self.data)?)
    }
}

fn is_tree_ref(r: &InlineRef) -> bool {
    matches!(
        r,
        InlineRef::TreeBlock { .. } | InlineRef::SharedBlock { .. }
    )
}
