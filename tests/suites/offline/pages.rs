//! Man pages and completions render and load; `--json` parses, whatever the names are.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use sapwood_tests::mount::sapwood;
use sapwood_tests::{Need, Outcome, process, scratch, trial};
use serde_json::Value;

use super::LIMIT;

pub(crate) fn trials() -> Vec<Trial> {
    let man = [Need::Program("man"), Need::Program("groff")];
    vec![
        trial("man_pages_render_without_a_warning", &man, man_pages),
        trial("completions_load_in_bash", &[Need::Program("bash")], bash),
        trial("lists_are_json_of_one_shape", &[], json),
        trial("a_list_that_fails_is_no_json", &[], failed_lists),
    ]
}

fn man_pages() -> Outcome {
    let dir = scratch::directory();
    let at = dir.path().as_os_str();
    call(&["generate".as_ref(), "man".as_ref(), at])?;
    let pages: Vec<_> = fs::read_dir(dir.path().join("man1"))?.collect::<Result<_, _>>()?;
    for page in &pages {
        let path = page.path();
        let mut man = Command::new("man");
        man.args(["--warnings", "-l"])
            .arg(&path)
            .env("MANWIDTH", "80")
            .env("LC_ALL", "C.UTF-8");
        let said = process::finish(&mut man, LIMIT)?;
        let name = path.display();
        if !said.status.success() || !said.stderr.trim().is_empty() {
            return Err(format!("{name}: {}", said.all()).into());
        }
        let sections = ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"];
        let missing = sections
            .iter()
            .find(|section| !said.stdout.contains(**section));
        if let Some(missing) = missing {
            return Err(format!("{name}: no {missing}: {}", said.stdout).into());
        }
    }
    // One of each command, and of each subcommand.
    let named = |name: &str| pages.iter().any(|page| page.file_name() == name);
    for name in [
        "sapwood.1",
        "sapwood-ls.1",
        "sapwood-subvolume-snapshot.1",
        "sapwood-xattr-get.1",
    ] {
        if !named(name) {
            return Err(format!("{name} is missing").into());
        }
    }
    let link = fs::read_to_string(dir.path().join("man8/mount.fuse.sapwood.8"))?;
    if link != ".so man1/sapwood-mount.1\n" {
        return Err(link.into());
    }
    Ok(())
}

fn bash() -> Outcome {
    let script = r#"set -eu
        source <("$SAPWOOD" generate completions bash)
        complete -p sapwood | grep -q _sapwood
        COMP_WORDS=(sapwood subv); COMP_CWORD=1; _sapwood sapwood subv sapwood
        [ "${COMPREPLY[*]}" = subvolume ]
        COMP_WORDS=(sapwood ls --hum); COMP_CWORD=2; _sapwood sapwood --hum ls
        [ "${COMPREPLY[*]}" = --human-readable ]
        "$SAPWOOD" generate completions zsh | grep -q '#compdef sapwood'
        "$SAPWOOD" generate completions fish | grep -q 'complete -c sapwood'"#;
    let mut command = Command::new("bash");
    command.args(["-c", script]).env("SAPWOOD", sapwood());
    process::succeed(&mut command, LIMIT)?;
    Ok(())
}

/// Names in the image: text, one with a quote, a line end and a backslash, one that is no text.
fn names() -> [Vec<u8>; 3] {
    [
        b"plain".to_vec(),
        b"a\"b\n\\c".to_vec(),
        b"x\xff\xfe".to_vec(),
    ]
}

fn json() -> Outcome {
    let dir = scratch::directory();
    let image = dir.path().join("a.img");
    for kind in ["btrfs", "ext4"] {
        let size = "--size=128M";
        run(&["mkfs", "-qf", "-t", kind, size, image.to_str().unwrap()])?;
        for name in names() {
            call(&["touch".as_ref(), &place(&image, &name)])?;
        }
        let plain = place(&image, b"plain");
        call(&[
            "xattr".as_ref(),
            "set".as_ref(),
            "user.k".as_ref(),
            "0xff00".as_ref(),
            &plain,
        ])?;
        one_kind(&image, kind).map_err(|why| format!("{kind}: {why}"))?;
    }
    Ok(())
}

