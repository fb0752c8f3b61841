//! Random changes against a map in memory.

use super::*;

/// A listing by pages, and its required result for any changes between the pages.
struct Listing {
    from: u64,
    /// Names that existed during the whole listing.
    stayed: BTreeSet<Vec<u8>>,
    seen: BTreeSet<Vec<u8>>,
}

impl Listing {
    fn new(names: &BTreeMap<Vec<u8>, usize>) -> Self {
        Self {
            from: 0,
            stayed: names.keys().cloned().collect(),
            seen: BTreeSet::new(),
        }
    }

    /// Reads a page; true at the end.
    fn go_on(&mut self, bed: &Bed, count: usize) -> bool {
        let page = bed.page(self.from, count);
        for entry in &page {
            let twice = !self.seen.insert(entry.name.clone());
            assert!(!twice || !self.stayed.contains(&entry.name), "listed twice");
        }
        match page.last() {
            Some(last) => {
                assert!(last.next > self.from && last.next < i64::MAX as u64);
                self.from = last.next;
                false
            }
            None => {
                assert!(
                    self.stayed.is_subset(&self.seen),
                    "left out: {:?}",
                    self.stayed.difference(&self.seen).next()
                );
                true
            }
        }
    }
}

/// The changes of names.
struct Play {
    steps: usize,
    most: usize,
    shortest: usize,
    longest: usize,
    seed: u64,
}

fn compare(bed: &Bed, names: &BTreeMap<Vec<u8>, usize>) {
    let mut listed = BTreeMap::new();
    for entry in bed.listed(37) {
        let target = bed
            .targets
            .iter()
            .position(|(inode, _)| inode.number() == entry.ino);
        assert_eq!(entry.kind, bed.targets[target.unwrap()].1);
        assert_eq!(listed.insert(entry.name, target.unwrap()), None);
    }
    assert!(listed == *names);
    for (name, target) in names {
        assert_eq!(bed.find(name), Some(*target));
    }
    let empty = is_empty(bed.engine(), &bed.dir).unwrap();
    assert_eq!(empty, names.is_empty());
    let up = parent(bed.engine(), &bed.dir).unwrap();
    assert_eq!(Ino(up.into()), bed.fs.root());
}

fn step(bed: &Bed, rng: &mut Rng, play: &Play, names: &mut BTreeMap<Vec<u8>, usize>) -> Vec<u8> {
    let number = rng.usize(..play.most * 2);
    // The length belongs to the number, so that names come back.
    let spread = play.longest - play.shortest + 1;
    let name = numbered(number, play.shortest + number * 7919 % spread);
    let target = rng.usize(..bed.targets.len());
    match names.get(&name) {
        None => {
            assert_eq!(bed.find(&name), None);
            assert!(bed.remove(&name).is_err());
            if names.len() < play.most {
                bed.insert(&name, target).unwrap();
                names.insert(name.clone(), target);
            }
        }
        Some(_) if rng.u8(..4) == 0 => {
            bed.replace(&name, target).unwrap();
            names.insert(name.clone(), target);
        }
        Some(_) => {
            bed.remove(&name).unwrap();
            names.remove(&name);
            assert_eq!(bed.find(&name), None);
            return name;
        }
    }
    Vec::new()
}

fn run(bed: &Bed, play: &Play) -> BTreeMap<Vec<u8>, usize> {
    let mut rng = Rng::with_seed(play.seed);
    let mut names = BTreeMap::new();
    let mut listing = Listing::new(&names);
    for round in 0..play.steps {
        let removed = step(bed, &mut rng, play, &mut names);
        listing.stayed.remove(&removed);
        if round % 5 == 0 && listing.go_on(bed, 1 + round % 13) {
            listing = Listing::new(&names);
        }
        if round == play.steps / 7 {
            compare(bed, &names);
        }
    }
    while !listing.go_on(bed, 100) {}
    compare(bed, &names);
    names
}

