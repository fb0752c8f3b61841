use super::*;
use std::convert::Infallible;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TestRank;

impl Rank for TestRank {
    type Order = Self;

    fn place(self) -> u16 {
        0
    }
}

#[derive(Debug)]
struct Object {
    key: Key,
    value: u64,
    pinned: AtomicBool,
    /// Bytes in addition to `EACH`.
    heap: AtomicUsize,
    residence: Residence,
}

/// Bytes of each object.
const EACH: usize = 1000 - OBJECT_ENTRY;

impl Object {
    fn new(key: Key, value: u64) -> Self {
        Self {
            key,
            value,
            pinned: AtomicBool::new(false),
            heap: AtomicUsize::new(0),
            residence: Residence::default(),
        }
    }
}

impl Resident for Object {
    fn key(&self) -> Key {
        self.key
    }

    fn residence(&self) -> &Residence {
        &self.residence
    }

    fn may_leave(&self) -> bool {
        !self.pinned.load(Ordering::SeqCst)
    }

    fn footprint(&self) -> usize {
        EACH + self.heap.load(Ordering::SeqCst)
    }
}

type Table = ResidentTable<TestRank, Object>;

/// A table for this many objects.
fn table(bound: usize) -> Table {
    ResidentTable::new(TestRank, bound * (EACH + OBJECT_ENTRY))
}

fn get(table: &Table, key: Key) -> Arc<Object> {
    let Ok(object) = table.get_or_load(key, || Ok::<_, Infallible>(Object::new(key, 0)));
    object
}

/// Loads other objects until `key` is evicted.
fn crowd_out(table: &Table, key: Key) {
    let here = |table: &Table| table.all().iter().any(|object| object.key == key);
    for number in 0..100_000 {
        if !here(table) {
            return;
        }
        get(table, (99, number));
    }
    panic!("{key:?} stays");
}

#[test]
fn the_table_keeps_its_bound_except_for_objects_that_cannot_leave() {
    let table = table(1024);
    let held = get(&table, (1, 1));
    let pinned = Object::new((1, 2), 7);
    pinned.pinned.store(true, Ordering::SeqCst);
    assert!(table.insert_first(&Arc::new(pinned)));
    for number in 0..20_000 {
        get(&table, (2, number));
    }
    let count = table.all().len();
    assert!((512..=1024 + 2 * TRIES).contains(&count), "{count}");
    assert!(Arc::ptr_eq(&held, &table.peek((1, 1)).unwrap()));
    assert_eq!(table.peek((1, 2)).unwrap().value, 7);
    assert!(table.peek((2, 0)).is_none());
}

#[test]
fn growing_objects_are_weighed_again_and_evict_others() {
    let table = table(1024);
    let all: Vec<_> = (0..512).map(|number| get(&table, (1, number))).collect();
    assert_eq!(table.bytes(), 512 * (EACH + OBJECT_ENTRY));
    all.iter()
        .for_each(|one| one.heap.store(9000, Ordering::SeqCst));
    for one in &all {
        (0..WEIGH_EVERY).for_each(|_| drop(table.peek(one.key)));
    }
    drop(all);
    table.trim();
    let kept = table.all().len() * (EACH + OBJECT_ENTRY + 9000);
    assert!((1..=1024 * (EACH + OBJECT_ENTRY)).contains(&kept), "{kept}");
    assert_eq!(table.bytes(), kept);
}

#[test]
fn trim_evicts_objects_that_could_not_leave_before() {
    let table = table(1024);
    let all: Vec<_> = (0..5000).map(|number| get(&table, (1, number))).collect();
    assert_eq!(table.all().len(), 5000);
    let pinned = &all[7];
    pinned.pinned.store(true, Ordering::SeqCst);
    let key = pinned.key;
    drop(all);
    table.trim();
    assert!(table.bytes() <= 1025 * (EACH + OBJECT_ENTRY));
    assert!(table.all().iter().any(|object| object.key == key));
}

