//! A fixed part of `make crash`, and tests that the explorer finds planted faults.

use sapwood_crash::again::Again;
use sapwood_crash::base::BaseKind;
use sapwood_crash::bounded::Bounded;
use sapwood_crash::cases;
use sapwood_crash::cut::{Cut, Depth};
use sapwood_crash::engine::Format;
use sapwood_crash::explore::{Found, explore, explore_with, parse_id, replay};
use sapwood_crash::judge::Tally;
use sapwood_crash::plant::Plant;
use sapwood_crash::policy::Policy;
use sapwood_crash::race::Race;
use sapwood_crash::record::{Recording, Setting, Workload};
use sapwood_crash::reshape;
use sapwood_crash::sets::{SetTally, Sets};
use sapwood_crash::subject::Subject;
use sapwood_crash::threads::Threads;
use sapwood_testing::CrashPlan;
use sapwood_testing::op::{Op, from_text};

fn all(workloads: impl IntoIterator<Item = impl Into<Subject>>) -> Tally {
    let setting = Setting::default();
    let mut sum = Tally::default();
    for workload in workloads {
        let (tally, result) = explore(&workload.into(), &setting, Depth::BRIEF);
        sum += tally;
        result.unwrap_or_else(|found| panic!("{found}"));
    }
    sum
}

#[test]
fn devices_and_block_groups_change_over_several_devices() {
    let mut sum = SetTally::default();
    for seed in 1..9 {
        let sets: Sets = format!("devices: {seed}").parse().unwrap();
        let (tally, explored) = sets.explore(8);
        sum += tally;
        explored.unwrap_or_else(|why| panic!("{why}"));
    }
    assert!(sum.changes > 5 && sum.opened >= sum.cuts, "{sum:?}");
}

#[test]
fn every_operation_alone() {
    let ones = Bounded::new(BaseKind::Standard).unwrap().ones();
    let sum = all(ones);
    assert!(sum.workloads > 200 && sum.images > 2000, "{sum:?}");
}

#[test]
fn some_sequences_of_two_and_three() {
    let bounded = Bounded::new(BaseKind::Standard).unwrap();
    let twos = (0..bounded.firsts())
        .flat_map(|first| bounded.twos(first).into_iter().skip(first % 97).step_by(97));
    let threes = (0..200).filter_map(|seed| bounded.three(seed));
    let sum = all(twos.chain(threes));
    assert!(sum.workloads > 200 && sum.images > 2000, "{sum:?}");
}

#[test]
fn known_trouble_cases() {
    for case in cases::all(Format::Btrfs).unwrap() {
        let (_, result) = explore(&case.workload.into(), &Setting::default(), Depth::BRIEF);
        result.unwrap_or_else(|found| panic!("{}: {found}", case.name));
    }
}

#[test]
fn ext4_every_operation_alone() {
    let bases = Format::Ext4.bases();
    let number = bases.len();
    let ones = bases.into_iter().enumerate().flat_map(|(at, base)| {
        let ones = Bounded::new(base).unwrap().ones();
        ones.into_iter().skip(at).step_by(number)
    });
    let sum = all(ones);
    assert!(sum.workloads > 150 && sum.images > 1000, "{sum:?}");
}

#[test]
fn ext4_some_sequences_of_two_and_three() {
    let bounded = Bounded::new(BaseKind::Ext4).unwrap();
    let twos = (0..bounded.firsts()).flat_map(|first| {
        let twos = bounded.twos(first).into_iter();
        twos.skip(first % 197).step_by(197)
    });
    let threes = (0..60).filter_map(|seed| bounded.three(seed));
    let sum = all(twos.chain(threes));
    assert!(sum.workloads > 80 && sum.images > 800, "{sum:?}");
}

/// Named cases of ext4 that are short; `make crash` runs the long ones.
fn ext4_cases() -> Vec<cases::Case> {
    let mut all = cases::all(Format::Ext4).unwrap();
    all.retain(|case| case.workload.ops.len() <= 40);
    all
}

#[test]
fn ext4_known_trouble_cases() {
    for case in ext4_cases() {
        let (_, result) = explore(&case.workload.into(), &Setting::default(), Depth::BRIEF);
        result.unwrap_or_else(|found| panic!("{}: {found}", case.name));
    }
}

#[test]
fn ext4_with_data_in_the_journal() {
    let setting = Setting {
        policy: Policy::DataJournal,
        ..Setting::default()
    };
    for case in ext4_cases().into_iter().step_by(5) {
        let (_, result) = explore(&case.workload.into(), &setting, Depth::BRIEF);
        result.unwrap_or_else(|found| panic!("{}: {found}", case.name));
    }
}