/// Plays on a new file system, and again on the same one after it was closed.
fn plays(what: &str, args: &str, size: u64, play: &Play) -> Form {
    let bed = Bed::new(size, args);
    let names = run(&bed, play);
    let form = bed.form();
    let device = bed.check(&names, what);
    let fs = open(&device, options());
    let dir = fs.lookup(fs.root(), b"names").unwrap().attr.ino;
    let mut listed = BTreeSet::new();
    fs.readdir(dir, 0, &mut |entry| {
        assert!(listed.insert(entry.name));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(listed.iter().eq(names.keys()));
    form
}

const SMALL: Play = Play {
    steps: 400,
    most: 6,
    shortest: 1,
    longest: 20,
    seed: 1,
};

const LONG: Play = Play {
    steps: 9000,
    most: 2500,
    shortest: 60,
    longest: 255,
    seed: 2,
};

#[test]
fn a_linear_directory_is_what_the_model_is() {
    if left_out(TOOLS) {
        return;
    }
    for args in ["-O ^dir_index -b 1024", "-t ext2 -O ^dir_index,^filetype"] {
        assert_eq!(plays(args, args, 32 * MIB, &SMALL), Form::Linear);
        let play = Play {
            steps: 3000,
            most: 500,
            ..LONG
        };
        assert_eq!(plays(args, args, 32 * MIB, &play), Form::Linear);
    }
}

#[test]
fn an_index_of_any_hash_is_what_the_model_is() {
    if left_out(TOOLS) {
        return;
    }
    for hash in ["legacy", "half_md4", "tea"] {
        for unsigned in [false, true] {
            let device = image(48 * MIB, "-b 1024 -J size=4");
            set_hash(&device, hash, unsigned);
            let bed = Bed::on(device);
            let names = run(&bed, &LONG);
            assert_eq!(bed.form(), Form::Indexed);
            let levels = htree::shape(&Dir::open(bed.engine(), &bed.dir).unwrap());
            assert_eq!(levels.unwrap().0, 1, "{hash}");
            bed.check(&names, &format!("{hash}, unsigned: {unsigned}"));
        }
    }
}

fn set_hash(device: &MemoryDevice, hash: &str, unsigned: bool) {
    let mut bytes = vec![0; SUPER_SIZE];
    device.read_at(SUPER_OFFSET, &mut bytes).unwrap();
    let mut sb = SuperBlock::parse(&bytes).unwrap();
    sb.def_hash_version = match hash {
        "legacy" => 0,
        "half_md4" => 1,
        _ => 2,
    };
    let sign = [SuperFlags::SIGNED_HASH, SuperFlags::UNSIGNED_HASH];
    let flags = sb.flags() - (sign[0] | sign[1]);
    sb.flags = (flags | sign[usize::from(unsigned)]).bits().into();
    sb.set_checksum();
    device.write_at(SUPER_OFFSET, sb.bytes()).unwrap();
}

#[test]
fn old_block_maps_hold_indexed_directories() {
    if left_out(TOOLS) {
        return;
    }
    let args = "-t ext3 -b 1024";
    assert_eq!(plays(args, args, 48 * MIB, &LONG), Form::Indexed);
    let play = Play { seed: 3, ..LONG };
    let args = "-O ^metadata_csum,^filetype -b 2048";
    assert_eq!(plays(args, args, 48 * MIB, &play), Form::Indexed);
}

#[test]
fn names_in_the_inode_are_what_the_model_is() {
    if left_out(TOOLS) {
        return;
    }
    for (size, index) in [(256, ""), (512, ",^dir_index"), (1024, "")] {
        let args = format!("-O inline_data{index} -b 1024 -I {size}");
        let few = Play {
            most: 4,
            longest: 12,
            ..SMALL
        };
        assert_eq!(plays(&args, &args, 32 * MIB, &few), Form::Inline);
        for (most, seed) in [(12, 3), (30, 4), (300, 5)] {
            let play = Play {
                steps: 1500,
                most,
                seed,
                ..SMALL
            };
            plays(&args, &args, 32 * MIB, &play);
        }
    }
}

#[test]
fn a_full_index_grows_a_third_level_or_says_so() {
    if left_out(TOOLS) {
        return;
    }
    for large in [false, true] {
        let feature = if large { "large_dir" } else { "^large_dir" };
        let args = format!("-O {feature} -b 1024 -J size=4");
        let bed = Bed::new(160 * MIB, &args);
        let mut names = BTreeMap::new();
        let mut refused = false;
        for number in 0..60_000 {
            let name = numbered(number, 250);
            if let Err(error) = bed.insert(&name, number % 2) {
                assert!(matches!(error, Error::NoSpace));
                refused = true;
                break;
            }
            names.insert(name, number % 2);
        }
        let (levels, _) = htree::shape(&Dir::open(bed.engine(), &bed.dir).unwrap()).unwrap();
        assert_eq!(
            (levels, refused),
            if large { (2, false) } else { (1, true) }
        );
        // An index is full when its root is; each node below may be as little as half full.
        assert!(bed.blocks() > 7_000);
        for (name, target) in names.iter().step_by(97) {
            assert_eq!(bed.find(name), Some(*target));
        }
        assert_eq!(bed.listed(1000).len(), names.len());
        bed.check(&names, &args);
    }
}

/// Names, two or more of each hash.
fn colliding(hasher: &sapwood_ext4_format::DirHasher) -> Vec<Vec<u8>> {
    let mut by_hash = std::collections::HashMap::new();
    let mut names = BTreeSet::new();
    for number in 0..1_000_000_u32 {
        let mut name = vec![b'n'; 230];
        name.extend(format!("{number:x}").bytes());
        let hash = hasher.hash(&name).unwrap().major;
        if let Some(other) = by_hash.insert(hash, number) {
            let mut twin = vec![b'n'; 230];
            twin.extend(format!("{other:x}").bytes());
            names.extend([name, twin]);
        }
    }
    names.into_iter().collect()
}

#[test]
fn names_of_one_hash_in_two_leaves_are_found_and_listed_once() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(32 * MIB, "-b 1024");
    set_hash(&device, "legacy", true);
    let bed = Bed::on(device);
    let hasher = htree::default_hasher(&Dir::open(bed.engine(), &bed.dir).unwrap()).unwrap();
    let all = colliding(&hasher);
    assert!(all.len() > 200);
    let mut names = BTreeMap::new();
    for (number, name) in all.iter().enumerate() {
        bed.insert(name, number % 3).unwrap();
        names.insert(name.clone(), number % 3);
    }
    {
        let dir = Dir::open(bed.engine(), &bed.dir).unwrap();
        let mut path = htree::Path::to(&dir, htree::root(&dir).unwrap().0, 0).unwrap();
        let mut continued = 0;
        while path.advance(&dir).unwrap() {
            continued += path.low & 1;
        }
        assert!(continued > 0);
    }
    for count in [1, 2, 50] {
        let listed: BTreeSet<_> = bed.listed(count).into_iter().map(|e| e.name).collect();
        assert_eq!(bed.listed(count).len(), names.len());
        assert!(listed.iter().eq(names.keys()));
    }
    for (number, name) in all.iter().enumerate() {
        assert_eq!(bed.find(name), Some(number % 3));
        if number % 2 == 0 {
            bed.remove(name).unwrap();
            names.remove(name);
        }
    }
    compare(&bed, &names);
    bed.check(&names, "collisions");
}