#[test]
fn crowd_lists_many_parked_references() {
    const MANY: u64 = 30_000;
    let table = table(1024);
    for number in 0..MANY {
        get(&table, (1, number)).residence.refer(1);
    }
    let crowd = table.crowd();
    assert!(crowd.len() as u64 > MANY / 2, "{}", crowd.len());
    assert!(table.is_crowded(crowd[0]));
    for key in crowd {
        assert!(table.release(key, 1).is_none());
    }
    assert_eq!(table.crowd(), []);
}

#[test]
fn references_of_evicted_objects_are_kept() {
    let table = table(64);
    get(&table, (1, 1)).residence.refer(3);
    crowd_out(&table, (1, 1));
    assert!(table.is_parked((1, 1)) && table.refers_to_parked(1));
    assert_eq!(table.referenced(), [(1, 1)]);
    assert!(!table.is_parked((1, 2)) && !table.refers_to_parked(2));
    assert!(table.release((1, 1), 1).is_none());
    let back = get(&table, (1, 1));
    assert_eq!(back.residence.references(), 2);
    assert_eq!(table.referenced(), [(1, 1)]);
    assert!(!table.is_parked((1, 1)) && !table.refers_to_parked(1));
    assert!(table.release((1, 1), 1).is_none());
    let last = table.release((1, 1), 1).unwrap();
    assert!(Arc::ptr_eq(&last, &back));

    back.residence.refer(2);
    assert!(!table.insert_first(&Arc::new(Object::new((1, 1), 9))));
    assert!(table.insert_first(&Arc::new(Object::new((1, 3), 9))));
    assert_eq!(table.peek((1, 3)).unwrap().value, 9);
    drop((back, last));
    crowd_out(&table, (1, 1));
    assert!(table.release((1, 1), 2).is_none());
    assert!(!table.is_parked((1, 1)));
    assert_eq!(get(&table, (1, 1)).residence.references(), 0);
    assert_eq!(table.referenced(), []);
}

#[test]
fn an_object_evicted_during_a_load_is_read_again() {
    let table = table(64);
    let mut disk = 1;
    let mut loads = 0;
    let found = table.get_or_load((1, 1), || {
        loads += 1;
        let read = Object::new((1, 1), disk);
        if loads == 1 {
            // Another thread loads, changes and writes it, and it is evicted.
            get(&table, (1, 1));
            disk = 2;
            crowd_out(&table, (1, 1));
        }
        Ok::<_, Infallible>(read)
    });
    assert_eq!((found.unwrap().value, loads), (2, 2));
}

#[test]
fn a_failed_load_inserts_nothing() {
    let table = table(64);
    let result = table.get_or_load((1, 1), || Err("no such inode"));
    assert_eq!(result.unwrap_err(), "no such inode");
    assert!(table.peek((1, 1)).is_none() && table.all().is_empty());
}

#[test]
fn only_unused_objects_are_evicted() {
    let table = table(64);
    let object = get(&table, (1, 1));
    let other = Arc::clone(&object);
    assert!(!table.evict_unused(&object));
    drop(other);
    object.residence.refer(1);
    assert!(!table.evict_unused(&object));
    object.residence.clear_references();
    assert!(table.evict_unused(&object));
    assert!(table.peek((1, 1)).is_none());
}

#[test]
fn the_clock_does_not_grow_with_removed_objects() {
    let table = table(64 * 1024);
    for round in 0..100 {
        for number in 0..1000 {
            let object = Arc::new(Object::new((1, number), round));
            assert!(table.insert_first(&object));
            table.remove(&object);
        }
    }
    get(&table, (1, 1));
    let clocks = table.shards.iter().map(|shard| shard.lock().clock.len());
    assert!(clocks.max().unwrap() <= LEAST_SWEEP);
    assert_eq!(table.all().len(), 1);
}

#[test]
fn threads_share_one_object_and_lose_no_reference() {
    const EACH: u64 = 2000;
    let table = table(64);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let table = &table;
            scope.spawn(move || {
                for nth in 0..EACH {
                    get(table, (1, nth % 7)).residence.refer(1);
                    get(table, (2 + thread, nth));
                }
            });
        }
    });
    let total: u64 = (0..7)
        .map(|number| get(&table, (1, number)).residence.references())
        .sum();
    assert_eq!(total, 4 * EACH);
}