#[test]
fn ext4_with_fast_commits() {
    for policy in [Policy::Now, Policy::FullFastCommits] {
        let setting = Setting {
            policy,
            ..Setting::default()
        };
        let ones = Bounded::new(BaseKind::Ext4Fast).unwrap().ones();
        let cases = ext4_cases().into_iter().map(|case| Workload {
            base: BaseKind::Ext4Fast,
            ..case.workload
        });
        for workload in ones.into_iter().step_by(4).chain(cases.step_by(4)) {
            let (_, result) = explore(&workload.into(), &setting, Depth::BRIEF);
            result.unwrap_or_else(|found| panic!("{policy}: {found}"));
        }
    }
}

#[test]
fn ext4_threads_at_once() {
    all((1..6).map(|seed| Threads {
        engine: Format::Ext4,
        seed,
        lanes: 3,
        ops: 8,
    }));
}

#[test]
fn known_trouble_cases_with_each_policy() {
    let cases = cases::all(Format::Btrfs).unwrap();
    let policies = Policy::ALL.into_iter();
    let policies: Vec<Policy> = policies
        .filter(|policy| policy.fits(Format::Btrfs))
        .collect();
    for (number, policy) in policies.iter().copied().enumerate() {
        let setting = Setting {
            policy,
            ..Setting::default()
        };
        for case in cases.iter().skip(number).step_by(policies.len()) {
            let (_, result) = explore(&case.workload.clone().into(), &setting, Depth::BRIEF);
            result.unwrap_or_else(|found| panic!("{policy}: {}: {found}", case.name));
        }
    }
}

#[test]
fn threads_at_once() {
    all((1..12).map(|seed| Threads {
        engine: Format::Btrfs,
        seed,
        lanes: 3,
        ops: 8,
    }));
}

fn races(base: BaseKind, seeds: std::ops::Range<u64>) -> Tally {
    all(seeds.map(|seed| {
        let (threads, ops) = (2 + (seed / 2 % 2) as usize, 3 + (seed % 4) as usize);
        Race::by_chance(base, seed, threads, ops).unwrap()
    }))
}

/// Threads that mostly append to one file.
fn appends(base: BaseKind) -> Tally {
    let text = format!(
        "race: {base}: append A/foo 3000 10; append A/foo 100 11; append A/foo 9000 12; sync \
        | append A/foo 3000 50; append A/foo 100 51; fsync A/foo; append A/foo 5000 52"
    );
    all((0..6).map(|_| text.parse::<Subject>().unwrap()))
}

#[test]
fn threads_on_the_same_names() {
    let sum = races(BaseKind::Standard, 0..60);
    assert!(
        sum.images > 500 && sum.undecided * 20 < sum.comparisons,
        "{sum:?}"
    );
    appends(BaseKind::Standard);
}

#[test]
fn ext4_threads_on_the_same_names() {
    for base in [BaseKind::Ext4, BaseKind::Ext4Fast] {
        let sum = races(base, 0..40);
        assert!(
            sum.images > 150 && sum.undecided * 20 < sum.comparisons,
            "{sum:?}"
        );
        appends(base);
    }
}

/// All second generations of a workload: one for each cut that leaves a log.
fn after_every_cut(base: BaseKind, first: &str, second: &str) -> Vec<Again> {
    let first: Workload = format!("{base}: {first}").parse().unwrap();
    let recording = Recording::run(&first, &Setting::default()).unwrap();
    let log = &recording.log;
    let points = log.crash_points().into_iter().map(CrashPlan::at);
    let mut points: Vec<CrashPlan> = points.collect();
    points.retain(|plan| base.engine().has_log(&log.image(&recording.base, plan)));
    let ops = from_text(second).unwrap();
    let again = |plan| Again {
        first: first.clone(),
        cut: Cut(plan).to_string(),
        ops: ops.clone(),
    };
    points.into_iter().map(again).collect()
}

fn by_chance(base: BaseKind, seeds: std::ops::Range<u64>) -> impl Iterator<Item = Again> {
    seeds.map(move |seed| {
        let (first, second) = (2 + (seed % 5) as usize, 1 + (seed / 3 % 4) as usize);
        Again::by_chance(base, seed, first, second, &Setting::default()).unwrap()
    })
}

#[test]
fn a_second_generation() {
    let base = BaseKind::Standard;
    let first = "creat A/C/new; write A/C/new 0 9000 1; rename A/bar B/bar; fsync A/C/new; \
        unlink A/foo; fsync A";
    let every = after_every_cut(base, first, "mkdir A/E; creat A/E/x; fsync A/E");
    assert!(every.len() > 5, "{}", every.len());
    let sum = all(every.into_iter().chain(by_chance(base, 0..60)));
    assert!(sum.images > 300, "{sum:?}");
}

#[test]
fn ext4_a_second_generation() {
    let first = "creat A/C/new; write A/C/new 0 9000 1; link A/bar B/bar; fsync A/C/new; \
        unlink A/two; fsync A";
    let second = "mkdir A/E; creat A/E/x; fsync A/E";
    for base in [BaseKind::Ext4, BaseKind::Ext4Fast] {
        let every = after_every_cut(base, first, second);
        assert!(every.len() > 5, "{}", every.len());
        let sum = all(every.into_iter().chain(by_chance(base, 0..40)));
        assert!(sum.images > 200, "{sum:?}");
    }
}

