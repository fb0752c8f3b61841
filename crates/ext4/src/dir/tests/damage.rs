//! Directories that are damaged: every call ends, in an error where it meets the damage.

use super::*;

/// Places of the directory's blocks on the device, the first one first.
fn places(bed: &Bed) -> Vec<u64> {
    (0..bed.blocks())
        .map(|logical| {
            let buffer = map::block_of(bed.engine(), &bed.dir, logical.into());
            buffer.unwrap().block()
        })
        .collect()
}

struct Broken {
    bytes: Vec<u8>,
    block_size: u64,
    places: Vec<u64>,
    names: Vec<Vec<u8>>,
    target: u32,
}

/// A directory with an index of two levels, its blocks without checksums unless asked for.
fn sound(args: &str) -> Broken {
    let bed = Bed::new(16 * MIB, args);
    let names: Vec<_> = (0..900).map(|number| numbered(number, 200)).collect();
    for name in &names {
        bed.insert(name, 0).unwrap();
    }
    let (levels, _) = htree::shape(&Dir::open(bed.engine(), &bed.dir).unwrap()).unwrap();
    assert_eq!(levels, 1);
    let places = places(&bed);
    let target = bed.targets[0].0.ino;
    let block_size = bed.engine().block_size();
    bed.fs.close().unwrap();
    let mut bytes = vec![0; usize::try_from(bed.device.size()).unwrap()];
    bed.device.read_at(0, &mut bytes).unwrap();
    Broken {
        bytes,
        block_size,
        places,
        names,
        target,
    }
}

impl Broken {
    /// The device with these bytes at an offset of one of the directory's blocks.
    fn with(&self, changes: &[(usize, usize, &[u8])]) -> Arc<MemoryDevice> {
        let device = Arc::new(MemoryDevice::new(self.bytes.len() as u64));
        device.write_at(0, &self.bytes).unwrap();
        for (logical, offset, bytes) in changes {
            let at = self.places[*logical] * self.block_size + *offset as u64;
            device.write_at(at, bytes).unwrap();
        }
        device
    }

    fn byte(&self, logical: usize, offset: usize) -> u8 {
        let at = self.places[logical] * self.block_size;
        self.bytes[usize::try_from(at).unwrap() + offset]
    }

    /// A block of the first entry of the root, and one of the second.
    fn nodes(&self) -> [usize; 2] {
        [32 + 4, 40 + 4]
            .map(|at| usize::from(self.byte(0, at)) | usize::from(self.byte(0, at + 1)) << 8)
    }
}

/// Lists all, looks for all names, and counts the errors of each; `Err` of the listing is passed
/// on.
fn tour(fs: &Ext4, dir: &Inode, names: &[Vec<u8>]) -> (Result<usize>, usize) {
    let mut count = 0;
    let listed = readdir(&fs.engine, dir, 0, &mut |_| {
        count += 1;
        ControlFlow::Continue(())
    });
    let refused = names
        .iter()
        .filter(|name| find(&fs.engine, dir, name).is_err())
        .count();
    let _ = (is_empty(&fs.engine, dir), parent(&fs.engine, dir));
    (listed.map(|()| count), refused)
}

