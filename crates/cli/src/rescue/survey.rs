//! `sapwood rescue IMAGE`: one page about what is left.

use std::path::Path;

use sapwood::internal::rescue::{
    BtrfsSurvey, CopyState, DescSource, Ext4Survey, JournalState, Origin, State, Survey,
};
use sapwood::vfs::Timestamp;
use serde_json::{Value, json};

use super::{Args, failure, percent, scan, size, tree_name, with_generation};
use crate::failure::Result;
use crate::{output, times};

pub(super) fn run(args: &Args, image: &Path) -> Result<()> {
    let (image, generation) = with_generation(image);
    let options = args.reading.options(generation);
    let survey = scan(args.quiet || args.json, |on_scan| {
        let found = sapwood::internal::image::survey(&image, &options, on_scan);
        found.map_err(failure)
    })?;
    match survey {
        Survey::Btrfs(mut survey) => {
            let chosen = |state: &State| generation.is_none_or(|only| state.generation == only);
            survey.states.retain(chosen);
            if args.json {
                return output::object(&btrfs_json(&survey));
            }
            btrfs(&survey)
        }
        Survey::Ext4(survey) if args.json => output::object(&ext4_json(&survey)),
        Survey::Ext4(survey) => ext4(&survey),
        _ => Ok(()),
    }
}

fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Superblock => "superblock",
        Origin::Backup => "backup root",
        Origin::Scan => "scan",
    }
}

fn copy_state(state: &CopyState) -> (&'static str, Option<u64>) {
    match state {
        CopyState::Valid(generation) => ("valid", Some(*generation)),
        CopyState::Damaged => ("damaged", None),
        CopyState::Absent => ("absent", None),
    }
}

fn btrfs(survey: &BtrfsSurvey) -> Result<()> {
    output::line(format!("btrfs {}", output::uuid(&survey.fsid)))?;
    output::line("superblocks")?;
    for copy in &survey.supers {
        let (state, generation) = copy_state(&copy.state);
        let generation = generation.map(|found| format!(", generation {found}"));
        output::line(format!(
            "  device {} copy {} at {}: {state}{}",
            copy.device,
            copy.number,
            copy.offset,
            generation.unwrap_or_default()
        ))?;
    }
    output::line(format!(
        "{} tree blocks in {} that were scanned; tree roots of {} generations{}",
        survey.blocks,
        size(survey.scanned),
        survey.generations,
        match survey.oldest {
            Some(oldest) => format!(", the oldest {oldest}"),
            None => String::new(),
        }
    ))?;
    if survey.unreadable > 0 {
        output::line(format!("{} could not be read", size(survey.unreadable)))?;
    }
    if survey.dropped > 0 {
        let dropped = survey.dropped;
        output::line(format!(
            "the index had no room for {dropped} old tree blocks"
        ))?;
    }
    output::line("states, the newest first")?;
    for state in &survey.states {
        let time = state
            .time
            .map_or("unknown".to_owned(), times::local_seconds);
        output::line(format!(
            "  @{} {time} {}% of {} blocks ({})",
            state.generation,
            percent(state.blocks, state.missing),
            state.blocks,
            origin(state.origin)
        ))?;
        for tree in &state.damaged {
            output::line(format!(
                "    {}: {} of {} blocks are missing",
                tree_name(tree.id),
                tree.missing,
                tree.blocks
            ))?;
        }
    }
    Ok(())
}

fn btrfs_json(survey: &BtrfsSurvey) -> Value {
    let supers = survey.supers.iter().map(|copy| {
        let (state, generation) = copy_state(&copy.state);
        json!({
            "device": copy.device,
            "copy": copy.number,
            "offset": copy.offset,
            "state": state,
            "generation": generation,
        })
    });
    let states = survey.states.iter().map(|state| {
        let damaged = state.damaged.iter().map(|tree| {
            json!({ "tree": tree.id as i64, "blocks": tree.blocks, "missing": tree.missing })
        });
        json!({
            "generation": state.generation,
            "root": state.root,
            "origin": origin(state.origin),
            "time": state.time.map(times::json),
            "blocks": state.blocks,
            "missing": state.missing,
            "percent": percent(state.blocks, state.missing),
            "subvolumes": state.subvolumes,
            "damaged": damaged.collect::<Vec<_>>(),
        })
    });
    json!({
        "kind": "btrfs",
        "fsid": output::uuid(&survey.fsid),
        "superblocks": supers.collect::<Vec<_>>(),
        "blocks": survey.blocks,
        "scanned": survey.scanned,
        "unreadable": survey.unreadable,
        "generations": survey.generations,
        "oldest": survey.oldest,
        "states": states.collect::<Vec<_>>(),
    })
}

fn source(source: DescSource) -> &'static str {
    match source {
        DescSource::Primary => "in their place",
        DescSource::Backup => "from backups",
        DescSource::Journal => "from the journal",
        DescSource::Layout => "found by their inodes",
        DescSource::None => "lost",
    }
}

fn journal(state: &JournalState) -> String {
    match state {
        JournalState::None => "none".to_owned(),
        JournalState::Clean => "nothing to replay".to_owned(),
        JournalState::Replayed => "replayed in memory".to_owned(),
        JournalState::Ignored(why) => format!("ignored: {why}"),
    }
}

fn seconds(written: u64) -> Timestamp {
    Timestamp {
        sec: i64::try_from(written).unwrap_or(i64::MAX),
        nsec: 0,
    }
}

fn ext4(survey: &Ext4Survey) -> Result<()> {
    output::line("ext4")?;
    output::line("superblocks")?;
    for place in &survey.supers {
        let used = if place.offset == survey.used {
            ", used"
        } else {
            ""
        };
        let state = match &place.state {
            Ok(written) => format!("valid, written {}", times::local_seconds(seconds(*written))),
            Err(why) => why.clone(),
        };
        output::line(format!("  at {}: {state}{used}", place.offset))?;
    }
    output::line("descriptors of groups")?;
    for (from, count) in &survey.groups {
        output::line(format!("  {count} {}", source(*from)))?;
    }
    output::line(format!(
        "journal: {}; it has {} copies of blocks",
        journal(&survey.journal),
        survey.copies
    ))?;
    output::line(format!(
        "{} inodes in use, {} of them without a name",
        survey.inodes, survey.nameless
    ))
}

fn ext4_json(survey: &Ext4Survey) -> Value {
    let supers = survey.supers.iter().map(|place| {
        json!({
            "offset": place.offset,
            "valid": place.state.is_ok(),
            "written": place.state.as_ref().ok().map(|written| times::json(seconds(*written))),
            "why": place.state.as_ref().err(),
            "used": place.offset == survey.used,
        })
    });
    let groups = survey.groups.iter();
    let groups = groups.map(|(from, count)| (source(*from).to_owned(), json!(count)));
    json!({
        "kind": "ext4",
        "superblocks": supers.collect::<Vec<_>>(),
        "groups": groups.collect::<serde_json::Map<_, _>>(),
        "journal": journal(&survey.journal),
        "copies": survey.copies,
        "inodes": survey.inodes,
        "nameless": survey.nameless,
    })
}
