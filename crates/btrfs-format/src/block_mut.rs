//! Changes tree blocks in place.
//!
//! # How it works
//! A leaf's data is packed: the data of item 0 ends at the end of the block, and the data of each
//! next item ends where the previous data begins. Every operation keeps this. It first checks room
//! and slots, and changes nothing if it fails. A leaf that is not
//! packed, which the validator refuses on read, gives [`Error::ItemBounds`]. Between neighbours,
//! whole items move: to the right from the end of this block to the front of the other, to the left
//! from the front to the end.

use zerocopy::{FromBytes, IntoBytes};

use crate::block::{Block, Error, Header, Item, KeyPtr, header_flag};
use crate::{DiskKey, Key};

/// Header fields of a new block.
#[derive(Clone, Copy, Debug)]
pub struct BlockInit {
    /// Logical address.
    pub bytenr: u64,
    /// 0: leaf.
    pub level: u8,
    /// Transid.
    pub generation: u64,
    /// Tree.
    pub owner: u64,
    /// fsid that tree blocks carry ([`SuperBlock::tree_fsid`](crate::SuperBlock::tree_fsid)).
    pub fsid: [u8; 16],
    /// uuid of the chunk tree.
    pub chunk_tree_uuid: [u8; 16],
}

/// A tree block, borrowed for change. The checksum is not updated; seal the block before writing.
pub struct BlockMut<'a> {
    header: &'a mut Header,
    body: &'a mut [u8],
}

/// Range of the data of a run of leaf items: `[begin, end)` in the body.
#[derive(Clone, Copy)]
struct Span {
    begin: usize,
    end: usize,
}

impl<'a> BlockMut<'a> {
    /// Borrows a block, with the checks of [`Block::new`].
    pub fn new(bytes: &'a mut [u8]) -> Result<Self, Error> {
        Block::new(bytes)?;
        Self::split(bytes)
    }

    fn split(bytes: &'a mut [u8]) -> Result<Self, Error> {
        let len = bytes.len();
        let (header, body) = Header::mut_from_prefix(bytes).map_err(|_| Error::TooSmall { len })?;
        Ok(Self { header, body })
    }

    /// Creates an empty block: zeros after the header.
    ///
    /// # Errors
    /// [`Error::TooSmall`].
    pub fn init(bytes: &'a mut [u8], init: &BlockInit) -> Result<Self, Error> {
        bytes.fill(0);
        let this = Self::split(bytes)?;
        this.header.fsid = init.fsid;
        this.header.bytenr = init.bytenr.into();
        let rev = header_flag::MIXED_BACKREF_REV << header_flag::BACKREF_REV_SHIFT;
        this.header.flags = (header_flag::WRITTEN | rev).into();
        this.header.chunk_tree_uuid = init.chunk_tree_uuid;
        this.header.generation = init.generation.into();
        this.header.owner = init.owner.into();
        this.header.level = init.level;
        Ok(this)
    }