/// Every list of one image.
fn one_kind(image: &Path, kind: &str) -> Result<(), String> {
    let whole = image.to_str().unwrap();
    let inside = format!("{whole}:");
    let fields = [
        "kind",
        "mode",
        "ino",
        "links",
        "uid",
        "gid",
        "size",
        "allocated",
        "mtime",
    ];
    for args in [
        &["ls", "-A", "--json", &inside][..],
        &["find", "--json", "--type", "f", &inside],
        &["tree", "--json", &inside],
        &["du", "-a", "--json", &inside],
        &["stat", "--json", &format!("{whole}:*")],
    ] {
        let list = array(args)?;
        for wanted in names() {
            let found = list.iter().find(|row| path_of(row).ends_with(&wanted));
            let found = found.ok_or_else(|| format!("{args:?}: {wanted:?} is not in {list:?}"))?;
            let text = found.get("path_bytes").is_none();
            if text != std::str::from_utf8(&wanted).is_ok() {
                return Err(format!("{args:?}: {found}"));
            }
            if let Some(missing) = fields.iter().find(|field| found.get(**field).is_none()) {
                return Err(format!("{args:?}: no {missing}: {found}"));
            }
        }
    }
    let values = array(&["xattr", "list", "--json", &format!("{whole}:plain")])?;
    let value = values
        .iter()
        .find(|row| row["name"] == "user.k")
        .ok_or("no user.k")?;
    if value["value"] != Value::Null || value["value_base64"] != "/wA=" {
        return Err(value.to_string());
    }
    let space = array(&["df", "--json", whole])?;
    if space[0]["kind"] != kind || space[0]["size"].as_u64() > Some(128 << 20) {
        return Err(format!("{space:?}"));
    }
    let info = value_of(&["info", "--json", whole])?;
    let check = value_of(&["check", "--json", whole])?;
    if info["kind"] != kind || check["clean"] != true || check["findings"] != Value::Array(vec![]) {
        return Err(format!("{info} {check}"));
    }
    if kind == "btrfs" {
        run(&["subvolume", "create", &format!("{whole}:sub")])?;
        let all = array(&["subvolume", "list", "--json", whole])?;
        if !all.iter().any(|one| one["path"] == "sub") {
            return Err(format!("{all:?}"));
        }
    }
    // An empty list is one too.
    match array(&["find", "--json", "--name", "none", &inside])?.is_empty() {
        true => Ok(()),
        false => Err("find found none".into()),
    }
}

/// A place that is missing, before and after one that is listed, and an image that is missing.
fn failed_lists() -> Outcome {
    let dir = scratch::directory();
    let image = dir.path().join("a.img");
    let whole = image.to_str().unwrap();
    run(&["mkfs", "-qf", "--size=128M", whole])?;
    run(&["touch", &format!("{whole}:a"), &format!("{whole}:b")])?;
    run(&["xattr", "set", "user.k", "v", &format!("{whole}:a")])?;
    let [good, other, none, gone] = ["a.img:a", "a.img:b", "a.img:none", "gone.img"];
    let (several, whole) = ([good, none, other], [gone]);
    for (command, places) in [
        (&["ls"][..], &several[..]),
        (&["ls", "-R"], &several),
        (&["find"], &several),
        (&["du", "-a"], &several),
        (&["stat"], &several),
        (&["xattr", "list"], &several),
        (&["tree"], &[none]),
        (&["df"], &["a.img", gone]),
        (&["subvolume", "list"], &whole),
        (&["ls"], &[good, none]),
        (&["ls"], &[none, good]),
    ] {
        let mut list = Command::new(sapwood());
        list.args(command).arg("--json").args(places);
        let said = process::finish(list.current_dir(dir.path()), LIMIT)?;
        let parsed: Result<Value, _> = serde_json::from_str(&said.stdout);
        if said.status.success() || parsed.is_ok() {
            return Err(format!("{command:?} {places:?}: {}", said.all()).into());
        }
        let found = said.stdout.contains("\"a\"") || said.stdout.contains("\"/a\"");
        if places.contains(&good) && !found {
            return Err(format!("{command:?} {places:?} lists no a: {}", said.all()).into());
        }
    }
    Ok(())
}

fn place(image: &Path, name: &[u8]) -> OsString {
    let mut place = image.as_os_str().to_owned().into_vec();
    place.extend_from_slice(b":/");
    place.extend_from_slice(name);
    OsString::from_vec(place)
}

fn call(args: &[&OsStr]) -> Result<String, String> {
    process::succeed(Command::new(sapwood()).args(args), LIMIT)
}

fn run(args: &[&str]) -> Result<String, String> {
    process::succeed(Command::new(sapwood()).args(args), LIMIT)
}

fn value_of(args: &[&str]) -> Result<Value, String> {
    let text = run(args)?;
    serde_json::from_str(&text).map_err(|error| format!("{args:?}: {error}: {text}"))
}

fn array(args: &[&str]) -> Result<Vec<Value>, String> {
    match value_of(args)? {
        Value::Array(list) => Ok(list),
        other => Err(format!("{args:?}: no array: {other}")),
    }
}

/// The bytes of a row's path.
fn path_of(row: &Value) -> Vec<u8> {
    match row["path_bytes"].as_str() {
        Some(base64) => decode(base64),
        None => row["path"].as_str().unwrap_or_default().as_bytes().to_vec(),
    }
}

/// Base64, by its definition.
fn decode(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => u32::from(byte - b'A'),
        b'a'..=b'z' => u32::from(byte - b'a') + 26,
        b'0'..=b'9' => u32::from(byte - b'0') + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0, 0_u32);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        held = held << 6 | digit(byte);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    bytes
}