/// The result of a listing after a change of the directory's bytes.
fn verdict(broken: &Broken, changes: &[(usize, usize, &[u8])]) -> String {
    let device = broken.with(changes);
    let fs = open(&device, options());
    let number = fs.lookup(fs.root(), b"names").unwrap().attr.ino;
    let dir = inode(&fs, number);
    match tour(&fs, &dir, &broken.names).0 {
        Ok(count) => format!("{count} names"),
        Err(Error::BadBlock { ino, block, reason }) => {
            assert_eq!(ino, dir.ino);
            assert!(broken.places.contains(&block), "{block}: {reason}");
            reason
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn damage_of_an_index_is_told_by_block() {
    if left_out(TOOLS) {
        return;
    }
    let plain = sound("-b 1024 -O ^metadata_csum,^has_journal");
    let [first, second] = plain.nodes();
    assert_eq!(verdict(&plain, &[]), "900 names");
    let expect = |changes: &[(usize, usize, &[u8])], what: &str| {
        let said = verdict(&plain, changes);
        assert!(said.contains(what), "{said}: not {what}");
    };
    // A limit that is another's, no entry, more entries than the limit.
    expect(&[(0, 32, &[9, 0])], "limit");
    expect(&[(first, 10, &[0, 0])], "0 entries");
    expect(&[(first, 10, &[255, 255])], "entries of");
    // The root below itself; a leaf after the end; one node in two places.
    expect(&[(0, 36, &[0, 0, 0, 0])], "block 0 of");
    expect(&[(first, 12, &[255, 255, 255, 0])], "of");
    let node = (second as u32).to_le_bytes();
    expect(&[(0, 36, &node)], "outside of");
    // A node that leads to itself has names by its looks.
    let node = (first as u32).to_le_bytes();
    expect(&[(first, 12, &node)], "of the index and has names too");
    // One leaf in two places: its names are in the wrong one.
    let mut leaf = [0; 4];
    for (at, byte) in leaf.iter_mut().enumerate() {
        *byte = plain.byte(first, 12 + at);
    }
    expect(&[(second, 12, &leaf)], "a name with hash");
    // More levels than may be, another kind of hash, no `..`.
    expect(&[(0, 30, &[2])], "2 inner levels");
    expect(&[(0, 28, &[77])], "hash of kind 77");
    expect(&[(0, 20, b"xx")], "without . and ..");
    let leaf = u32::from_le_bytes(leaf) as usize;
    expect(&[(leaf, 4, &[3, 0])], "of length 3");
}

#[test]
fn a_wrong_checksum_is_told_by_block() {
    if left_out(TOOLS) {
        return;
    }
    let sealed = sound("-b 1024 -O ^has_journal");
    let [first, _] = sealed.nodes();
    assert_eq!(verdict(&sealed, &[]), "900 names");
    let leaf = usize::from(sealed.byte(first, 12)) | usize::from(sealed.byte(first, 13)) << 8;
    for (block, offset) in [(0, 32 + 8), (first, 8 + 8), (leaf, 8)] {
        let byte = [sealed.byte(block, offset) ^ 1];
        let said = verdict(&sealed, &[(block, offset, &byte)]);
        assert!(said.contains("checksum"), "{said}");
    }
}

#[test]
fn random_damage_ends_in_an_answer() {
    if left_out(TOOLS) {
        return;
    }
    let plain = sound("-b 1024 -O ^metadata_csum,^has_journal");
    let mut rng = Rng::with_seed(11);
    let mut told = 0;
    for _ in 0..150 {
        let mut changes = Vec::new();
        for _ in 0..rng.usize(1..4) {
            // Half of the damage where the index is.
            let logical = if rng.bool() {
                *rng.choice(&[0, plain.nodes()[0], plain.nodes()[1]])
                    .unwrap()
            } else {
                rng.usize(..plain.places.len())
            };
            let bytes: Vec<u8> = (0..rng.usize(1..5)).map(|_| rng.u8(..)).collect();
            changes.push((logical, rng.usize(..128), bytes));
        }
        let changes: Vec<_> = changes
            .iter()
            .map(|(logical, offset, bytes)| (*logical, *offset, bytes.as_slice()))
            .collect();
        let device = plain.with(&changes);
        let fs = open(&device, options());
        let number = fs.lookup(fs.root(), b"names").unwrap().attr.ino;
        let dir = inode(&fs, number);
        let (listed, refused) = tour(&fs, &dir, &plain.names);
        told += usize::from(listed.is_err() || refused > 0);
        for number in 0..40 {
            let name = numbered(10_000 + number, 200);
            let Ok(room) = room(&fs.engine, &dir, &name) else {
                continue;
            };
            let h = fs.engine.start(room.credits + 2).unwrap();
            let _ = insert(&fs.engine, &h, &dir, &name, plain.target, FileKind::Regular);
            let _ = remove(&fs.engine, &h, &dir, &plain.names[number * 20]);
            dir.store(&fs.engine, &h).unwrap();
        }
        let _ = tour(&fs, &dir, &plain.names);
    }
    assert!(told > 75, "{told}");
}