    /// A read-only view.
    pub fn view(&self) -> Block<'_> {
        Block {
            header: self.header,
            body: self.body,
        }
    }

    /// The header, for change. Leave `nritems` and `level` to the operations here.
    pub fn header_mut(&mut self) -> &mut Header {
        self.header
    }

    /// Sets the generation.
    pub fn set_generation(&mut self, generation: u64) {
        self.header.generation = generation.into();
    }

    /// Sets the logical address.
    pub fn set_bytenr(&mut self, bytenr: u64) {
        self.header.bytenr = bytenr.into();
    }

    /// Sets the owner.
    pub fn set_owner(&mut self, owner: u64) {
        self.header.owner = owner.into();
    }

    fn set_nritems(&mut self, nritems: usize) {
        self.header.nritems = (nritems as u32).into();
    }

    fn bad_slot(&self, slot: usize) -> Error {
        let view = self.view();
        Error::Slot {
            bytenr: view.bytenr(),
            slot,
            nritems: view.nritems(),
        }
    }

    fn want_leaf(&self) -> Result<(), Error> {
        let view = self.view();
        if view.is_leaf() {
            return Ok(());
        }
        Err(Error::WrongLevel {
            bytenr: view.bytenr(),
            level: view.level(),
        })
    }

    fn want_node(&self) -> Result<(), Error> {
        let view = self.view();
        if !view.is_leaf() {
            return Ok(());
        }
        Err(Error::WrongLevel {
            bytenr: view.bytenr(),
            level: view.level(),
        })
    }

    fn want_space(&self, need: usize) -> Result<(), Error> {
        let free = self.view().free_space();
        if need <= free {
            return Ok(());
        }
        Err(Error::NoSpace {
            bytenr: self.view().bytenr(),
            need,
            free,
        })
    }

    /// Data of slots `from..to` of a packed leaf, checked to follow the item headers.
    fn span(&self, from: usize, to: usize) -> Result<Span, Error> {
        let view = self.view();
        let span = Span {
            begin: view.data_end(to),
            end: view.data_end(from),
        };
        let front = view.nritems() * Item::SIZE;
        if front <= span.begin && span.begin <= span.end && span.end <= self.body.len() {
            return Ok(span);
        }
        let slot = from.min(view.nritems().saturating_sub(1));
        let item = view.item(slot)?;
        let (offset, size) = (item.offset.get(), item.size.get());
        Err(Error::ItemBounds {
            bytenr: view.bytenr(),
            slot,
            offset,
            size,
        })
    }

    fn items_mut(&mut self) -> &mut [Item] {
        let len = self.view().nritems() * Item::SIZE;
        match self.body.get_mut(..len) {
            Some(front) => <[Item]>::mut_from_bytes(front).unwrap_or_default(),
            None => &mut [],
        }
    }

    fn ptrs_mut(&mut self) -> &mut [KeyPtr] {
        let len = self.view().nritems() * KeyPtr::SIZE;
        match self.body.get_mut(..len) {
            Some(front) => <[KeyPtr]>::mut_from_bytes(front).unwrap_or_default(),
            None => &mut [],
        }
    }

    /// Adds `delta` to the data offsets of slots `from..`.
    fn shift_offsets(&mut self, from: usize, delta: isize) {
        for item in self.items_mut().iter_mut().skip(from) {
            item.offset = item.offset.get().wrapping_add_signed(delta as i32).into();
        }
    }

    /// Data of a leaf's slot, for change.
    pub fn item_data_mut(&mut self, slot: usize) -> Result<&mut [u8], Error> {
        let item = *self.view().item(slot)?;
        let (offset, size) = (item.offset.get(), item.size.get());
        let bounds = Error::ItemBounds {
            bytenr: self.header.bytenr.get(),
            slot,
            offset,
            size,
        };
        let end = (offset as usize).checked_add(size as usize).ok_or(bounds)?;
        self.body.get_mut(offset as usize..end).ok_or(bounds)
    }

    /// Inserts an item with `size` zero bytes of data, and returns them. The caller keeps the keys
    /// in order.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if `size` and an item header do not fit, [`Error::Slot`],
    /// [`Error::WrongLevel`].
    pub fn insert_item(&mut self, slot: usize, key: &Key, size: usize) -> Result<&mut [u8], Error> {
        self.want_leaf()?;
        let count = self.view().nritems();
        if slot > count {
            return Err(self.bad_slot(slot));
        }
        self.want_space(size.saturating_add(Item::SIZE))?;
        let tail = self.span(slot, count)?;
        self.body
            .copy_within(tail.begin..tail.end, tail.begin - size);
        self.shift_offsets(slot, -(size as isize));
        let begin = slot * Item::SIZE;
        self.body
            .copy_within(begin..count * Item::SIZE, begin + Item::SIZE);
        self.set_nritems(count + 1);
        let offset = tail.end - size;
        if let Some(item) = self.items_mut().get_mut(slot) {
            *item = Item {
                key: DiskKey::from(*key),
                offset: (offset as u32).into(),
                size: (size as u32).into(),
            };
        }
        let data = self.item_data_mut(slot)?;
        data.fill(0);
        Ok(data)
    }

    /// Inserts an item with the given data, see [`insert_item`](Self::insert_item).
    pub fn insert(&mut self, slot: usize, key: &Key, data: &[u8]) -> Result<(), Error> {
        self.insert_item(slot, key, data.len())?
            .copy_from_slice(data);
        Ok(())
    }

    /// Removes items `slot..slot + count` of a leaf.
    pub fn remove_items(&mut self, slot: usize, count: usize) -> Result<(), Error> {
        self.want_leaf()?;
        let total = self.view().nritems();
        let Some(end) = slot.checked_add(count).filter(|end| *end <= total) else {
            return Err(self.bad_slot(slot.saturating_add(count)));
        };
        let gone = self.span(slot, end)?;
        let tail = self.span(end, total)?;
        let size = gone.end - gone.begin;
        self.body
            .copy_within(tail.begin..tail.end, tail.begin + size);
        self.shift_offsets(end, size as isize);
        self.body
            .copy_within(end * Item::SIZE..total * Item::SIZE, slot * Item::SIZE);
        self.set_nritems(total - count);
        Ok(())
    }

    /// Resizes an item. With `at_front`, bytes are added or removed at the front of its data,
    /// otherwise at the end. New bytes are zero.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Slot`], [`Error::WrongLevel`].
    pub fn resize_item(&mut self, slot: usize, size: usize, at_front: bool) -> Result<(), Error> {
        self.want_leaf()?;
        let old = self.view().item_size(slot)?;
        if size > old {
            self.want_space(size - old)?;
        }
        let (own, all) = (
            self.span(slot, slot + 1)?,
            self.span(slot, self.view().nritems())?,
        );
        let keep = old.min(size);
        // All data before the point where bytes are added or removed moves.
        let point = if at_front {
            own.end - keep
        } else {
            own.begin + keep
        };
        let from = if at_front { own.begin } else { point };
        if size >= old {
            let grow = size - old;
            let moved = if at_front { own.begin } else { own.end };
            self.body.copy_within(all.begin..moved, all.begin - grow);
            self.body
                .get_mut(moved - grow..moved)
                .unwrap_or_default()
                .fill(0);
            self.shift_offsets(slot, -(grow as isize));
        } else {
            let shrink = old - size;
            self.body.copy_within(all.begin..from, all.begin + shrink);
            self.shift_offsets(slot, shrink as isize);
        }
        if let Some(item) = self.items_mut().get_mut(slot) {
            item.size = (size as u32).into();
        }
        Ok(())
    }

    /// Changes the key of a leaf's slot. The caller keeps the keys in order.
    pub fn set_item_key(&mut self, slot: usize, key: &Key) -> Result<(), Error> {
        self.want_leaf()?;
        let bad = self.bad_slot(slot);
        self.items_mut().get_mut(slot).ok_or(bad)?.key = (*key).into();
        Ok(())
    }

    /// Inserts a pointer into a node.
    pub fn insert_ptr(
        &mut self,
        slot: usize,
        key: &Key,
        blockptr: u64,
        generation: u64,
    ) -> Result<(), Error> {
        self.want_node()?;
        let count = self.view().nritems();
        if slot > count {
            return Err(self.bad_slot(slot));
        }
        self.want_space(KeyPtr::SIZE)?;
        let begin = slot * KeyPtr::SIZE;
        self.body
            .copy_within(begin..count * KeyPtr::SIZE, begin + KeyPtr::SIZE);
        self.set_nritems(count + 1);
        if let Some(ptr) = self.ptrs_mut().get_mut(slot) {
            *ptr = KeyPtr {
                key: DiskKey::from(*key),
                blockptr: blockptr.into(),
                generation: generation.into(),
            };
        }
        Ok(())
    }

    /// Removes pointers `slot..slot + count` of a node.
    pub(crate) fn remove_ptrs(&mut self, slot: usize, count: usize) -> Result<(), Error> {
        self.want_node()?;
        let total = self.view().nritems();
        let Some(end) = slot.checked_add(count).filter(|end| *end <= total) else {
            return Err(self.bad_slot(slot.saturating_add(count)));
        };
        self.body.copy_within(
            end * KeyPtr::SIZE..total * KeyPtr::SIZE,
            slot * KeyPtr::SIZE,
        );
        self.set_nritems(total - count);
        Ok(())
    }

    /// Removes one pointer of a node.
    pub fn remove_ptr(&mut self, slot: usize) -> Result<(), Error> {
        self.remove_ptrs(slot, 1)
    }

    fn ptr_mut(&mut self, slot: usize) -> Result<&mut KeyPtr, Error> {
        self.want_node()?;
        let bad = self.bad_slot(slot);
        self.ptrs_mut().get_mut(slot).ok_or(bad)
    }

    /// Changes the key of a slot, of a node or a leaf. The caller keeps the keys in order.
    pub fn set_key(&mut self, slot: usize, key: &Key) -> Result<(), Error> {
        if self.header.level == 0 {
            return self.set_item_key(slot, key);
        }
        self.ptr_mut(slot)?.key = (*key).into();
        Ok(())
    }

    /// Changes the target of a node's pointer.
    pub fn set_child(&mut self, slot: usize, blockptr: u64, generation: u64) -> Result<(), Error> {
        let ptr = self.ptr_mut(slot)?;
        ptr.blockptr = blockptr.into();
        ptr.generation = generation.into();
        Ok(())
    }

    fn want_same_level(&self, other: &BlockMut<'_>) -> Result<(), Error> {
        if self.header.level == other.header.level {
            return Ok(());
        }
        let other = other.view();
        Err(Error::WrongLevel {
            bytenr: other.bytenr(),
            level: other.level(),
        })
    }

    /// Moves the last `count` items or pointers to the front of the right neighbour.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if they do not fit there, [`Error::Slot`] if there are fewer,
    /// [`Error::WrongLevel`] if the levels differ.
    pub fn push_right(&mut self, right: &mut BlockMut<'_>, count: usize) -> Result<(), Error> {
        let total = self.view().nritems();
        let from = total
            .checked_sub(count)
            .ok_or_else(|| self.bad_slot(count))?;
        self.transfer(from, total, right, 0)
    }

    /// Moves the first `count` items or pointers to the end of the left neighbour.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if they do not fit there, [`Error::Slot`] if there are fewer,
    /// [`Error::WrongLevel`] if the levels differ.
    pub fn push_left(&mut self, left: &mut BlockMut<'_>, count: usize) -> Result<(), Error> {
        let to = left.view().nritems();
        self.transfer(0, count, left, to)
    }

    /// Moves items or pointers `slot..` to the front of `right`, usually a new block.
    pub fn split_at(&mut self, slot: usize, right: &mut BlockMut<'_>) -> Result<(), Error> {
        let total = self.view().nritems();
        let count = total.checked_sub(slot).ok_or_else(|| self.bad_slot(slot))?;
        self.push_right(right, count)
    }

    /// Moves slots `from..end` to `other`, before its slot `to`.
    fn transfer(
        &mut self,
        from: usize,
        end: usize,
        other: &mut BlockMut<'_>,
        to: usize,
    ) -> Result<(), Error> {
        self.want_same_level(other)?;
        if end > self.view().nritems() {
            return Err(self.bad_slot(end));
        }
        if self.header.level == 0 {
            self.copy_items(from, end, other, to)?;
            return self.remove_items(from, end - from);
        }
        let moved = self.view().ptrs().get(from..end).unwrap_or_default();
        other.want_space(size_of_val(moved))?;
        let (count, at) = (other.view().nritems(), to * KeyPtr::SIZE);
        other
            .body
            .copy_within(at..count * KeyPtr::SIZE, at + size_of_val(moved));
        if let Some(room) = other.body.get_mut(at..at + size_of_val(moved)) {
            room.copy_from_slice(moved.as_bytes());
        }
        other.set_nritems(count + moved.len());
        self.remove_ptrs(from, end - from)
    }

    /// Copies leaf items `from..end` into `other` before its slot `to`.
    fn copy_items(
        &self,
        from: usize,
        end: usize,
        other: &mut BlockMut<'_>,
        to: usize,
    ) -> Result<(), Error> {
        let source = self.span(from, end)?;
        let size = source.end - source.begin;
        let moved = self.view().items().get(from..end).unwrap_or_default();
        other.want_space(size + size_of_val(moved))?;
        let count = other.view().nritems();
        let tail = other.span(to, count)?;
        other
            .body
            .copy_within(tail.begin..tail.end, tail.begin - size);
        other.shift_offsets(to, -(size as isize));
        let at = to * Item::SIZE;
        other
            .body
            .copy_within(at..count * Item::SIZE, at + size_of_val(moved));
        if let Some(room) = other.body.get_mut(at..at + size_of_val(moved)) {
            room.copy_from_slice(moved.as_bytes());
        }
        other.set_nritems(count + moved.len());
        // The run keeps its inner order; only the position of its end changes.
        let delta = tail.end as isize - source.end as isize;
        for item in other.items_mut().iter_mut().skip(to).take(moved.len()) {
            item.offset = item.offset.get().wrapping_add_signed(delta as i32).into();
        }
        let data = self.body.get(source.begin..source.end).unwrap_or_default();
        if let Some(room) = other.body.get_mut(tail.end - size..tail.end) {
            room.copy_from_slice(data);
        }
        Ok(())
    }

    /// Zeroes the free space, so that no bytes of deleted items reach the disk.
    pub fn zero_free_space(&mut self) {
        let view = self.view();
        let (begin, end) = if view.is_leaf() {
            (view.nritems() * Item::SIZE, view.data_end(view.nritems()))
        } else {
            (view.nritems() * KeyPtr::SIZE, self.body.len())
        };
        if let Some(free) = self.body.get_mut(begin..end) {
            free.fill(0);
        }
    }
}