/// The text of the first failure of these workloads.
fn first_failure(plant: Plant, workloads: &[String]) -> Option<Found> {
    let setting = Setting {
        plant: Some(plant),
        ..Setting::default()
    };
    workloads.iter().find_map(|text| {
        explore(&text.parse().unwrap(), &setting, Depth::BRIEF)
            .1
            .err()
    })
}

#[test]
fn a_broken_engine_is_found_and_its_id_replays() {
    let workloads = [
        "creat A/x; write A/x 0 9000 1; fsync A/x",
        "rename A/foo B/x; sync",
    ];
    let on = |base: BaseKind| workloads.map(|ops| format!("{base}: {ops}"));
    let engines = Format::ALL.map(|engine| on(engine.standard()));
    for (plant, workloads) in Plant::ALL
        .into_iter()
        .flat_map(|plant| engines.iter().map(move |workloads| (plant, workloads)))
    {
        let found =
            first_failure(plant, workloads).unwrap_or_else(|| panic!("{plant} was not found"));
        let (workload, cut) = parse_id(&found.id()).unwrap();
        assert_eq!(workload, found.subject);
        let plan = cut.map(|cut| cut.0);
        let broken = Setting {
            plant: Some(plant),
            ..Setting::default()
        };
        let again = replay(&workload, plan.as_ref(), &broken);
        assert!(
            again.is_err(),
            "{plant}: {} does not fail again",
            found.id()
        );
        replay(&workload, None, &Setting::default()).unwrap();
    }
}

#[test]
fn the_list_names_every_kind_of_operation_of_the_bounded_set() {
    let bounded = Bounded::new(BaseKind::Standard).unwrap();
    let twos: Vec<Workload> = (0..bounded.firsts())
        .flat_map(|first| bounded.twos(first))
        .collect();
    for verb in [
        "creat",
        "mkdir",
        "write",
        "append",
        "falloc",
        "falloc-keep",
        "punch",
        "zero",
        "zero-keep",
        "truncate",
        "link",
        "symlink",
        "rename",
        "exchange",
        "unlink",
        "rmdir",
        "mknod",
        "setxattr",
        "removexattr",
        "reflink",
        "snapshot",
        "fsync",
        "fdatasync",
        "sync",
    ] {
        let first = |workload: &&Workload| workload.ops.first().map(Op::verb) == Some(verb);
        assert!(twos.iter().filter(first).count() > 20, "{verb}");
    }
    assert!(twos.len() > 10_000, "{}", twos.len());
}

/// Explores reshapes; returns how many made the file system smaller, larger, and gave inodes other
/// numbers.
fn reshapes(engine: Format, seeds: std::ops::Range<u64>) -> (usize, usize, usize) {
    let (mut smaller, mut larger, mut renumbered) = (0, 0, 0);
    let base = engine.standard();
    let growth =
        format!("reshape: {base}: creat x; write x 0 90000 1; fsync x => resize 167772160");
    let seeds = seeds.map(|seed| reshape::by_chance(engine, seed).unwrap());
    for subject in seeds.chain([growth.parse().unwrap()]) {
        if matches!(subject, Subject::Trims(_)) {
            continue;
        }
        let setting = Setting::default();
        let (_, result) = explore_with(&subject, &setting, SHALLOW, &mut |run, _| {
            let sizes = run.sizes.unwrap();
            smaller += usize::from(sizes.after < sizes.before);
            larger += usize::from(sizes.after > sizes.before);
            renumbered += usize::from(sizes.renumbered > 0);
            Ok(())
        });
        result.unwrap_or_else(|found| panic!("{found}"));
    }
    (smaller, larger, renumbered)
}

/// Every prefix and every lost write, and little else.
const SHALLOW: Depth = Depth {
    pairs: 6,
    random: 3,
    torn: 1,
};

#[test]
fn resizes_leave_the_old_or_the_new_size() {
    let (smaller, larger, _) = reshapes(Format::Btrfs, 0..24);
    assert!(smaller > 5 && larger > 0, "{smaller} {larger}");
}

#[test]
fn ext4_resizes_leave_the_old_or_the_new_size() {
    let (smaller, larger, renumbered) = reshapes(Format::Ext4, 0..16);
    assert!(smaller > 3 && larger > 0, "{smaller} {larger}");
    assert!(renumbered > 1, "{renumbered}");
}

fn trims(engine: Format) {
    let seeds = (0..).map(|seed| reshape::by_chance(engine, seed).unwrap());
    let trims = seeds.filter(|subject| matches!(subject, Subject::Trims(_)));
    all(trims.take(8));
}

#[test]
fn trims_keep_what_a_crash_can_bring_back() {
    trims(Format::Btrfs);
}

#[test]
fn ext4_trims_keep_what_a_crash_can_bring_back() {
    trims(Format::Ext4);
}
